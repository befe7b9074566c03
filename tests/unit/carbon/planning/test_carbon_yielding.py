"""Does deferrable work give way to work that cannot wait, and no more of it than is needed?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.carbon.planning.slack import GPUS_STOPPED_PER_GPU_MAX, Holder, who_yields


def test_nobody_stops_where_there_is_room() -> None:
    assert who_yields(2, 4, [4, 8], [Holder("one", {0: 4}, 9.0)]) == ()


def test_the_one_with_most_slack_goes_first() -> None:
    holders = [Holder("soon", {0: 1}, 2.0), Holder("late", {0: 1}, 20.0)]
    assert who_yields(1, 1, [0], holders) == ("late",)


def test_a_task_gets_its_gpus_on_one_node() -> None:
    """Four GPUs on four nodes are no place for a task of four."""
    spread = [Holder(f"one-{node}", {node: 1}, 20.0) for node in range(4)]
    together = Holder("whole", {4: 4}, 5.0)
    assert who_yields(1, 4, [0, 0, 0, 0, 0], spread) is None
    assert who_yields(1, 4, [0, 0, 0, 0, 0], [*spread, together]) == ("whole",)


def test_what_is_free_already_counts() -> None:
    holders = [Holder("big", {0: 4}, 20.0), Holder("small", {1: 1}, 2.0)]
    assert who_yields(1, 4, [0, 3], holders) == ("small",), "the smallest stop that does"


def test_far_more_than_is_needed_is_never_stopped() -> None:
    wide = Holder("gang", dict.fromkeys(range(4), 8), 20.0)
    assert who_yields(1, 1, [0, 0, 0, 0], [wide]) is None


def test_nodes_that_are_kept_for_somebody_else_are_left_alone() -> None:
    holders = [Holder("on kept", {0: 4}, 20.0), Holder("elsewhere", {1: 4}, 5.0)]
    assert who_yields(1, 4, [4, 0], holders) == ()
    assert who_yields(1, 4, [4, 0], holders, closed={0}) == ("elsewhere",)
    assert who_yields(1, 4, [4, 0], holders, closed={0, 1}) is None


@given(
    st.integers(1, 4),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8), st.floats(0.0, 24.0)), max_size=12),
)
def test_after_the_stops_all_tasks_fit(
    tasks: int, gpus_per_task: int, free: list[int], held: list[tuple[int, int, float]]
) -> None:
    holders = [
        Holder(f"job-{number}", {node % len(free): gpus}, wait_h) for number, (node, gpus, wait_h) in enumerate(held)
    ]
    found = who_yields(tasks, gpus_per_task, free, holders)
    if found is None:
        return
    after = list(free)
    stopped = [holder for holder in holders if holder.id in found]
    for holder in stopped:
        for node, gpus in holder.gpus_on.items():
            after[node] += gpus
    assert sum(gpus // gpus_per_task for gpus in after) >= tasks
    assert sum(one.gpus for one in stopped) <= GPUS_STOPPED_PER_GPU_MAX * tasks * gpus_per_task
    assert len(set(found)) == len(found)
