"""Does every job get a hub and an hour that a person would choose, and keep its promise and its limits?"""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import HOURS, hub, job, outlook

from harch.carbon.planning.decisions import DecisionKind
from harch.carbon.planning.dispatch import Budgets, MoveRules
from harch.carbon.planning.outlook import Aims, HubHours, PowerOutlook
from harch.carbon.planning.plan import Announced, CarbonPlan, booked, plan_carbon
from harch.carbon.planning.work import FlexibleWork, WorkDemand

CHEAP_MOVES = MoveRules(again_h=0.1, kwh_per_gb=0.0)


def planned(
    view: PowerOutlook, *waiting: FlexibleWork, running: tuple[FlexibleWork, ...] = (), **more: object
) -> CarbonPlan:
    return plan_carbon(view, WorkDemand(waiting), running, **more)  # type: ignore[arg-type]


def test_deferrable_work_waits_and_says_by_when_it_starts() -> None:
    plan = planned(outlook(hub("a", 500, [0, 0, 0, 9, 9, 9])), job("one", ["a"], wait_h_max=5.5))
    decision = plan.decisions[0]
    assert (decision.verb, decision.hub, decision.start_step, decision.starts_by_h) == (DecisionKind.WAIT, "a", 3, 5.5)
    assert decision.saves_g > 3000


def test_work_without_slack_starts_now_whatever_the_power() -> None:
    plan = planned(outlook(hub("a", 500, [0, 9, 9, 9])), job("one", ["a"]))
    assert (plan.decisions[0].verb, plan.decisions[0].start_step) == (DecisionKind.START, 0)


def test_clean_hours_now_are_not_left_for_slightly_better_ones_later() -> None:
    """The better hub is full until the next hour; the other one has own power now, which would be lost."""
    full = job("full", ["a"], gpus=16, hours=1.0, running_at="a")
    view = outlook(hub("a", 500, [99] * HOURS, pue=1.2), hub("b", 500, [99] * HOURS, pue=1.25))
    plan = planned(view, job("one", ["a", "b"], wait_h_max=5.5), running=(full,))
    assert (plan.decisions[0].verb, plan.decisions[0].hub) == (DecisionKind.START, "b")


def test_a_plan_can_stand_on_the_classes_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    view, work = outlook(hub("a", 500, [0, 0, 0, 9, 9, 9])), job("one", ["a"], wait_h_max=5.5)
    whole = planned(view, work)
    monkeypatch.setattr("harch.carbon.planning.plan.plan_classes", None)  # the solver is not asked again
    quick = planned(view, work, classes=whole.classes)
    assert quick.decisions == whole.decisions


def test_announced_work_is_booked_from_its_start_to_its_end() -> None:
    view = outlook(hub("a", 500), gpus=10)
    busy_kw, gpus_free = booked(
        view, [job("now", ["a"], gpus=2, hours=1.5, running_at="a")], [Announced("a", "gpu", 4, 2, 1.25)]
    )
    assert gpus_free["a", "gpu"].tolist() == [8, 9, 6, 9, 10, 10, 10, 10]
    assert busy_kw[0].tolist() == [2, 1, 4, 1, 0, 0, 0, 0]


def test_a_start_never_comes_after_the_promise() -> None:
    plan = planned(outlook(hub("a", 500, [0, 0, 0, 0, 0, 9, 9])), job("one", ["a"], wait_h_max=2.9))
    assert plan.decisions[0].start_step <= 2


def test_jobs_do_not_all_run_to_the_same_surplus() -> None:
    view = outlook(hub("a", 500, [8] * HOURS), hub("b", 500, [8] * HOURS), gpus=100)
    plan = planned(view, *(job(f"job-{number}", ["a", "b"], gpus=4, hours=3) for number in range(4)))
    assert sorted(decision.hub or "" for decision in plan.decisions) == ["a", "a", "b", "b"]


def test_a_gang_is_sent_only_where_all_of_it_fits() -> None:
    view = PowerOutlook(
        (hub("a", 100), hub("b", 600)),
        (outlook(hub("a", 100), gpus=7).pools[0], outlook(hub("b", 600), gpus=8).pools[0]),
    )
    decision = planned(view, job("gang", ["a", "b"], gpus=8)).decisions[0]
    assert (decision.hub, decision.room) == ("b", True)


