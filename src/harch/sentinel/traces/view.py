"""How is a trace shown to programs? Its tree as one flat list with depths, the critical path, gaps, and what is odd."""

# harch: pure

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from harch.sentinel.model.spans import Attributes, AttributeValue, Span, SpanStatus
from harch.sentinel.traces.durations import short_duration
from harch.sentinel.traces.tree import (
    NO_PARENT,
    CriticalSegment,
    Oddity,
    TraceGap,
    TraceTree,
    critical_path,
    gaps_of,
    time_on_path,
)

Json = dict[str, object]

SPANS_IN_VIEW = 1000
SPANS_IN_VIEW_MAX = 10_000
SEGMENTS_MAX = 500
GAPS_MAX = 20
EVENTS_IN_VIEW_MAX = 100  # of one span
SKEWS_IN_NOTES_MAX = 5
PATH_SHARE_MIN = 0.01  # of the trace's duration, from which on a span matters as much as a failure


def trace_view(tree: TraceTree, *, spans_max: int = SPANS_IN_VIEW) -> Json:
    """Times of spans count from the start of the trace. `notes` say in sentences what is missing or odd."""
    path = critical_path(tree)
    on_path = time_on_path(path)
    visible = chosen(tree, on_path, spans_max)
    gaps = gaps_of(tree, GAPS_MAX)
    first = tree.nodes[tree.roots[0]].span
    root = next((tree.nodes[place].span for place in tree.roots if not tree.nodes[place].span.parent_id), first)
    return {
        "traceID": tree.trace_id,
        "rootServiceName": root.service,
        "rootTraceName": root.name,
        "startTimeUnixNano": str(tree.start_ns),
        "durationNs": tree.duration_ns,
        "spanCount": len(tree.nodes),
        "errorCount": tree.errors,
        "services": _services(tree),
        "spans": [_span_view(tree, place, on_path.get(place, 0), visible) for place in sorted(visible)],
        "criticalPath": [_segment_view(tree, segment) for segment in _longest(path)],
        "gaps": [_gap_view(tree, gap) for gap in gaps],
        "notes": _notes(tree, len(visible), gaps),
    }


def chosen(tree: TraceTree, on_path: dict[int, int], spans_max: int) -> set[int]:
    """Which spans to show if not all: what the duration hangs on, failures, then the longest; each with its parents."""
    if len(tree.nodes) <= spans_max:
        return set(range(len(tree.nodes)))

    def weight(place: int) -> tuple[bool, bool, int, int, int]:
        span, path_ns = tree.nodes[place].span, on_path.get(place, 0)
        is_root = tree.nodes[place].parent == NO_PARENT
        matters = span.status is SpanStatus.ERROR or path_ns >= tree.duration_ns * PATH_SHARE_MIN
        return (is_root, matters, path_ns, span.duration_ns, -place)

    visible: set[int] = set()
    left_out = 0
    for candidate in sorted(range(len(tree.nodes)), key=weight, reverse=True):
        missing: list[int] = []
        place = candidate
        while place != NO_PARENT and place not in visible and len(visible) + len(missing) < spans_max:
            missing.append(place)
            place = tree.nodes[place].parent
        if place == NO_PARENT or place in visible:
            visible.update(missing)
        else:
            left_out += 1
        if len(visible) >= spans_max or left_out >= spans_max:
            break
    return visible


