"""Does no more work wait than can still be done in time, and does what has least slack go first?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from planning_cases import job

from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.slack import GPUS_LOST, SHARE_LOST, crowd_of
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand

POOLS = (Pool("a", "gpu", 100, 1.0), Pool("b", "gpu", 1000, 1.0))
ONLY_A, BOTH = (frozenset("a"), "gpu"), (frozenset("ab"), "gpu")
USABLE_A = 100 * (1 - SHARE_LOST) - GPUS_LOST


def coming(hubs: str, rate: float, *, deferrable: bool) -> dict[ClassKey, ExpectedWork]:
    return {ClassKey(frozenset(hubs), "gpu", deferrable): ExpectedWork(rate, 2.0, 24.0 if deferrable else 0.0)}


def many(count: int, hubs: str = "a") -> tuple[FlexibleWork, ...]:
    """Each 40 GPU-hours, to be started within 6 h and an hour more for each that follows."""
    return tuple(job(f"job-{n:03d}", list(hubs), gpus=8, hours=5.0, wait_h_max=6.0 + n) for n in range(count))


def test_in_an_idle_fleet_everything_may_wait() -> None:
    crowd = crowd_of(POOLS, WorkDemand(many(1)), ())
    assert not crowd.due
    assert not crowd.tight
    assert not crowd.full


def test_only_the_excess_starts_now_and_least_slack_first() -> None:
    """A hundred jobs of the same slack, 4,000 GPU-hours; 11 h of the hub hold fewer."""
    works = tuple(job(f"job-{n:03d}", ["a"], gpus=8, hours=5.0, wait_h_max=6.0) for n in range(100))
    due = crowd_of(POOLS, WorkDemand(works), ()).due
    excess = 100 * 40 - 11 * USABLE_A
    assert excess <= 40 * len(due) < excess + 40
    sooner = job("soon", ["a"], gpus=8, hours=5.0, wait_h_max=1.0)
    assert "soon" in crowd_of(POOLS, WorkDemand((*works, sooner)), ()).due


def test_running_work_leaves_less_room_for_what_waits() -> None:
    busy = job("busy", ["a"], gpus=80, hours=40.0, running_at="a")
    assert not crowd_of(POOLS, WorkDemand(many(10)), ()).due
    assert crowd_of(POOLS, WorkDemand(many(10)), (busy,)).due


def test_work_to_come_that_cannot_wait_leaves_less_room_too() -> None:
    assert crowd_of(POOLS, WorkDemand(many(10), coming("a", 85.0, deferrable=False)), ()).due


def test_where_all_gpus_are_needed_for_what_comes_nothing_waits() -> None:
    crowd = crowd_of(POOLS, WorkDemand(many(1), coming("a", 90.0, deferrable=True)), ())
    assert crowd.tight == {ONLY_A}
    assert crowd.full == {ONLY_A}


def test_work_with_a_choice_is_bound_by_all_its_hubs_together() -> None:
    demand = WorkDemand((*many(1), *many(1, "ab")), coming("ab", 1100.0, deferrable=True))
    assert crowd_of(POOLS, demand, ()).tight == {ONLY_A, BOTH}


def test_before_work_is_due_what_runs_is_no_longer_put_off() -> None:
    works = tuple(job(f"job-{n:03d}", ["a"], gpus=8, hours=5.0, wait_h_max=6.0) for n in range(22))
    crowd = crowd_of(POOLS, WorkDemand(works), ())
    assert not crowd.due
    assert crowd.full == {ONLY_A}


@given(
    st.lists(st.tuples(st.integers(1, 32), st.floats(0.5, 12.0), st.floats(0.0, 24.0)), max_size=60),
    st.floats(0.0, 120.0),
)
def test_what_may_go_on_waiting_fits_in_later(jobs: list[tuple[int, float, float]], rate: float) -> None:
    works = tuple(
        job(f"job-{n:03d}", ["a"], gpus=gpus, hours=hours, wait_h_max=wait_h)
        for n, (gpus, hours, wait_h) in enumerate(jobs)
    )
    due = crowd_of(POOLS, WorkDemand(works, coming("a", rate, deferrable=False)), ()).due
    left = sorted((work for work in works if work.id not in due), key=lambda work: work.wait_h_max)
    if len(due) < len(works):
        asked = 0.0
        started = sum(work.gpus * work.hours_left for work in works if work.id in due)
        for work in left:
            asked += work.gpus * work.hours_left
            until_h = work.wait_h_max + work.hours_left
            assert asked <= USABLE_A * until_h + 1e-6, "more waits than all GPUs of the hub can do"
        assert all(work.wait_h_max <= left[0].wait_h_max for work in works if work.id in due)
        assert started >= 0
