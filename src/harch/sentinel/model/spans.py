"""What is a span, and how are traces asked for? A span is one piece of work; a trace is a tree of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

AttributeValue = str | bool | int | float
Attributes = tuple[tuple[str, AttributeValue], ...]  # sorted by name, no name twice


class SpanStatus(Enum):
    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


class SpanKind(Enum):
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    time_ns: int
    name: str
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class SpanLink:
    trace_id: str
    span_id: str
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Ids in lower-case hexadecimal (32 and 16 digits); `parent_id` is empty for the root of a trace.

    `service` is the resource's `service.name`; the resource's other attributes are in `resource`.
    """

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    name: str
    start_ns: int
    duration_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    status: SpanStatus = SpanStatus.UNSET
    status_message: str = ""
    attributes: Attributes = ()
    resource: Attributes = ()
    scope: str = ""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class SpansWritten:
    spans: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # error code -> how many spans
    first_refusal: str = ""


class Comparison(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"
    ABOVE = ">"
    AT_LEAST = ">="
    BELOW = "<"
    AT_MOST = "<="


class SpanField(Enum):
    """What a condition looks at. `ATTRIBUTE` takes the span's own, then the resource's."""

    SERVICE = "service"
    NAME = "name"
    STATUS = "status"
    KIND = "kind"
    DURATION = "duration"  # nanoseconds
    ATTRIBUTE = "attribute"


@dataclass(frozen=True, slots=True)
class SpanCondition:
    """Numbers are compared as numbers, all else as text. A span without the attribute satisfies no condition on it,
    except `NOT_EQUAL` and `NOT_REGEX`."""

    field: SpanField
    comparison: Comparison
    value: AttributeValue
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class SpanQuery:
    """Spans that began in `start_ns` (included) to `end_ns` (not included) and satisfy every condition."""

    start_ns: int
    end_ns: int
    conditions: tuple[SpanCondition, ...] = ()
    limit: int = 20  # traces, the newest first
    scanned_spans_max: int = 100_000_000  # beyond it E0625


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace that a search found. Root and duration are of the whole trace as far as it is stored here:
    from the first start to the last end; without its root the earliest span stands for it."""

    trace_id: str
    root_service: str
    root_name: str
    start_ns: int
    duration_ns: int
    spans: int
    errors: int
    matched: tuple[str, ...]  # ids of spans that satisfy the query, at most 100


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans of one group, counted: what may be disclosed where single spans may not.

    `buckets[i]` counts durations up to `BUCKET_BOUNDS_NS[i]`, the last one all above.
    """

    key: tuple[str, ...]  # values of the fields that were grouped by
    count: int
    errors: int
    duration_sum_ns: int
    buckets: tuple[int, ...]
    traces: int = 0  # distinct traces among them; 0: not counted


BUCKET_BOUNDS_NS = tuple(round(1000 * 2 ** (step / 2)) for step in range(66))  # 1 µs to about 100 minutes


class SpanReadable(Protocol):
    """What searches ask of a store, for one tenant."""

    def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
        """Traces in which one span satisfies all of the query; the newest start first, ties by id."""
        ...

    def trace(self, trace_id: str) -> Sequence[Span]:
        """All spans of a trace, by start, then id; none if it is not here."""
        ...

    def statistics(self, query: SpanQuery, by: Sequence[SpanField]) -> Sequence[SpanGroup]:
        """Matching spans by service, name, status or kind; sorted by key. `query.limit` is not looked at."""
        ...

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        """Names of attributes, of spans and of resources, sorted."""
        ...

    def tag_values(self, field: SpanField, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]: ...


class SpanStore(SpanReadable, Protocol):
    """One tenant's spans."""

    def append(self, spans: Sequence[Span]) -> SpansWritten:
        """Returning means that the spans that were taken are on disk. A span that comes twice is kept once."""
        ...

    def delete(self, query: SpanQuery, trace_ids: Sequence[str]) -> int:
        """Erases the matching spans (all conditions and, if any are given, one of the ids); returns how many."""
        ...

    def purge(self) -> None: ...

    def maintain(self) -> None: ...

    def facts(self) -> Mapping[str, object]: ...
