"""Trees of traces: whatever spans arrive, all of them are placed once and the path covers the whole time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.spans import (
    BUCKET_BOUNDS_NS,
    Comparison,
    Span,
    SpanCondition,
    SpanEvent,
    SpanField,
    SpanKind,
    SpanLink,
    SpanQuery,
    SpanStatus,
)
from harch.sentinel.traces.query import Alternative, TraceCondition, TraceField, TraceQuery, holds
from harch.sentinel.traces.search import WINDOWS_NS, quantile_ns, search
from harch.sentinel.traces.tree import NO_PARENT, critical_path, gaps_of, time_on_path, tree_of
from harch.sentinel.traces.view import trace_view
from harch.testing.telemetry_stores import MemorySpans

TRACE = "0af7651916cd43dd8448eb211c80319c"
IDS = st.integers(1, 12).map(lambda number: f"{number:016x}")
VALUES = st.text(max_size=5) | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
ATTRIBUTES = st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=3).map(
    lambda pairs: tuple(sorted(pairs.items()))
)


def spans(trace: str = TRACE) -> st.SearchStrategy[Span]:
    return st.builds(
        Span,
        trace_id=st.just(trace),
        span_id=IDS,
        parent_id=IDS | st.just(""),
        service=st.sampled_from(["hub", "agent"]),
        name=st.sampled_from(["submit", "place", "run"]),
        start_ns=st.integers(1, 60),
        duration_ns=st.integers(0, 60),
        kind=st.sampled_from(SpanKind),
        status=st.sampled_from(SpanStatus),
        status_message=st.text(max_size=5),
        attributes=ATTRIBUTES,
        resource=ATTRIBUTES,
        events=st.lists(st.builds(SpanEvent, st.integers(1, 100), st.text(max_size=5), ATTRIBUTES), max_size=2).map(
            tuple
        ),
        links=st.lists(st.builds(SpanLink, st.just(TRACE), IDS, ATTRIBUTES), max_size=2).map(tuple),
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(spans(), min_size=1, max_size=14), st.integers(1, 14))
def test_every_span_is_placed_once_and_the_path_has_no_holes(found: list[Span], spans_max: int) -> None:
    tree = tree_of(found)
    assert sorted(node.span.span_id for node in tree.nodes) == sorted({span.span_id for span in found})
    for place, node in enumerate(tree.nodes):
        assert node.parent < place
        assert 0 <= node.self_ns <= node.span.duration_ns
        assert all(tree.nodes[child].parent == place for child in node.children)
        assert node.depth == (0 if node.parent == NO_PARENT else tree.nodes[node.parent].depth + 1)
    path = critical_path(tree)
    reached = tree.start_ns
    for segment in path:
        assert segment.start_ns == reached
        reached = segment.end_ns
    assert reached == tree.end_ns
    for place, on_path_ns in time_on_path(path).items():
        assert on_path_ns <= tree.nodes[place].span.duration_ns
    for gap in gaps_of(tree, 100):
        assert all(node.span.end_ns <= gap.start_ns or node.span.start_ns >= gap.end_ns for node in tree.nodes)
    view = trace_view(tree, spans_max=spans_max)
    assert 1 <= len(view["spans"]) <= spans_max  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(st.lists(spans(), min_size=1, max_size=6))
def test_spans_leave_as_they_came(found: list[Span]) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from harch.sentinel.collect.otlp.logs_and_traces import exported_spans
    from harch.sentinel.collect.otlp.messages import JSON, read_message
    from harch.sentinel.http.messages import to_json
    from harch.sentinel.traces.otlp import OTLP, message_of, resource_spans

    sent = ExportTraceServiceRequest.FromString(message_of(found).SerializeToString())
    written = to_json({"resourceSpans": resource_spans(found, OTLP)})
    again = read_message(written, JSON, ExportTraceServiceRequest())
    expected = sorted(map(repr, found))
    assert sorted(map(repr, exported_spans(sent).spans)) == expected
    assert sorted(map(repr, exported_spans(again).spans)) == expected


TRACES = st.integers(1, 6).map(lambda number: f"{number:032x}")
HOUR = WINDOWS_NS[0]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(TRACES, IDS, st.integers(0, 400), st.integers(0, 3), st.sampled_from(["a", "b", "c"])), max_size=25
    ),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_a_search_without_a_start_finds_the_newest_of_all_time(
    rows: list[tuple[str, str, int, int, str]], limit: int, hours_min: int
) -> None:
    store = MemorySpans()
    store.append(
        [Span(trace, span, "", "hub", name, hours * HOUR, width * HOUR) for trace, span, hours, width, name in rows]
    )
    name_is_a = store_condition("a")
    query = TraceQuery(
        (
            Alternative((name_is_a,), (TraceCondition(TraceField.DURATION, Comparison.AT_LEAST, hours_min * HOUR),)),
            Alternative((store_condition("b"),)),
        )
    )
    end_ns = 401 * HOUR
    found = search(store, query, start_ns=None, end_ns=end_ns, limit=limit)
    everything = {
        one.trace_id: one
        for alternative in query.alternatives
        for one in store.search(SpanQuery(0, end_ns, alternative.spans, limit=1000))
        if all(holds(one, condition) for condition in alternative.traces)
    }
    newest = sorted(everything.values(), key=lambda one: (-one.start_ns, one.trace_id))[:limit]
    assert [one.trace_id for one in found.traces] == [one.trace_id for one in newest]
    assert found.notes == ()


def store_condition(name: str) -> SpanCondition:
    return SpanCondition(SpanField.NAME, Comparison.EQUAL, name)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=40), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_an_estimated_quantile_is_in_the_bucket_of_the_true_one(durations: list[int], quantile: float) -> None:
    store = MemorySpans()
    store.append([Span(TRACE, f"{i:016x}", "", "hub", "x", 1, value) for i, value in enumerate(durations)])
    (group,) = store.statistics(SpanQuery(0, 10), (SpanField.SERVICE,))
    estimated = quantile_ns(group.buckets, quantile)
    rank = max(1, -(-round(quantile * 10**6) * len(durations) // 10**6))
    true = sorted(durations)[rank - 1]
    bounds = (0, *BUCKET_BOUNDS_NS)
    assert estimated is not None
    upper = next((bound for bound in BUCKET_BOUNDS_NS if true <= bound), BUCKET_BOUNDS_NS[-1])
    lower = max((bound for bound in bounds if bound < true), default=0)
    assert min(lower, upper) <= estimated <= upper
