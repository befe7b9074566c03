"""What do hubs say to each other about telemetry? A part of a question one way, and what may be told back.

The asking hub cuts a question into parts, the owning hub judges and answers each of them. Nothing else passes.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from harch.base.integers import Int64
from harch.base.rejection import Rejection
from harch.sentinel.model.histograms import Histogram

ANSWER_BYTES_MAX = 8 << 20
PARTS_MAX = 64  # of one question
LOOKBACK_MS = 5 * 60_000


class MetricPart(Struct, frozen=True, kw_only=True, tag="metric"):
    """A PromQL expression, evaluated at `start`, `start + step`, … up to `end` (milliseconds).

    All hubs look back as far for the latest sample, or their answers would not be one. A step of 0: `start` alone.
    """

    expression: str
    start_ms: Int64
    end_ms: Int64
    step_ms: Int64
    lookback_ms: Int64 = LOOKBACK_MS


class LogPart(Struct, frozen=True, kw_only=True, tag="log"):
    """A LogQL expression on the same kind of grid; `limit` counts for lines, which only pass inside a jurisdiction."""

    expression: str
    start_ns: Int64
    end_ns: Int64
    step_ns: Int64
    limit: Int64 = 0
    newest_first: bool = True


class TracePart(Struct, frozen=True, kw_only=True, tag="trace"):
    """A search for traces, one trace by its id, or statistics by fields; as `harch.sentinel.traces` writes queries."""

    kind: Literal["search", "trace", "statistics"]
    query: str
    start_ns: Int64
    end_ns: Int64
    by: tuple[str, ...] = ()
    limit: Int64 = 20


Part = MetricPart | LogPart | TracePart


class Question(Struct, frozen=True, kw_only=True):
    """`tenant` is whose telemetry is meant; `asked_by` names the person or key for the owner's audit."""

    id: str
    tenant: str
    asked_by: str
    parts: tuple[Part, ...]


class Asker(Struct, frozen=True, kw_only=True):
    """Who asks, as the owning hub knows it from the link's certificate, never from the question itself."""

    hub_id: str
    country: str


class SeriesTold(Struct, frozen=True, kw_only=True):
    """One series of an answer. `values[i]` belongs to the grid's place `at[i]`; bits are kept exactly.

    `histograms` is empty, or has one entry for each value: a histogram that stands instead of it, or None.
    """

    labels: tuple[tuple[str, str], ...]
    at: tuple[int, ...]
    values: tuple[float, ...]
    histograms: tuple[Histogram | None, ...] = ()


class Told(Struct, frozen=True, kw_only=True):
    """What became of one part. Exactly one of `series`, `body` and `refused` says something.

    `body` is the JSON of lines, traces or statistics, which has no grid (as bytes, because answers travel as msgpack).
    `suppressed` counts groups that were left out because they were too small, so that an answer never looks complete
    when it is not.
    """

    series: tuple[SeriesTold, ...] = ()
    body: bytes = b""
    suppressed: int = 0
    warnings: tuple[str, ...] = ()
    refused: Rejection | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """The owner's answer, a `Told` for every part in order."""

    question_id: str
    hub_id: str
    country: str
    told: tuple[Told, ...]
