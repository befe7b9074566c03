"""Does every plan obey physics and its contract? Balance, limits, one direction at a time, budget, and the bill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.energy.procurement.contract import bill_of_plan, problem_under
from harch.energy.procurement.plan import FailureKind, PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import Battery, FlexibleLoad, Objective, PpaOffer, ProcurementProblem
from harch.energy.steps import Steps
from harch.energy.tariffs.file import parse_tariff
from harch.energy.tariffs.prices import bill
from unit.energy.energy_fixtures import START, TIME_OF_USE

NEAR = 1e-4  # kWh, of loads around a hundred


def _problem(seed: int, step_s: int, count: int) -> ProcurementProblem:
    """Any site: prices of any sign, with or without plants, battery, agreements, flexible load and budget."""
    chance = np.random.default_rng(seed)
    steps = Steps(START, step_s, count)
    level = chance.choice([0.0, 1.0, 60.0, 3000.0])
    prices = np.round(chance.normal(level, 0.7 * level + 5, count), 1) * chance.choice([0, 1], count, p=[0.1, 0.9])
    load = chance.uniform(0, 120, count) * steps.hours
    battery = Battery(
        energy_kwh=float(chance.choice([0, 200])),
        power_kw=float(chance.choice([0, 30, 150])),
        floor_kwh=0.0,
        wear_per_mwh=float(chance.choice([0, 1])),
        to_grid=bool(chance.integers(2)),
        from_grid=bool(chance.integers(4)),
    )
    first = int(chance.integers(count))
    last = int(chance.integers(first + 1, count + 1))
    power = float(chance.uniform(1, 50))
    flexible = FlexibleLoad(
        name="train",
        energy_kwh=float(chance.uniform(0, 1)) * power * steps.hours * (last - first),
        power_kw=power,
        first=first,
        last=last,
    )
    ppa = PpaOffer(
        name="wind",
        offered_kwh=chance.uniform(0, 40, count) * steps.hours,
        per_mwh=float(chance.normal(level, 20)),
        must_take=bool(chance.integers(2)),
        g_per_kwh=np.full(count, 11.0),
    )
    return ProcurementProblem(
        steps=steps,
        currency="USD",
        load_kwh=load,
        own_kwh=np.maximum(chance.normal(60, 80, count), 0) * steps.hours * chance.integers(2),
        import_per_mwh=prices,
        grid_g_per_kwh=chance.uniform(0, 800, count),
        import_kw_max=float(chance.choice([90.0, 250.0, 1000.0])),
        sale_per_mwh=chance.normal(0.6 * level, 10, count),
        battery=battery if chance.integers(4) else None,
        stored_kwh=float(chance.uniform(0, battery.energy_kwh)),
        flexible=(flexible,) if chance.integers(2) else (),
        ppas=(ppa,) if chance.integers(2) else (),
        budget_kg=float(chance.uniform(0, 0.6) * load.sum()) if chance.integers(2) else None,
        objective=list(Objective)[int(chance.integers(3))],
        carbon_per_t=float(chance.choice([0, 80])),
        fade_per_h=float(chance.choice([0, 0.02])),
    )


problems = st.builds(_problem, st.integers(0, 2**32 - 1), st.sampled_from([1800, 3600]), st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(problems)
def test_every_plan_obeys_physics(problem: ProcurementProblem) -> None:
    plan = plan_procurement(problem)
    if isinstance(plan, PlanFailure):
        assert plan.kind is FailureKind.SUPPLY, plan
        return
    _obeys_physics(problem, plan)
    _keeps_or_reports_the_budget(problem, plan)


@settings(max_examples=100, deadline=None)
@given(problems)
def test_the_rule_obeys_the_same_physics_and_plans_are_never_worse_by_their_own_measure(
    problem: ProcurementProblem,
) -> None:
    asked = replace(problem, budget_kg=None, objective=Objective.PROFIT, sale_rise_per_mwh_h=0.0, fade_per_h=0.0)
    asked = replace(asked, sale_per_mwh=np.minimum(asked.sale_per_mwh, asked.import_per_mwh - 1), carbon_per_t=0.0)
    rule = plan_by_rule(asked)
    if isinstance(rule, PlanFailure):
        assert rule.kind is FailureKind.SUPPLY
        return
    _obeys_physics(asked, rule)
    if (asked.import_per_mwh <= 0).any() or any(ppa.must_take or ppa.per_mwh <= 0 for ppa in asked.ppas):
        return  # there one direction is closed beforehand, and the rule may happen to like the other
    plan = plan_procurement(asked)
    assert not isinstance(plan, PlanFailure), plan
    assert _worth(asked, plan) <= _worth(asked, rule) + 1e-4 * (1 + abs(_worth(asked, rule)))


def _worth(problem: ProcurementProblem, plan: ProcurementPlan) -> float:
    stored = float(plan.stored_kwh[-1]) * problem.terminal_per_mwh / 1000 if problem.battery else 0.0
    tie_break = float((plan.charge_kwh + plan.discharge_kwh).sum()) * 1e-6  # a battery without wear has a little
    return plan.costs.bill + max(plan.costs.wear, tie_break) - stored


def _obeys_physics(problem: ProcurementProblem, plan: ProcurementPlan) -> None:
    zero = np.zeros(problem.steps.count)
    bought = plan.import_kwh + sum(plan.ppa_kwh.values(), zero)
    used = problem.load_kwh + sum(plan.flexible_kwh.values(), zero)
    supplied = bought + plan.own_used_kwh + plan.discharge_kwh
    assert supplied == pytest.approx(used + plan.charge_kwh + plan.battery_sold_kwh, abs=NEAR)
    assert (plan.own_used_kwh + plan.own_sold_kwh + plan.curtailed_kwh) == pytest.approx(problem.own_kwh, abs=NEAR)
    assert (bought <= problem.import_kw_max * problem.steps.hours + NEAR).all()
    for flow in (plan.import_kwh, plan.own_used_kwh, plan.own_sold_kwh, plan.charge_kwh, plan.discharge_kwh):
        assert (flow >= 0).all()
    # Nothing is bought to be sold, and the battery does one thing at a time.
    assert (np.minimum(bought, plan.sold_kwh) < NEAR).all()
    assert (np.minimum(plan.charge_kwh, plan.discharge_kwh) < NEAR).all()
    assert (plan.own_sold_kwh <= problem.surplus_kwh + NEAR).all()
    for load in problem.flexible:
        energy = plan.flexible_kwh[load.name]
        assert energy.sum() == pytest.approx(load.energy_kwh, abs=NEAR)
        assert energy[: load.first].sum() + energy[load.last :].sum() == 0
    _battery_is_within_its_limits(problem, plan)


def _battery_is_within_its_limits(problem: ProcurementProblem, plan: ProcurementPlan) -> None:
    battery = problem.battery
    if battery is None:
        assert (plan.charge_kwh + plan.discharge_kwh + plan.battery_sold_kwh).sum() == 0
        return
    most = battery.power_kw * problem.steps.hours + NEAR
    assert (plan.charge_kwh <= most).all()
    assert (plan.discharge_kwh <= most).all()
    assert (plan.stored_kwh <= battery.energy_kwh + NEAR).all()
    before = np.concatenate([[problem.stored_kwh], plan.stored_kwh[:-1]])
    change = plan.charge_kwh * battery.charge_efficiency - plan.discharge_kwh / battery.discharge_efficiency
    assert plan.stored_kwh == pytest.approx(before + change, abs=NEAR)
    assert (plan.battery_sold_kwh <= plan.discharge_kwh + NEAR).all()
    if not battery.to_grid:
        assert plan.battery_sold_kwh.sum() == 0


def _keeps_or_reports_the_budget(problem: ProcurementProblem, plan: ProcurementPlan) -> None:
    grid = float(plan.import_kwh @ problem.grid_g_per_kwh)
    emitted = (grid + sum(float(plan.ppa_kwh[ppa.name] @ ppa.g_per_kwh) for ppa in problem.ppas)) / 1000
    assert plan.carbon.emitted_kg == pytest.approx(emitted)
    if problem.budget_kg is not None:
        assert emitted <= problem.budget_kg + plan.carbon.over_kg + NEAR
        assert plan.carbon.budget_kept == (plan.carbon.over_kg == 0)
        assert plan.carbon.shadow_per_t >= 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 72), st.sampled_from([1800, 3600]))
def test_a_plan_costs_what_the_bill_of_its_flows_says(seed: int, count: int, step_s: int) -> None:
    chance = np.random.default_rng(seed)
    tariff, steps = parse_tariff(TIME_OF_USE), Steps(START.replace(month=3, day=31), step_s, count)
    asked = problem_under(
        tariff,
        steps,
        load_kwh=chance.uniform(0, 500, count),
        own_kwh=chance.uniform(0, 600, count),
        grid_g_per_kwh=chance.uniform(0, 900, count),
        import_kw_max=2000,
        plants_kwh={"akhfenir": chance.uniform(0, 400, count)},
        peaks_before_kw={"2026-03": float(chance.uniform(0, 300))},
    )
    asked = replace(asked, battery=Battery(energy_kwh=500, power_kw=200), stored_kwh=float(chance.uniform(0, 500)))
    for plan in (plan_procurement(asked), plan_by_rule(asked)):
        assert not isinstance(plan, PlanFailure), plan
        assert bill_of_plan(tariff, asked, plan).total == pytest.approx(plan.costs.bill)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e5), min_size=2, max_size=80), st.integers(1, 79))
def test_bills_of_two_parts_are_the_bill_of_the_whole(energy: list[float], cut: int) -> None:
    tariff = replace(parse_tariff(TIME_OF_USE), ppas=())
    cut = min(cut, len(energy) - 1)
    steps = Steps(START, 3600, len(energy))
    first, second = Steps(START, 3600, cut), Steps(steps.at(cut), 3600, len(energy) - cut)
    peak = {"2026-03": max(energy[:cut])}
    parts = bill(tariff, first, energy[:cut]).total + bill(tariff, second, energy[cut:], peaks_before_kw=peak).total
    whole = bill(tariff, steps, energy)
    assert parts == pytest.approx(whole.total)
    assert whole.total == pytest.approx(sum(line.amount for line in whole.lines))
