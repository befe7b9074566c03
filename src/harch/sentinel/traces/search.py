"""How are traces found, and what belongs to them?

Every alternative of a query is looked up in the store, the newest hours first; durations by group, and the log lines
of a trace.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.logs import LEVEL, SPAN_ID, TRACE_ID, LineOrder, LogReadable, LogRequest
from harch.sentinel.model.spans import (
    BUCKET_BOUNDS_NS,
    Span,
    SpanField,
    SpanGroup,
    SpanQuery,
    SpanReadable,
    SpanStatus,
    TraceSummary,
)
from harch.sentinel.traces.query import Alternative, TraceQuery, holds, span_query

LIMIT = 20
LIMIT_MAX = 1000
LOOKED_AT_MAX = 2000  # traces, for conditions that only a whole trace can satisfy
MATCHED_MAX = 100
_HOUR_NS = 3600 * 10**9
WINDOWS_NS = (_HOUR_NS, 24 * _HOUR_NS, 7 * 24 * _HOUR_NS)  # then everything
_TOO_MUCH = "E0625"


@dataclass(frozen=True, slots=True)
class TraceSearchResult:
    """The newest traces first. `notes` say what the answer lacks, in sentences."""

    traces: tuple[TraceSummary, ...] = ()
    notes: tuple[str, ...] = ()


def search(
    store: SpanReadable,
    query: TraceQuery,
    *,
    start_ns: int | None,
    end_ns: int,
    limit: int = LIMIT,
    stopped: Callable[[], bool] = lambda: False,
) -> TraceSearchResult:
    """Without a start the search goes back as far as it must. Raises E0625 if the store has too much to look at."""
    if query.trace_id:
        spans = store.trace(query.trace_id)
        return TraceSearchResult((summary_of(spans, ()),)) if spans else TraceSearchResult()
    if start_ns is not None:
        return _within(store, query, start_ns, end_ns, limit)
    found, reached_ns = TraceSearchResult(), end_ns
    for width_ns in (*WINDOWS_NS, end_ns):
        begin_ns = max(0, end_ns - width_ns)
        try:
            found = _merged((found, _within(store, query, begin_ns, reached_ns, limit)), limit)
        except HarchError as problem:
            if problem.code != _TOO_MUCH or not found.traces:
                raise
            return TraceSearchResult(found.traces, (*found.notes, f"older traces were not searched: {problem.message}"))
        # What was not found has no such span since `begin_ns`, so it began before.
        is_enough = sum(trace.start_ns >= begin_ns for trace in found.traces) >= limit
        if is_enough or found.notes or begin_ns == 0 or stopped():
            break
        reached_ns = begin_ns
    return found


def _within(store: SpanReadable, query: TraceQuery, start_ns: int, end_ns: int, limit: int) -> TraceSearchResult:
    return _merged([_one(store, one, start_ns, end_ns, limit) for one in query.alternatives], limit)


def _merged(parts: Sequence[TraceSearchResult], limit: int) -> TraceSearchResult:
    """The newest of all parts; a trace that several of them found is there once, with all spans that matched."""
    merged: dict[str, TraceSummary] = {}
    for part in parts:
        for trace in part.traces:
            known = merged.get(trace.trace_id)
            merged[trace.trace_id] = trace if known is None else _joined(known, trace)
    newest = sorted(merged.values(), key=lambda trace: (-trace.start_ns, trace.trace_id))
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return TraceSearchResult(tuple(newest[:limit]), tuple(notes))


def _one(store: SpanReadable, alternative: Alternative, start_ns: int, end_ns: int, limit: int) -> TraceSearchResult:
    requested = limit
    while True:
        found = store.search(span_query(alternative, start_ns=start_ns, end_ns=end_ns, limit=requested))
        kept = [trace for trace in found if all(holds(trace, condition) for condition in alternative.traces)]
        if len(kept) >= limit or len(found) < requested:
            return TraceSearchResult(tuple(kept[:limit]))
        if requested >= LOOKED_AT_MAX:
            note = f"only the newest {requested} traces were searched; use a shorter period, or add conditions on spans"
            return TraceSearchResult(tuple(kept), (note,))
        requested = min(10 * requested, LOOKED_AT_MAX)


def _joined(one: TraceSummary, other: TraceSummary) -> TraceSummary:
    matched = tuple(dict.fromkeys((*one.matched, *other.matched)))[:MATCHED_MAX]
    return TraceSummary(
        trace_id=one.trace_id,
        root_service=one.root_service,
        root_name=one.root_name,
        start_ns=one.start_ns,
        duration_ns=one.duration_ns,
        spans=one.spans,
        errors=one.errors,
        matched=matched,
    )


def summary_of(spans: Sequence[Span], matched: Sequence[str]) -> TraceSummary:
    """A trace in short, from all of its spans; at least one."""
    first = min(spans, key=lambda span: (span.start_ns, span.span_id))
    root = next((span for span in spans if not span.parent_id), first)
    return TraceSummary(
        trace_id=root.trace_id,
        root_service=root.service,
        root_name=root.name,
        start_ns=first.start_ns,
        duration_ns=max(span.end_ns for span in spans) - first.start_ns,
        spans=len(spans),
        errors=sum(span.status is SpanStatus.ERROR for span in spans),
        matched=tuple(matched[:MATCHED_MAX]),
    )


# How long do spans take, by service, name or status? Counts and quantiles, estimated from buckets of durations.


GROUPABLE = (SpanField.SERVICE, SpanField.NAME, SpanField.STATUS, SpanField.KIND)
QUANTILES = (0.5, 0.95, 0.99)


def fields_of(names: Sequence[str]) -> tuple[SpanField, ...]:
    """What to group by. Raises E0201."""
    known = {field.value: field for field in GROUPABLE}
    for text in names:
        if text not in known:
            hint = f"choose from {', '.join(known)}"
            raise HarchError("E0201", f"spans are not grouped by `{text[:40]}`", field="by", hint=hint)
    return tuple(dict.fromkeys(known[text] for text in names))


def counted_query(query: TraceQuery, *, start_ns: int, end_ns: int) -> SpanQuery:
    """What a store can count at once. Raises E0691 for alternatives and for conditions on whole traces."""
    (first, *others) = query.alternatives
    if others or first.traces:
        raise HarchError(
            "E0691",
            "only spans that satisfy all conditions can be counted",
            hint="leave out `||` and conditions on whole traces",
        )
    return span_query(first, start_ns=start_ns, end_ns=end_ns, limit=1)


def quantile_ns(buckets: Sequence[int], quantile: float) -> int | None:
    """The estimated duration that this share of the spans did not exceed; None without spans.

    Bounds of buckets grow by a factor of 1.41, and inside of one its spans are taken for evenly spread.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, before = quantile * total, 0
    for place, count in enumerate(buckets):
        if count and before + count >= rank:
            if place >= len(BUCKET_BOUNDS_NS):
                return BUCKET_BOUNDS_NS[-1]
            low = BUCKET_BOUNDS_NS[place - 1] if place else 0
            return round(low + (BUCKET_BOUNDS_NS[place] - low) * (rank - before) / count)
        before += count
    return BUCKET_BOUNDS_NS[-1]


