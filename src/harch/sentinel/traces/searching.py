"""How are traces found? Every alternative of a query is asked of the store, the newest hours first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.sentinel.model.spans import Span, SpanReadable, SpanStatus, TraceSummary
from harch.sentinel.traces.query import Alternative, TraceQuery, holds, span_query

LIMIT = 20
LIMIT_MAX = 1000
LOOKED_AT_MAX = 2000  # traces, for conditions that only a whole trace can satisfy
MATCHED_MAX = 100
_HOUR_NS = 3600 * 10**9
WINDOWS_NS = (_HOUR_NS, 24 * _HOUR_NS, 7 * 24 * _HOUR_NS)  # then everything
_TOO_MUCH = "E0625"


@dataclass(frozen=True, slots=True)
class Found:
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
) -> Found:
    """Without a start the search goes back as far as it must. Raises E0625 if the store has too much to look at."""
    if query.trace_id:
        spans = store.trace(query.trace_id)
        return Found((summary_of(spans, ()),)) if spans else Found()
    if start_ns is not None:
        return _within(store, query, start_ns, end_ns, limit)
    found, reached_ns = Found(), end_ns
    for width_ns in (*WINDOWS_NS, end_ns):
        begin_ns = max(0, end_ns - width_ns)
        try:
            found = _merged((found, _within(store, query, begin_ns, reached_ns, limit)), limit)
        except HarchError as problem:
            if problem.code != _TOO_MUCH or not found.traces:
                raise
            return Found(found.traces, (*found.notes, f"older traces were not looked at: {problem.message}"))
        # What was not found has no such span since `begin_ns`, so it began before.
        is_enough = sum(trace.start_ns >= begin_ns for trace in found.traces) >= limit
        if is_enough or found.notes or begin_ns == 0 or stopped():
            break
        reached_ns = begin_ns
    return found


def _within(store: SpanReadable, query: TraceQuery, start_ns: int, end_ns: int, limit: int) -> Found:
    return _merged([_one(store, one, start_ns, end_ns, limit) for one in query.alternatives], limit)


def _merged(parts: Sequence[Found], limit: int) -> Found:
    """The newest of all parts; a trace that several of them found is there once, with all spans that matched."""
    merged: dict[str, TraceSummary] = {}
    for part in parts:
        for trace in part.traces:
            known = merged.get(trace.trace_id)
            merged[trace.trace_id] = trace if known is None else _joined(known, trace)
    newest = sorted(merged.values(), key=lambda trace: (-trace.start_ns, trace.trace_id))
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return Found(tuple(newest[:limit]), tuple(notes))


def _one(store: SpanReadable, alternative: Alternative, start_ns: int, end_ns: int, limit: int) -> Found:
    asked = limit
    while True:
        found = store.search(span_query(alternative, start_ns=start_ns, end_ns=end_ns, limit=asked))
        kept = [trace for trace in found if all(holds(trace, condition) for condition in alternative.traces)]
        if len(kept) >= limit or len(found) < asked:
            return Found(tuple(kept[:limit]))
        if asked >= LOOKED_AT_MAX:
            note = f"only the newest {asked} traces were looked at; ask for a shorter time, or add conditions on spans"
            return Found(tuple(kept), (note,))
        asked = min(10 * asked, LOOKED_AT_MAX)


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
