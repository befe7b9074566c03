"""Are plans followed only where they may be, and does a replay account for what happened and nothing else?"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from energy_replay import replay_rolling, replay_whole
from harch.base.errors import InvariantBroken
from harch.energy.procurement.plan import FailureKind, PlanFailure, PlanMethod, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import Battery, FlexibleLoad, ProcurementProblem
from harch.energy.procurement.safeguards import expected_kg, plan_with_safeguards
from harch.energy.steps import Steps
from unit.energy.energy_fixtures import LOSSLESS, START, hours, problem

DAYS = 3


def made(plan: ProcurementPlan | PlanFailure) -> ProcurementPlan:
    assert isinstance(plan, ProcurementPlan), plan
    return plan


def test_a_plan_that_promises_to_emit_less_is_followed() -> None:
    clean_then_dirty = problem([10, 100], grid_g_per_kwh=[100, 800], battery=LOSSLESS)
    plan = made(plan_with_safeguards(clean_then_dirty, credit_kg=0.0))
    assert plan.charge_kwh[0] == pytest.approx(1)


def test_a_plan_that_would_emit_more_is_not_followed_without_credit() -> None:
    dirty_then_clean = problem([10, 100], grid_g_per_kwh=[800, 100], battery=LOSSLESS)
    assert made(plan_with_safeguards(dirty_then_clean, credit_kg=0.0)).charge_kwh.sum() == 0
    assert made(plan_with_safeguards(dirty_then_clean, credit_kg=1.0)).charge_kwh[0] == pytest.approx(1)


def test_in_debt_only_a_plan_that_pays_it_back_is_followed() -> None:
    clean_then_dirty = problem([10, 100], grid_g_per_kwh=[100, 800], battery=LOSSLESS)
    assert made(plan_with_safeguards(clean_then_dirty, credit_kg=-0.5)).charge_kwh.sum() == pytest.approx(1)
    assert made(plan_with_safeguards(clean_then_dirty, credit_kg=-0.9)).charge_kwh.sum() == 0


def test_in_debt_stored_power_waits_for_the_dirty_hour_rather_than_for_the_dear_one() -> None:
    dear_then_dirty = problem([60, 50], grid_g_per_kwh=[100, 800], battery=LOSSLESS, stored_kwh=1.0)
    assert made(plan_procurement(dear_then_dirty)).discharge_kwh.tolist() == pytest.approx([1, 0])
    assert made(plan_with_safeguards(dear_then_dirty, credit_kg=-99.0)).discharge_kwh.tolist() == pytest.approx([0, 1])


def test_without_grid_charging_stored_power_may_still_wait_for_the_dear_hour() -> None:
    asked = problem([50, 100], battery=LOSSLESS, stored_kwh=1.0)
    plan = made(plan_with_safeguards(asked, credit_kg=0.0))
    assert plan.discharge_kwh.tolist() == pytest.approx([0, 1])
    assert expected_kg(asked, plan) <= expected_kg(asked, made(plan_by_rule(asked))) + 1e-9


def test_what_nothing_can_supply_fails_and_a_missing_solver_leaves_the_rule() -> None:
    assert isinstance(plan_with_safeguards(problem([10], load_kwh=[999]), credit_kg=0.0), PlanFailure)

    def broken(asked: ProcurementProblem) -> PlanFailure:
        return PlanFailure(FailureKind.SOLVER, (("solver", "gone"),), "wait")

    asked = problem([10, 20], battery=LOSSLESS)
    assert made(plan_with_safeguards(asked, credit_kg=0.0, planning=broken)).planner is PlanMethod.RULE


def day(steps: Steps) -> ProcurementProblem:
    """Every day alike: sun at noon, dear and dirty evenings, cheap and clean nights."""
    hour = np.array([moment.hour for moment in steps.starts()])
    return ProcurementProblem(
        steps=steps,
        currency="USD",
        load_kwh=np.full(steps.count, 10.0),
        own_kwh=np.where((hour > 8) & (hour < 16), 18.0, 0.0),
        import_per_mwh=np.where(hour >= 17, 150.0, 60.0),
        grid_g_per_kwh=np.where(hour >= 17, 400.0, 150.0),
        import_kw_max=60.0,
        sale_per_mwh=np.full(steps.count, 20.0),
        battery=Battery(energy_kwh=40, power_kw=15),
        stored_kwh=20.0,
    )


def known(now: datetime, steps: Steps) -> ProcurementProblem:
    return day(steps)


def test_rolling_plans_lie_between_the_rule_and_the_best_and_emit_no_more() -> None:
    world = day(hours(24 * DAYS))
    rule = replay_whole(world, plan_by_rule)
    rolling = replay_rolling(world, known)
    best = replace(world, budget_kg=rule.emitted_kg, fade_per_h=0.0, sale_rise_per_mwh_h=0.0)
    oracle = replay_whole(best, plan_procurement)
    assert oracle.cost - 1e-6 <= rolling.cost < rule.cost
    assert rolling.emitted_kg <= rule.emitted_kg


def test_the_account_of_a_replay_is_that_of_its_world() -> None:
    world = day(hours(24))
    rule = replay_whole(world, plan_by_rule)
    plan = made(plan_by_rule(world))
    assert rule.bill == pytest.approx(plan.costs.bill)
    assert rule.wear == pytest.approx(plan.costs.wear)
    assert rule.emitted_kg == pytest.approx(plan.carbon.emitted_kg)
    assert rule.bought_kwh == pytest.approx(plan.import_kwh.sum())


def test_a_replay_asks_only_for_what_lies_ahead_of_each_hour() -> None:
    asked: list[tuple[datetime, Steps]] = []

    def outlook(now: datetime, steps: Steps) -> ProcurementProblem:
        asked.append((now, steps))
        return day(steps)

    replay_rolling(day(hours(3)), outlook)
    assert [now for now, _ in asked] == [START + timedelta(hours=hour) for hour in range(3)]
    assert all(steps.start == now and steps.count == 36 for now, steps in asked)


def test_a_replay_refuses_what_it_does_not_account_for() -> None:
    train = FlexibleLoad(name="train", energy_kwh=1, power_kw=1, first=0, last=3)
    with pytest.raises(InvariantBroken):
        replay_whole(replace(day(hours(3)), flexible=(train,)), plan_by_rule)
    with pytest.raises(InvariantBroken):
        replay_whole(replace(day(hours(3)), import_kw_max=0.0), plan_by_rule)