def group_view(group: SpanGroup, by: Sequence[SpanField]) -> dict[str, object]:
    """A group as JSON. `p50Ns` and the others are estimated."""
    return {
        **{field.value: value for field, value in zip(by, group.key, strict=True)},
        "count": group.count,
        "errors": group.errors,
        "meanNs": group.duration_sum_ns // group.count if group.count else None,
        **{f"p{round(quantile * 100)}Ns": quantile_ns(group.buckets, quantile) for quantile in QUANTILES},
    }


# What was logged while a trace ran? The lines that carry its id, whatever wrote them.


LINES_MAX = 1000
MARGIN_NS = 60 * 10**9  # before the first and after the last span; clocks differ, and lines come late
SCANNED_BYTES_MAX = 4 << 30


@dataclass(frozen=True, slots=True)
class TraceLine:
    time_ns: int
    text: str
    labels: Labels
    level: str
    trace_id: str
    span_id: str

    @property
    def json(self) -> dict[str, object]:
        return {
            "timeUnixNano": str(self.time_ns),
            "line": self.text,
            "level": self.level,
            "labels": dict(self.labels),
            "traceID": self.trace_id,
            "spanID": self.span_id,
        }


def lines_of_trace(
    store: LogReadable, trace_id: str, *, start_ns: int, end_ns: int, limit: int, stopped: Callable[[], bool]
) -> list[TraceLine]:
    """The first lines of the trace, in order of time. Raises E0624 if there is too much to look at."""
    request = LogRequest(
        matchers=(),
        start_ns=max(0, start_ns - MARGIN_NS),
        end_ns=end_ns + MARGIN_NS,
        metadata=(Matcher(MatchKind.EQUAL, TRACE_ID, trace_id),),
        order=LineOrder.OLDEST_FIRST,
        limit=min(limit, LINES_MAX),
        scanned_bytes_max=SCANNED_BYTES_MAX,
    )
    return scanned(store, request, stopped)


def scanned(store: LogReadable, request: LogRequest, stopped: Callable[[], bool]) -> list[TraceLine]:
    """The answer to a request with a limit, line by line."""
    found: list[TraceLine] = []
    for chunk in store.scan(request, stopped):
        for place, text in enumerate(chunk.bodies):
            stream = chunk.streams[int(chunk.stream_at[place])]
            own = dict(chunk.metadata[place]) if chunk.metadata else {}
            level = own.get(LEVEL) or dict(stream).get(LEVEL, "")
            time_ns = int(chunk.times_ns[place])
            found.append(TraceLine(time_ns, text, stream, level, own.get(TRACE_ID, ""), own.get(SPAN_ID, "")))
    return found