def _span_view(tree: TraceTree, place: int, path_ns: int, visible: set[int]) -> Json:
    node = tree.nodes[place]
    span = node.span
    view: Json = {
        "spanID": span.span_id,
        "parentSpanID": span.parent_id,
        "depth": node.depth,
        "service": span.service,
        "name": span.name,
        "kind": span.kind.value,
        "status": span.status.value,
        "startNs": span.start_ns - tree.start_ns,
        "durationNs": span.duration_ns,
        "selfNs": node.self_ns,
        "criticalNs": path_ns,
        "attributes": _plain_values(span.attributes),
        "resource": _plain_values(span.resource),
    }
    if span.status_message:
        view["statusMessage"] = span.status_message
    if span.events:
        view["events"] = [
            {"timeNs": one.time_ns - tree.start_ns, "name": one.name, "attributes": _plain_values(one.attributes)}
            for one in span.events[:EVENTS_IN_VIEW_MAX]
        ]
    if span.links:
        view["links"] = [
            {"traceID": one.trace_id, "spanID": one.span_id, "attributes": _plain_values(one.attributes)}
            for one in span.links[:EVENTS_IN_VIEW_MAX]
        ]
    if node.oddities:
        view["odd"] = [oddity.value for oddity in node.oddities]
    if node.skew_ns:
        view["skewNs"] = node.skew_ns
    hidden = sum(child not in visible for child in node.children)
    if hidden:
        view["childrenNotShown"] = hidden
    return view


def _plain_values(attributes: Attributes) -> dict[str, AttributeValue]:
    return {name: _sayable(value) for name, value in attributes}


def _sayable(value: AttributeValue) -> AttributeValue:
    """JSON has no word for numbers that are none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _longest(path: Sequence[CriticalSegment]) -> list[CriticalSegment]:
    kept = sorted(path, key=lambda segment: -segment.duration_ns)[:SEGMENTS_MAX]
    return sorted(kept, key=lambda segment: segment.start_ns)


def _segment_view(tree: TraceTree, segment: CriticalSegment) -> Json:
    span = tree.nodes[segment.place].span if segment.place != NO_PARENT else None
    return {
        "spanID": span.span_id if span else "",
        "service": span.service if span else "",
        "name": span.name if span else "",
        "startNs": segment.start_ns - tree.start_ns,
        "durationNs": segment.duration_ns,
        "waiting": segment.is_waiting,
    }


def _gap_view(tree: TraceTree, gap: TraceGap) -> Json:
    return {
        "startNs": gap.start_ns - tree.start_ns,
        "durationNs": gap.duration_ns,
        "afterSpanID": tree.nodes[gap.after].span.span_id,
        "beforeSpanID": tree.nodes[gap.before].span.span_id,
    }


def _services(tree: TraceTree) -> list[Json]:
    """How much each service did, the one with the most time of its own first."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for node in tree.nodes:
        totals = counts[node.span.service]
        totals[0] += 1
        totals[1] += node.span.status is SpanStatus.ERROR
        totals[2] += node.self_ns
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1][2], pair[0]))
    return [
        {"service": name, "spans": spans, "errors": errors, "selfNs": self_ns}
        for name, (spans, errors, self_ns) in ordered
    ]


def _notes(tree: TraceTree, visible: int, gaps: Sequence[TraceGap]) -> list[str]:
    notes = []
    if visible < len(tree.nodes):
        notes.append(f"{visible} of {len(tree.nodes)} spans are listed: the critical path, failures, and the longest")
    odd = {oddity: [node for node in tree.nodes if oddity in node.oddities] for oddity in Oddity}
    if found := odd[Oddity.PARENT_MISSING]:
        notes.append(f"the parent of {_counted(len(found), 'span')} is not stored here")
    if found := odd[Oddity.CYCLE]:
        notes.append(f"{_counted(len(found), 'ring')} of parents broken; see `odd`")
    for node in sorted(odd[Oddity.CLOCK_SKEW], key=lambda one: -abs(one.skew_ns))[:SKEWS_IN_NOTES_MAX]:
        by = short_duration(abs(node.skew_ns))
        if node.skew_ns > 0:
            odd_time = f"begins {by} before its parent: clock behind, or parent recorded late"
        else:
            odd_time = f"ends {by} after the call that waited for it: clock ahead"
        notes.append(f"{_named(node.span)} {odd_time}")
    idle_ns = sum(gap.duration_ns for gap in gaps)
    if idle_ns > tree.duration_ns * PATH_SHARE_MIN:
        notes.append(f"no span ran in {_counted(len(gaps), 'gap')}, {short_duration(idle_ns)} in all")
    return notes


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _named(span: Span) -> str:
    return f"`{span.service}` (span {span.span_id})"