def test_deferrable_work_leaves_the_gpus_alone_that_are_kept_for_urgent_work() -> None:
    view = outlook(hub("a", 500, [99] * HOURS), gpus=8, kept=6)
    deferrable, urgent = planned(view, job("later", ["a"], wait_h_max=2)), planned(view, job("now", ["a"]))
    assert not deferrable.decisions[0].room
    assert urgent.decisions[0].room


def test_a_ceiling_is_hard_even_if_the_promise_ends() -> None:
    plan = planned(outlook(hub("a", 500)), job("one", ["a"], g_per_kwh_max=300.0))
    decision = plan.decisions[0]
    assert decision.verb is DecisionKind.REFUSE
    assert "its ceiling of 300 g/kWh" in decision.reason


def test_a_ceiling_makes_work_wait_for_a_window_below_it() -> None:
    plan = planned(outlook(hub("a", 500, [0, 0, 9, 9, 9])), job("one", ["a"], wait_h_max=4, g_per_kwh_max=300.0))
    assert (plan.decisions[0].verb, plan.decisions[0].start_step) == (DecisionKind.WAIT, 2)


def test_a_budget_is_spent_once() -> None:
    view = outlook(hub("a", 500))
    jobs = [job(f"job-{number}", ["a"], gpus=4, hours=1, tenant="bank") for number in range(3)]
    plan = planned(view, *jobs, budgets=Budgets({"bank": 4500.0}))
    verbs = sorted(decision.verb for decision in plan.decisions)
    assert verbs == [DecisionKind.REFUSE, DecisionKind.START, DecisionKind.START]


def test_money_decides_between_equally_clean_hubs() -> None:
    cheap = HubHours(
        hub="b", grid_g_per_kwh=np.full(HOURS, 500.0), onsite_kw=np.zeros(HOURS), price_per_mwh=np.full(HOURS, 50.0)
    )
    dear = HubHours(
        hub="a", grid_g_per_kwh=np.full(HOURS, 500.0), onsite_kw=np.zeros(HOURS), price_per_mwh=np.full(HOURS, 90.0)
    )
    assert planned(outlook(dear, cheap, aims=Aims(g_per_money=100.0)), job("one", ["a", "b"])).decisions[0].hub == "b"


def test_running_work_moves_when_that_saves_more_than_it_costs() -> None:
    view = outlook(hub("a", 600), hub("b", 600, [9] * HOURS))
    running = (job("one", ["a", "b"], hours=5, running_at="a", movable=True),)
    decision = planned(view, running=running, moves=CHEAP_MOVES).decisions[0]
    assert (decision.verb, decision.hub) == (DecisionKind.MOVE, "b")


@pytest.mark.parametrize(
    "work",
    [
        job("pinned", ["a"], hours=5, running_at="a", movable=True),
        job("immovable", ["a", "b"], hours=5, running_at="a"),
        job("almost done", ["a", "b"], hours=0.5, running_at="a", movable=True),
        job("heavy", ["a", "b"], hours=5, running_at="a", movable=True, checkpoint_gb=1e6),
    ],
    ids=lambda work: str(work.id),
)
def test_running_work_stays_when_it_may_not_or_need_not_move(work: FlexibleWork) -> None:
    view = outlook(hub("a", 600), hub("b", 600, [9] * HOURS))
    plan = planned(view, running=(work,), moves=MoveRules(again_h=0.1))
    assert all(decision.verb is DecisionKind.STAY for decision in plan.decisions)


def test_deferrable_work_is_suspended_within_its_slack() -> None:
    view = outlook(hub("a", 600, [0, 0, 9, 9, 9, 9]))
    running = (job("one", ["a"], hours=3, running_at="a", movable=True, wait_h_max=3.0),)
    decision = planned(view, running=running, moves=CHEAP_MOVES).decisions[0]
    assert (decision.verb, decision.start_step) == (DecisionKind.SUSPEND, 2)


def test_a_plan_without_a_solver_is_made_job_by_job_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "highspy", None)
    plan = planned(outlook(hub("a", 500, [0, 0, 9, 9, 9])), job("one", ["a"], wait_h_max=4))
    assert plan.decisions[0].start_step == 2
    assert "HiGHS is not installed" in plan.notes[0]


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_a_forecast_that_cannot_be_true_is_no_outlook(bad: float) -> None:
    with pytest.raises(ValueError, match="a"):
        hub("a", 500, [bad])
