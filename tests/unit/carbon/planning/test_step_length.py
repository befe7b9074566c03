"""A plan in finer steps knows of the same power, GPUs and prices: waiting costs by the hour, not by the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from harch.carbon.planning.capacity import StartWindows
from harch.carbon.planning.decisions import DecisionKind
from harch.carbon.planning.dispatch import MoveRules, waiting_costs_g
from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook
from harch.carbon.planning.plan import Announced, booked, plan_carbon
from harch.carbon.planning.program import LATE_G_PER_GPU_HOUR
from harch.carbon.planning.work import FlexibleWork, WorkDemand
from unit.carbon.planning.planning_cases import job

HOURS = 12
PARTS = [1, 4, 60]  # of an hour
CLEAN_AT_5 = [500.0] * 5 + [100.0] * 3 + [500.0] * 4
SUN_AT_3 = [0.0] * 3 + [6.0] * 4 + [0.0] * 5


def outlook(parts: int, grid_g_per_kwh: Sequence[float], onsite_kw: Sequence[float] = (0.0,) * HOURS) -> PowerOutlook:
    """One hub with sixteen GPUs of one kW, every hour of it in so many steps."""
    hub = HubHours(
        hub="a",
        grid_g_per_kwh=np.repeat(np.array(grid_g_per_kwh, dtype=np.float64), parts),
        onsite_kw=np.repeat(np.array(onsite_kw, dtype=np.float64), parts),
        onsite_sd_kw=np.repeat(np.array(onsite_kw, dtype=np.float64), parts) * 0.3,
        onsite_g_per_kwh=20.0,
        pue=1.2,
    )
    return PowerOutlook((hub,), (Pool("a", "gpu", 16, 1.0),), step_h=1 / parts)


def windows(parts: int, work: FlexibleWork, view: PowerOutlook) -> StartWindows:
    found = plan_carbon(view, WorkDemand(()), ()).book.windows(work, starts=8 * parts + 1)
    assert found is not None
    return found


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("grid", [CLEAN_AT_5, [460.0, *[500.0] * 11], [44.0, *[50.0] * 11]])
def test_an_hour_of_waiting_costs_and_risks_the_same(parts: int, grid: list[float]) -> None:
    work = job("one", ["a"], hours=2.0, wait_h_max=8.0)
    fine, hourly = (waiting_costs_g(windows(n, work, outlook(n, grid))) for n in (parts, 1))
    assert fine[::parts] == pytest.approx(hourly)


def test_where_power_hardly_changes_no_wait_pays_however_short() -> None:
    work = job("one", ["a"], hours=2.0, wait_h_max=8.0)
    assert np.isinf(waiting_costs_g(windows(4, work, outlook(4, [44.0, *[50.0] * 11])))[1:]).all()


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("hours", [0.5, 2.0, 3.25])
@pytest.mark.parametrize("gpus", [4, 20], ids=["with room", "without"])
def test_energy_grams_and_charges_of_a_window_are_the_same(parts: int, hours: float, gpus: int) -> None:
    work = job("one", ["a"], gpus=gpus, hours=hours, wait_h_max=8.0)
    fine, hourly = (windows(n, work, outlook(n, CLEAN_AT_5, SUN_AT_3)) for n in (parts, 1))
    assert fine.kwh == pytest.approx(hourly.kwh)
    assert fine.grams[:, ::parts] == pytest.approx(hourly.grams)
    assert fine.cost_g[:, ::parts] == pytest.approx(hourly.cost_g)
    assert fine.no_room_g[:, ::parts] == pytest.approx(hourly.no_room_g)


@pytest.mark.parametrize("parts", PARTS)
def test_work_is_given_the_same_moment_and_the_same_promise(parts: int) -> None:
    work = job("one", ["a"], hours=2.0, wait_h_max=6.5)
    view = outlook(parts, CLEAN_AT_5)
    (decision,) = plan_carbon(view, WorkDemand((work,)), ()).decisions
    assert (decision.verb, decision.start_step / parts, decision.starts_by_h) == (DecisionKind.WAIT, 5.0, 6.5)
    assert decision.chosen is not None
    assert (decision.chosen.kwh, decision.chosen.grams) == pytest.approx((9.6, 960.0))


@pytest.mark.parametrize("parts", PARTS)
def test_what_runs_and_what_is_announced_takes_power_and_gpus_for_as_long(parts: int) -> None:
    view = outlook(parts, CLEAN_AT_5)
    running = job("now", ["a"], gpus=2, hours=1.5, running_at="a")
    busy_kw, free = booked(view, (running,), (Announced("a", "gpu", 4, 3 * parts, 2.25),))
    assert busy_kw.sum() * view.step_h == pytest.approx((2 * 1.5 + 4 * 2.25) * 1.2)
    assert (16 - free["a", "gpu"]).sum() * view.step_h == pytest.approx(2 * 1.5 + 4 * 2.25)
    assert busy_kw[0, 3 * parts] == pytest.approx(4 * 1.2)


@pytest.mark.parametrize("parts", PARTS)
def test_a_job_in_the_book_takes_power_for_as_long_and_can_be_taken_out(parts: int) -> None:
    view = outlook(parts, CLEAN_AT_5, SUN_AT_3)
    book, other = plan_carbon(view, WorkDemand(()), ()).book, job("other", ["a"], gpus=14, hours=2.0, wait_h_max=8.0)
    before = book.windows(other, starts=8 * parts + 1)
    book.enter(job("one", ["a"], hours=2.0), "a", 2 * parts)
    crowded = book.windows(other, starts=8 * parts + 1)
    book.enter(job("one", ["a"], hours=2.0), "a", 2 * parts, sign=-1)
    after = book.windows(other, starts=8 * parts + 1)
    assert before is not None
    assert crowded is not None
    assert after is not None
    assert crowded.room[0, ::parts].tolist() == [True, False, False, False, True, True, True, True, True]
    assert after.cost_g == pytest.approx(before.cost_g)


@pytest.mark.parametrize("parts", PARTS)
def test_a_move_pays_by_the_hour(parts: int) -> None:
    view = outlook(parts, CLEAN_AT_5)
    for hours, verb in ((3.0, DecisionKind.SUSPEND), (0.5, None)):
        work = job("one", ["a"], hours=hours, running_at="a", movable=True, wait_h_max=6.0)
        made = plan_carbon(view, WorkDemand(()), (work,), moves=MoveRules(hours_left_min=1.0))
        found = [(decision.verb, decision.start_step / parts) for decision in made.decisions]
        assert found == ([] if verb is None else [(verb, 5.0)])


@pytest.mark.parametrize("parts", [1, 4])
def test_classes_are_counted_in_gpu_hours(parts: int) -> None:
    """More than fits within eight steps, which are planned one by one, so that spans of several are met too."""
    view = outlook(parts, [400.0] * HOURS)
    work = job("one", ["a"], gpus=20, hours=4.0)
    made = plan_carbon(view, WorkDemand((work,)), ()).classes
    (quota,) = made.quotas.values()
    assert quota.sum() * view.step_h == pytest.approx(80.0)
    assert quota.max() == pytest.approx(16.0)
    assert made.cost_g - made.late_gpu_hours * LATE_G_PER_GPU_HOUR == pytest.approx(80 * 1.2 * 400.0)
    assert made.late_gpu_hours == pytest.approx(16.0)
