"""What is left of a piece of work when it is over, and how does it travel?

A span with ids that follow from what they stand for, a name, two times and numbers; OTLP protobuf, written by hand.
"""

# harch: pure

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

# What is left of a piece of work when it is over? A span: ids, a name, two times, figures; never what people wrote.
#
# Attributes hold ids, sizes, states and figures. Commands, environments and secrets have no place in a span.


Value = str | bool | int | float
Attributes = dict[str, Value]

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5  # as OTLP numbers them
EVENTS_MAX = 64  # per span; what comes later is counted in `events_dropped`
ATTRIBUTES_MAX = 64
TEXT_MAX = 256


class RecordedEvent(Struct, frozen=True, array_like=True, gc=False):
    at_ns: int
    name: str
    attributes: Attributes = {}


class FinishedSpan(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`error`: None if nothing was said, empty if it went well, else a word for what went wrong.

    `service`: of another process, on whose behalf this one tells it; empty for its own.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    name: str
    start_ns: int
    end_ns: int
    kind: int = INTERNAL
    error: str | None = None
    attributes: Attributes = {}
    events: tuple[RecordedEvent, ...] = ()
    service: str = ""


class Resource(Struct, frozen=True):
    """Who tells spans: the service, and what else identifies the process."""

    service: str
    attributes: Attributes = {}

    def of(self, service: str) -> Resource:
        return Resource(service, self.attributes) if service and service != self.service else self


# Which trace is this, and what are its spans called? Ids that travel, and ids that follow from what they stand for.
#
# A span that outlives a process has an id that anybody can compute from the trace and from what the span is about. So a
# hub that was restarted, the agent of a task and the hub that runs a guest name the same parent without telling it.


TRACEPARENT = "traceparent"
SAMPLED = 1
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SPAN_BYTES, _TRACE_BYTES = 8, 16
_SHARES = 1 << 64


class TraceContext(NamedTuple):
    """A trace and the span in it that what follows belongs to. An empty `span_id`: it has no span yet."""

    trace_id: bytes
    span_id: bytes
    sampled: bool = True

    @property
    def header(self) -> str:
        """As W3C Trace Context writes it."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{SAMPLED if self.sampled else 0:02x}"

    def within(self, span_id: bytes) -> TraceContext:
        return TraceContext(self.trace_id, span_id, self.sampled)


def read_header(text: str) -> TraceContext | None:
    """None for what is no `traceparent`: then a trace begins anew, as the standard wants it."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceContext(bytes.fromhex(trace), bytes.fromhex(span), bool(int(flags, 16) & SAMPLED))


def span_id_of(trace_id: bytes, *words: str | int) -> bytes:
    """The id of the span that these words name in a trace; the same wherever it is asked for."""
    return blake2b("\0".join(map(str, words)).encode(), key=trace_id, digest_size=_SPAN_BYTES).digest()


def trace_id_of(*words: str | int) -> bytes:
    """The trace of something that has a name of its own, e.g. a window of a pipeline."""
    return blake2b("\0".join(map(str, words)).encode(), digest_size=_TRACE_BYTES, person=b"harch-trace").digest()


def is_in_share(trace_id: bytes, share: float) -> bool:
    """Whether a trace is among the `share` (0 to 1) that is kept; whoever asks gets the same answer."""
    return share >= 1.0 or int.from_bytes(trace_id[:8], "big") < share * _SHARES


# What the spans of a workload are called after: hub, agent and other hubs compute them alike.


def start_id(trace_id: bytes, workload_id: str, attempt: int) -> bytes:
    return span_id_of(trace_id, "start", workload_id, attempt)


def run_id(trace_id: bytes, workload_id: str, attempt: int) -> bytes:
    return span_id_of(trace_id, "run", workload_id, attempt)


def lease_id(trace_id: bytes, workload_id: str, epoch: int) -> bytes:
    return span_id_of(trace_id, "lease", workload_id, epoch)


def task_id(trace_id: bytes, workload_id: str, attempt: int, rank: int) -> bytes:
    return span_id_of(trace_id, "task", workload_id, attempt, rank)


# How do spans look on the wire? OTLP protobuf, written by hand: an agent has no megabytes for generated classes.


SCOPE = "harch"
_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack
_WORD = (1 << 64) - 1
_OK, _ERROR = 1, 2


def encode(spans: Iterable[FinishedSpan], resource: Resource) -> bytes:
    """An `ExportTraceServiceRequest` with one part for each service among the spans."""
    by_service: dict[str, list[bytes]] = defaultdict(list)
    for span in spans:
        by_service[span.service].append(_field(2, _span(span)))
    scope = _field(1, _text(1, SCOPE))
    return b"".join(
        _field(1, _field(1, _resource(resource.of(service))) + _field(2, scope + b"".join(found)))
        for service, found in by_service.items()
    )


def _resource(resource: Resource) -> bytes:
    return _attributes(1, {"service.name": resource.service, **resource.attributes})


def _span(span: FinishedSpan) -> bytes:
    parts = [_field(1, span.trace_id), _field(2, span.span_id)]
    if span.parent_id:
        parts.append(_field(4, span.parent_id))
    parts += [
        _text(5, span.name),
        b"\x30" + _varint(span.kind),
        b"\x39" + _fixed64(span.start_ns & _WORD),
        b"\x41" + _fixed64(span.end_ns & _WORD),
        _attributes(9, span.attributes),
    ]
    parts += [_field(11, _event(event)) for event in span.events]
    if span.error is not None:
        status = (_text(2, span.error) if span.error else b"") + b"\x18" + _varint(_ERROR if span.error else _OK)
        parts.append(_field(15, status))
    return b"".join(parts)


def _event(event: RecordedEvent) -> bytes:
    return b"\x09" + _fixed64(event.at_ns & _WORD) + _text(2, event.name) + _attributes(3, event.attributes)


def _attributes(number: int, attributes: Attributes) -> bytes:
    return b"".join([_field(number, _text(1, name) + _field(2, _value(v))) for name, v in attributes.items()])


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return _text(1, value)
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _WORD)
    return b"\x21" + _double(value)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, body: bytes) -> bytes:
    """One with a length."""
    size = len(body)
    head = number << 3 | 2
    if size < 128 and head < 128:
        return bytes((head, size)) + body
    return _varint(head) + _varint(size) + body


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
