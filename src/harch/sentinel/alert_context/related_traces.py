"""Which traces belong to an alert? Those that exemplars and log lines name, failures of its place, and the slowest."""

# harch: pure

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from harch.sentinel.alert_context.queries import Identity, span_conditions, wider_identity
from harch.sentinel.model.spans import (
    BUCKET_BOUNDS_NS,
    Comparison,
    SpanCondition,
    SpanField,
    SpanQuery,
    SpanReadable,
    SpanStatus,
    TraceSummary,
)
from harch.sentinel.traces.query import Alternative, TraceQuery, print_query, trace_id_of
from harch.sentinel.traces.search import quantile_ns, summary_of

RELATED_TRACES_MAX = 12
NAMED_MAX = 10  # traces that are looked up by id
FAILED_MAX = 20
SLOW_LOOKED_AT = 50
SLOW_QUANTILE = 0.95
SLOW_SHARE = 4  # beside one that took four times as long, a trace is not slow
SPANS_COUNTED_MAX = 20_000_000
_ORDER = ("exemplar", "log", "error", "error nearby", "slow")


@dataclass(frozen=True, slots=True)
class TraceReasons:
    """Ids that were found elsewhere: at metrics, and in log lines."""

    exemplars: Collection[str] = ()
    logged: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class RelatedTrace:
    summary: TraceSummary
    why: tuple[str, ...]

    @property
    def json(self) -> dict[str, object]:
        one = self.summary
        return {
            "traceID": one.trace_id,
            "rootServiceName": one.root_service,
            "rootTraceName": one.root_name,
            "startTimeUnixNano": str(one.start_ns),
            "durationNs": one.duration_ns,
            "spanCount": one.spans,
            "errorCount": one.errors,
            "why": list(self.why),
        }


@dataclass(frozen=True, slots=True)
class RelatedTraces:
    traces: tuple[RelatedTrace, ...] = ()
    query: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    summaries: dict[str, TraceSummary] = field(default_factory=dict)
    why: dict[str, list[str]] = field(default_factory=dict)

    def add(self, summary: TraceSummary, why: str) -> None:
        self.summaries.setdefault(summary.trace_id, summary)
        reasons = self.why.setdefault(summary.trace_id, [])
        if why not in reasons:
            reasons.append(why)


def related_traces(
    store: SpanReadable, identity: Identity, reasons: TraceReasons, *, start_ns: int, end_ns: int
) -> RelatedTraces:
    """Raises E0625 if the store has too much to look at."""
    found = _Found()
    for why, ids in (("exemplar", reasons.exemplars), ("log", reasons.logged)):
        for trace_id in list(ids)[:NAMED_MAX]:
            known = trace_id_of(trace_id)
            if known is not None and (spans := store.trace(known)):
                found.add(summary_of(spans, ()), why)
    tags = store.tag_names(start_ns, end_ns)
    conditions = span_conditions(identity, tags)
    if not conditions:
        note = "no span in this period has an attribute of the alert; traces come from exemplars and log lines"
        return RelatedTraces(_selected(found), "", (note,))
    query = SpanQuery(start_ns, end_ns, conditions, limit=FAILED_MAX, scanned_spans_max=SPANS_COUNTED_MAX)
    failed = _failed(store, query)
    for summary in failed:
        found.add(summary, "error")
    wider = span_conditions(wider_identity(identity), tags)
    if not failed and wider not in ((), conditions):
        for summary in _failed(store, replace(query, conditions=wider)):
            found.add(summary, "error nearby")
    for summary in _slowest(store, query):
        found.add(summary, "slow")
    return RelatedTraces(_selected(found), print_query(TraceQuery((Alternative(conditions),))))


def _failed(store: SpanReadable, query: SpanQuery) -> Sequence[TraceSummary]:
    failed = SpanCondition(SpanField.STATUS, Comparison.EQUAL, SpanStatus.ERROR.value)
    return store.search(replace(query, conditions=(*query.conditions, failed)))


def _slowest(store: SpanReadable, query: SpanQuery) -> list[TraceSummary]:
    """Among the newest traces with a span in the slowest twentieth, the longest."""
    groups = store.statistics(query, (SpanField.KIND,))
    buckets = [sum(counts) for counts in zip(*(group.buckets for group in groups), strict=True)]
    estimated_ns = quantile_ns(buckets, SLOW_QUANTILE)
    if not estimated_ns:
        return []
    # Down to the bound of its bucket: the true quantile is somewhere in it.
    least_ns = (0, *BUCKET_BOUNDS_NS)[bisect_left(BUCKET_BOUNDS_NS, estimated_ns)]
    slow = SpanCondition(SpanField.DURATION, Comparison.AT_LEAST, least_ns)
    summaries = store.search(replace(query, conditions=(*query.conditions, slow), limit=SLOW_LOOKED_AT))
    longest = sorted(summaries, key=lambda one: (-one.duration_ns, one.trace_id))[: RELATED_TRACES_MAX // 2]
    return [one for one in longest if one.duration_ns * SLOW_SHARE >= longest[0].duration_ns]


def _selected(found: _Found) -> tuple[RelatedTrace, ...]:
    """Traces with the best reasons first; each reason has its turn, so that one kind does not push out the others."""
    by_reason = {
        why: sorted(
            (one for one in found.summaries.values() if why in found.why[one.trace_id]),
            key=lambda one: (-one.errors if why == "error" else 0, -one.duration_ns, one.trace_id),
        )
        for why in _ORDER
    }
    chosen: dict[str, RelatedTrace] = {}
    for turn in range(len(found.summaries)):
        for why in _ORDER:
            if turn < len(by_reason[why]) and len(chosen) < RELATED_TRACES_MAX:
                one = by_reason[why][turn]
                chosen.setdefault(one.trace_id, RelatedTrace(one, tuple(found.why[one.trace_id])))
    return tuple(chosen.values())
