"""The spans of a trace become a tree that tells what happened, also when some are missing or clocks differ."""

from __future__ import annotations

from typing import Any

from trace_world import MS, START_NS, span

from harch.sentinel.model.spans import Span, SpanKind
from harch.sentinel.traces.tree import Oddity, SpanNode, TraceTree, critical_path, gaps_of, tree_of
from harch.sentinel.traces.view import trace_view


def view(spans: list[Span], spans_max: int = 1000) -> dict[str, Any]:
    return dict(trace_view(tree_of(spans), spans_max=spans_max))


def outline(tree: TraceTree) -> list[tuple[str, int]]:
    return [(node.span.name, node.depth) for node in tree.nodes]


def path(tree: TraceTree) -> list[tuple[str, float, float, bool]]:
    return [
        (
            tree.nodes[one.place].span.name if one.place >= 0 else "",
            (one.start_ns - START_NS) / MS,
            (one.end_ns - START_NS) / MS,
            one.is_waiting,
        )
        for one in critical_path(tree)
    ]


def node(tree: TraceTree, name: str) -> SpanNode:
    return next(one for one in tree.nodes if one.span.name == name)


def test_children_stand_below_their_parents_in_order_of_start() -> None:
    spans = [span("late", 5, 1, "root"), span("leaf", 2, 1, "early"), span("early", 1, 3, "root"), span("root", 0, 10)]
    assert outline(tree_of(spans)) == [("root", 0), ("early", 1), ("leaf", 2), ("late", 1)]


def test_own_time_is_what_no_child_covers() -> None:
    spans = [
        span("root", 0, 10),
        span("a", 1, 4, "root"),
        span("b", 3, 4, "root"),  # overlaps a
        span("c", 9, 5, "root"),  # outlives its parent
    ]
    tree = tree_of(spans)
    assert node(tree, "root").self_ns == 3 * MS
    assert node(tree, "c").self_ns == 5 * MS


def test_a_span_without_its_parent_stands_at_the_top_and_says_so() -> None:
    spans = [span("root", 0, 10), span("orphan", 2, 1, "never sent"), span("below", 2, 1, "orphan")]
    tree = tree_of(spans)
    assert outline(tree) == [("root", 0), ("orphan", 0), ("below", 1)]
    assert node(tree, "orphan").oddities == (Oddity.PARENT_MISSING,)
    assert "the parent of 1 span is not stored here" in view(spans)["notes"]


def test_spans_that_name_each_other_as_parents_are_all_shown() -> None:
    tree = tree_of([span("a", 1, 1, "b"), span("b", 0, 1, "c"), span("c", 2, 1, "a"), span("self", 3, 1, "self")])
    assert outline(tree) == [("b", 0), ("a", 1), ("c", 2), ("self", 0)]
    assert [one.span.name for one in tree.nodes if Oddity.CYCLE in one.oddities] == ["b", "self"]


def test_of_spans_with_the_same_id_the_first_counts() -> None:
    assert len(tree_of([span("root", 0, 10), span("root", 0, 10)]).nodes) == 1


def test_a_clock_that_is_behind_is_told_apart_from_an_early_child() -> None:
    spans = [
        span("root", 10, 10, hub="dakhla"),
        span("far", 7, 2, "root", hub="dakar"),
        span("near", 9, 2, "root", hub="dakhla"),
    ]
    tree = tree_of(spans)
    assert (node(tree, "far").oddities, node(tree, "far").skew_ns) == ((Oddity.CLOCK_SKEW,), 3 * MS)
    assert (node(tree, "near").oddities, node(tree, "near").skew_ns) == ((Oddity.EARLY,), MS)
    assert any("begins 3 ms before its parent: clock behind" in note for note in view(spans)["notes"])


def test_a_server_that_ends_after_its_client_has_a_clock_that_is_ahead() -> None:
    spans = [
        span("call", 0, 10, kind=SpanKind.CLIENT, hub="dakhla"),
        span("serve", 6, 6, "call", kind=SpanKind.SERVER, hub="dakar"),
    ]
    assert node(tree_of(spans), "serve").skew_ns == -2 * MS


def test_the_critical_path_follows_what_ended_last() -> None:
    spans = [
        span("root", 0, 10),
        span("first", 1, 3, "root"),
        span("beside", 1, 2, "root"),  # faster than `first`, which runs at the same time
        span("second", 5, 4, "root"),
        span("inner", 6, 2, "second"),
    ]
    assert path(tree_of(spans)) == [
        ("root", 0, 1, False),
        ("first", 1, 4, False),
        ("root", 4, 5, False),
        ("second", 5, 6, False),
        ("inner", 6, 8, False),
        ("second", 8, 9, False),
        ("root", 9, 10, False),
    ]


def test_work_that_outlives_its_request_is_on_the_path_with_the_wait_for_it() -> None:
    spans = [span("submit", 0, 2), span("answered", 1, 0.5, "submit"), span("run", 10, 90, "submit")]
    assert path(tree_of(spans)) == [
        ("submit", 0, 1, False),
        ("answered", 1, 1.5, False),
        ("submit", 1.5, 2, False),
        ("submit", 2, 10, True),
        ("run", 10, 100, False),
    ]


def test_of_spans_that_end_together_the_one_that_tells_more_is_on_the_path() -> None:
    spans = [
        span("submit", 0, 2),
        span("whole", 1, 99.5, "submit"),  # sums up what its siblings tell, and ends a little later
        span("wait", 1, 9, "submit"),
        span("run", 10, 90, "submit"),
        span("task", 11, 88, "run"),
    ]
    names = [name for name, _, _, is_waiting in path(tree_of(spans)) if not is_waiting]
    assert names == ["submit", "wait", "run", "task", "run"]


def test_gaps_are_times_without_any_span() -> None:
    tree = tree_of([span("a", 0, 10), span("b", 2, 3, "a"), span("c", 12, 1), span("d", 20, 1)])
    found = [((gap.start_ns - START_NS) // MS, gap.duration_ns // MS) for gap in gaps_of(tree, 10)]
    assert found == [(10, 2), (13, 7)]
    assert len(gaps_of(tree, 1)) == 1


def chain(length: int) -> list[Span]:
    return [span("0", 0, length)] + [span(str(i), i, length - i, str(i - 1)) for i in range(1, length)]


def test_a_chain_of_spans_may_be_as_long_as_the_trace() -> None:
    shown = view(chain(5000), spans_max=100)
    assert [one["depth"] for one in shown["spans"]] == list(range(100))
    assert shown["spanCount"] == 5000
    assert "100 of 5000 spans are listed" in shown["notes"][0]


def test_a_view_that_is_cut_keeps_failures_and_the_path_and_counts_the_rest() -> None:
    many = [span(f"quick{i}", 1 + i / 1000, 0.0005, "root") for i in range(500)]
    spans = [span("root", 0, 10), *many, span("slow", 2, 7, "root"), span("failed", 3, 0.0001, "root", error=True)]
    shown = view(spans, spans_max=4)
    assert {"root", "slow", "failed"} <= {one["name"] for one in shown["spans"]}
    assert len(shown["spans"]) == 4
    assert shown["spans"][0]["childrenNotShown"] == 499
    assert shown["errorCount"] == 1
