"""Does the linear program find the optimum that a person finds by hand?"""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import HOURS, hub, job, outlook

from harch.carbon.planning.outlook import PowerOutlook
from harch.carbon.planning.plan import booked
from harch.carbon.planning.program import LATE_G_PER_GPU_HOUR, ClassPlan, plan_classes, spans_of
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand, classes_of


def solved(view: PowerOutlook, *works: FlexibleWork, running: tuple[FlexibleWork, ...] = ()) -> ClassPlan:
    busy_kw, free = booked(view, running)
    return plan_classes(view, classes_of(WorkDemand(works), view.steps), busy_kw=busy_kw, gpus_free=free)


def test_deferrable_work_waits_for_the_hours_with_own_power() -> None:
    view = outlook(hub("a", 500, [0, 0, 0, 4, 4]))
    plan = solved(view, job("one", ["a"], gpus=4, hours=2, wait_h_max=5))
    (quota,) = plan.quotas.values()
    assert quota.tolist() == pytest.approx([0, 0, 0, 4, 4, 0, 0, 0])
    assert plan.cost_g == pytest.approx(8 * 20)


def test_work_that_cannot_wait_goes_to_the_cleaner_hub_at_once() -> None:
    view = outlook(hub("a", 600), hub("b", 400))
    plan = solved(view, job("one", ["a", "b"], gpus=4, hours=2))
    assert plan.cost_g == pytest.approx(8 * 400)
    assert plan.quotas[ClassKey(frozenset("ab"), "gpu", False), "b"].sum() == pytest.approx(8)


def test_a_clean_hub_takes_no_more_than_it_has_gpus() -> None:
    view = outlook(hub("a", 600), hub("b", 400), gpus=4)
    plan = solved(view, job("one", ["a", "b"], gpus=8, hours=2))
    assert plan.cost_g == pytest.approx(8 * 400 + 8 * 600)


def test_pinned_work_has_no_variable_elsewhere() -> None:
    view = outlook(hub("a", 600), hub("b", 1))
    plan = solved(view, job("one", ["a"], wait_h_max=4))
    assert {place for _, place in plan.quotas} == {"a"}


def test_own_power_that_running_work_uses_is_not_given_twice() -> None:
    view = outlook(hub("a", 500, [8] * HOURS))
    running = (job("busy", ["a"], gpus=6, hours=8, running_at="a"),)
    plan = solved(view, job("one", ["a"], gpus=4, hours=1), running=running)
    assert plan.cost_g == pytest.approx(6 * 8 * 20 + 2 * 20 + 2 * 500)
    assert plan.hub_g_per_kwh["a"][0] == pytest.approx(500)  # one kWh more in the first hour comes from the grid


def test_pue_and_transmission_loss_count() -> None:
    view = outlook(hub("a", 400, pue=1.5, transmission_loss=0.1))
    plan = solved(view, job("one", ["a"], gpus=4, hours=2))
    assert plan.cost_g == pytest.approx(8 * 1.5 * 400 * 1.1)


def test_work_that_does_not_fit_when_due_is_late_at_a_reported_penalty() -> None:
    view = outlook(hub("a", 500), gpus=4)
    plan = solved(view, job("one", ["a"], gpus=8, hours=2))
    assert plan.late_gpu_hours == pytest.approx(8)
    assert plan.cost_g == pytest.approx(16 * 500 + 8 * LATE_G_PER_GPU_HOUR)


def test_due_work_rises_only_after_the_slack_has_ended() -> None:
    (one,) = classes_of(WorkDemand((job("one", ["a"], gpus=4, hours=2, wait_h_max=3),)), HOURS)
    assert one.due.tolist() == [0, 0, 0, 4, 8, 8, 8, 8]
    assert one.available.tolist() == [4, 8, 8, 8, 8, 8, 8, 8]


def test_expected_urgent_work_is_due_as_it_comes() -> None:
    key = ClassKey(frozenset("a"), "gpu", False)
    (one,) = classes_of(WorkDemand((), {key: ExpectedWork(6.0, 2.0)}), HOURS)
    assert np.allclose(one.due, one.available)
    assert (np.diff(one.due) > 0).all()


@pytest.mark.parametrize("hours", [1, 12, 13, 36, 48, 96, 100])
def test_steps_cover_all_hours(hours: int) -> None:
    assert spans_of(hours).sum() == hours
