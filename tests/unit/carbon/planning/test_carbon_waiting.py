"""Does work wait only where power changes by enough, never past its promise, and leave room to whom it belongs?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import HOURS, hub, job, outlook

from harch.carbon.planning.capacity import FLAT_SHARE
from harch.carbon.planning.decisions import DecisionKind
from harch.carbon.planning.dispatch import RISK_G_PER_KWH_HOUR
from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook
from harch.carbon.planning.plan import CarbonPlan, plan_carbon
from harch.carbon.planning.slack import scarcity
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand

jobs_of_any_size = st.lists(
    st.tuples(st.integers(1, 16), st.floats(0.25, 6.0), st.floats(0.0, 7.0)), min_size=1, max_size=8
)


def grid(name: str, intensity: list[float]) -> HubHours:
    return HubHours(hub=name, grid_g_per_kwh=np.array(intensity), onsite_kw=np.zeros(HOURS))


def planned(view: PowerOutlook, works: list[FlexibleWork], **more: object) -> CarbonPlan:
    return plan_carbon(view, WorkDemand(tuple(works)), (), **more)  # type: ignore[arg-type]


def several(sizes: list[tuple[int, float, float]], hubs: list[str]) -> list[FlexibleWork]:
    return [
        job(f"job-{number}", hubs, gpus=gpus, hours=hours, wait_h_max=wait_h)
        for number, (gpus, hours, wait_h) in enumerate(sizes)
    ]


@given(jobs_of_any_size, st.floats(50, 900), st.floats(50, 900))
def test_where_power_never_changes_nothing_waits_however_full_the_cleaner_hub_is(
    sizes: list[tuple[int, float, float]], one: float, other: float
) -> None:
    plan = planned(outlook(hub("a", one), hub("b", other)), several(sizes, ["a", "b"]))
    assert {decision.verb for decision in plan.decisions} == {DecisionKind.START}
    assert all(decision.queues for decision in plan.decisions), "what finds no room belongs into a queue"


@given(jobs_of_any_size, st.lists(st.floats(0, 40), min_size=HOURS, max_size=HOURS))
def test_no_start_is_ever_planned_after_the_promise(
    sizes: list[tuple[int, float, float]], onsite_kw: list[float]
) -> None:
    works = several(sizes, ["a", "b"])
    plan = planned(outlook(hub("a", 500, onsite_kw), hub("b", 300)), works)
    waits = {work.id: work.wait_h_max for work in works}
    assert all(decision.start_step <= waits[decision.work_id] for decision in plan.decisions)
    assert all(decision.starts_by_h == waits[decision.work_id] for decision in plan.decisions)


def test_power_that_changes_little_is_waited_for_a_little_while_only() -> None:
    """Sixty grams: they pay for six hours, not for seven."""
    dirty = 400.0
    for clean_at, waits in ((6, True), (7, False)):
        intensity = [dirty] * HOURS
        intensity[clean_at] = dirty - 6 * RISK_G_PER_KWH_HOUR
        decision = planned(outlook(grid("a", intensity)), [job("one", ["a"], hours=1.0, wait_h_max=7.5)]).decisions[0]
        assert (decision.verb is DecisionKind.WAIT) is waits


def test_a_change_within_the_error_of_forecasts_is_no_change() -> None:
    almost = [500.0] * (HOURS - 1) + [500.0 * (1 - FLAT_SHARE) + 1]
    view = outlook(grid("a", almost))
    decision = planned(view, [job("one", ["a"], hours=1.0, wait_h_max=7.5)]).decisions[0]
    assert (decision.verb, decision.start_step) == (DecisionKind.START, 0)
    assert "carbon intensity hardly changes" in decision.reason


def test_own_plants_that_may_fail_are_no_constant_power() -> None:
    """Foretold to blow in every hour: yet what finds no room stays out of the queue, to be weighed again."""
    full = job("full", ["a"], gpus=16, hours=8.0, running_at="a")
    plan = plan_carbon(outlook(hub("a", 500, [99] * HOURS)), WorkDemand((job("one", ["a"], wait_h_max=5),)), (full,))
    assert not plan.decisions[0].queues


def test_a_ceiling_is_waited_for_even_where_no_wait_pays() -> None:
    intensity = [500.0] * 7 + [460.0]
    work = job("one", ["a"], hours=1.0, wait_h_max=7.5, g_per_kwh_max=470.0)
    decision = planned(outlook(grid("a", intensity)), [work]).decisions[0]
    assert (decision.verb, decision.start_step) == (DecisionKind.WAIT, 7)


@pytest.mark.parametrize(("elsewhere_g", "hub_chosen"), [(480.0, "large"), (900.0, "small")])
def test_work_that_may_choose_leaves_small_hubs_to_work_that_may_not_unless_that_emits_much_more(
    elsewhere_g: float, hub_chosen: str
) -> None:
    view = PowerOutlook(
        (hub("small", 400), hub("large", elsewhere_g)), (Pool("small", "gpu", 16, 1.0), Pool("large", "gpu", 400, 1.0))
    )
    pinned = {ClassKey(frozenset({"small"}), "gpu", False): ExpectedWork(1.0, 2.0)}
    running = job("running", ["small"], gpus=10, hours=8.0, running_at="small")
    borrowed, host = job("guest", ["large", "small"], gpus=4), job("host", ["small"], gpus=4)
    for work, where in ((borrowed, hub_chosen), (host, "small")):
        plan = plan_carbon(view, WorkDemand((work,), pinned), (running,))
        assert plan.decisions[0].hub == where


@pytest.mark.parametrize(("hosts_use", "hub_chosen"), [(4.0, "small"), (14.0, "large")])
def test_where_hosts_need_most_of_a_pool_guests_leave_what_hosts_will_need(hosts_use: float, hub_chosen: str) -> None:
    """Eight of sixteen GPUs are free now."""
    view = PowerOutlook(
        (hub("small", 400), hub("large", 480)), (Pool("small", "gpu", 16, 1.0), Pool("large", "gpu", 400, 1.0))
    )
    pinned = {ClassKey(frozenset({"small"}), "gpu", True): ExpectedWork(hosts_use, 2.0, 8.0)}
    running = job("running", ["small"], gpus=8, hours=8.0, running_at="small")
    borrowed = job("guest", ["large", "small"], gpus=2)
    assert plan_carbon(view, WorkDemand((borrowed,), pinned), (running,)).decisions[0].hub == hub_chosen


def test_a_gang_is_scarce_by_its_share_of_what_it_may_use() -> None:
    assert scarcity(1, 1) == 0.0
    assert 0 < scarcity(8, 1000) < scarcity(8, 64) < scarcity(16, 64) == scarcity(64, 64) == 1.0
    assert scarcity(8, 0) == 1.0
