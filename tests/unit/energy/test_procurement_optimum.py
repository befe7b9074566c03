"""Does the optimiser find what a person finds with a pencil? Small problems whose best plan is known."""

from __future__ import annotations

import numpy as np
import pytest

from harch.energy.procurement.problem import Battery, DemandPeaks, FlexibleLoad, Objective, PpaOffer
from unit.energy.energy_fixtures import LOSSLESS, planned, problem

NEAR = 1e-6


def near(values: object) -> object:
    return pytest.approx(values, abs=NEAR)


def test_load_without_anything_else_is_bought_when_it_is_needed() -> None:
    plan = planned(problem([10, 20]))
    assert plan.import_kwh.tolist() == near([1, 1])
    assert plan.costs.bill == near(0.03)
    assert plan.energy_value_per_mwh is not None
    assert plan.energy_value_per_mwh.tolist() == near([10, 20])


def test_a_battery_is_filled_in_the_cheap_hour_for_the_dear_one() -> None:
    plan = planned(problem([10, 100], battery=LOSSLESS))
    assert plan.import_kwh.tolist() == near([2, 0])
    assert plan.stored_kwh.tolist() == near([1, 0])


def test_losses_of_both_ways_must_be_earned() -> None:
    battery = Battery(energy_kwh=10, power_kw=10, wear_per_mwh=0)
    assert planned(problem([90, 100], battery=battery)).charge_kwh.sum() == near(0)  # 90 / 0.92^2 is 106
    plan = planned(problem([80, 100], battery=battery))
    assert plan.charge_kwh[0] == near(1 / 0.92**2)
    assert plan.import_kwh[1] == near(0)


def test_wear_keeps_a_battery_still_that_would_earn_less_than_it() -> None:
    worn = Battery(energy_kwh=10, power_kw=10, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=6)
    assert planned(problem([90, 100], battery=worn)).charge_kwh.sum() == near(0)
    assert planned(problem([80, 100], battery=worn)).charge_kwh.sum() == near(1)


def test_stored_energy_is_kept_for_its_terminal_value_only() -> None:
    full = problem([50, 50], battery=LOSSLESS, stored_kwh=2.0)
    assert planned(full).import_kwh.sum() == near(0)
    kept = problem([50, 50], battery=LOSSLESS, stored_kwh=2.0, terminal_per_mwh=60.0)
    assert planned(kept).stored_kwh[-1] == near(10)


def test_surplus_is_sold_and_load_is_served_first() -> None:
    plan = planned(problem([50, 50], own_kwh=[3, 0], sale_per_mwh=[20, 20]))
    assert plan.own_sold_kwh.tolist() == near([2, 0])
    assert plan.import_kwh.tolist() == near([0, 1])
    assert plan.costs.bill == near(0.05 - 0.04)


def test_a_rising_sale_value_stores_the_first_surplus_and_sells_the_last() -> None:
    asked = {"own_kwh": [2, 2, 0], "sale_per_mwh": [20, 20, 20], "battery": LOSSLESS}
    plan = planned(problem([50, 50, 50], sale_rise_per_mwh_h=0.2, **asked))
    assert plan.charge_kwh.tolist() == near([1, 0, 0])


def test_flexible_load_runs_in_the_cheapest_hours_of_its_window() -> None:
    train = FlexibleLoad(name="train", energy_kwh=3, power_kw=2, first=1, last=4)
    plan = planned(problem([1, 30, 10, 20], flexible=(train,)))
    assert plan.flexible_kwh["train"].tolist() == near([0, 0, 2, 1])


def test_a_demand_charge_flattens_what_is_bought() -> None:
    peaks = DemandPeaks(per_kw=5.0, months=("2026-03",) * 4)
    load = {"load_kwh": [1, 1, 1, 5], "battery": LOSSLESS}
    plan = planned(problem([10, 10, 10, 10], demand=peaks, **load))
    assert plan.import_kwh.tolist() == near([2, 2, 2, 2])
    assert plan.costs.demand == near(10)


def test_a_peak_that_the_month_has_had_costs_nothing_again() -> None:
    peaks = DemandPeaks(per_kw=5.0, months=("2026-03",) * 2, before_kw={"2026-03": 4.0})
    plan = planned(problem([10, 100], demand=peaks, load_kwh=[1, 3], battery=LOSSLESS))
    assert plan.import_kwh.tolist() == near([4, 0])
    assert plan.costs.demand == near(0)


def test_a_peak_in_a_new_month_is_paid_anew() -> None:
    peaks = DemandPeaks(per_kw=5.0, months=("2026-03", "2026-04"), before_kw={"2026-03": 4.0})
    assert planned(problem([10, 10], demand=peaks)).costs.demand == near(5)


def offer(per_mwh: float, *, must_take: bool, kwh: float = 1.0) -> PpaOffer:
    return PpaOffer(
        name="wind", offered_kwh=np.full(2, kwh), per_mwh=per_mwh, must_take=must_take, g_per_kwh=np.full(2, 0.0)
    )


def test_an_agreement_is_used_where_it_is_cheaper() -> None:
    plan = planned(problem([40, 60], ppas=(offer(50, must_take=False),)))
    assert plan.ppa_kwh["wind"].tolist() == near([0, 1])
    assert plan.costs.bill == near(0.09)


def test_what_must_be_taken_is_used_and_paid_even_if_the_grid_is_cheaper() -> None:
    plan = planned(problem([40, 60], ppas=(offer(50, must_take=True, kwh=2.0),)))
    assert plan.import_kwh.sum() == near(0)
    assert plan.costs.ppas == near(0.2)


def test_a_budget_moves_purchases_to_clean_hours_and_has_a_price() -> None:
    asked = {"grid_g_per_kwh": [800, 200], "load_kwh": [0, 1], "own_kwh": [0, 0], "battery": LOSSLESS}
    dirty_but_cheap = planned(problem([10, 70], **asked))
    assert dirty_but_cheap.carbon.emitted_kg == near(0.8)
    plan = planned(problem([10, 70], budget_kg=0.5, **asked))
    assert plan.import_kwh.tolist() == near([0.5, 0.5])
    assert plan.carbon.emitted_kg == near(0.5)
    # 0.6 kg less for 60 per MWh more: 100 per tonne. The tie-breaking wear is 0.002 per MWh.
    assert plan.carbon.shadow_per_t == pytest.approx(100, abs=0.01)
    assert plan.carbon.budget_kept


def test_a_budget_that_cannot_be_kept_is_missed_by_as_little_as_possible_and_says_so() -> None:
    plan = planned(problem([10, 70], grid_g_per_kwh=[800, 200], battery=LOSSLESS, budget_kg=0.1))
    assert plan.carbon.emitted_kg == near(1.0)  # the first hour cannot wait
    assert plan.carbon.over_kg == near(0.9)
    assert not plan.carbon.budget_kept
    assert plan.carbon.penalty_per_t > 1e5


def test_a_carbon_price_steers_without_being_billed() -> None:
    asked = {"grid_g_per_kwh": [800, 200], "load_kwh": [0, 1], "battery": LOSSLESS}
    assert planned(problem([10, 70], carbon_per_t=90.0, **asked)).import_kwh[0] == near(1)
    plan = planned(problem([10, 70], carbon_per_t=110.0, **asked))
    assert plan.import_kwh[1] == near(1)
    assert plan.costs.bill == near(0.07)


def test_self_consumption_buys_as_little_as_possible_whatever_it_costs() -> None:
    asked = {"own_kwh": [3, 0], "sale_per_mwh": [500, 0], "battery": LOSSLESS}
    assert planned(problem([50, 60], **asked)).import_kwh.sum() == near(1)
    greener = planned(problem([50, 60], objective=Objective.SELF_CONSUMPTION, **asked))
    assert greener.import_kwh.sum() == near(0)
    assert greener.own_sold_kwh.sum() == near(1)


def test_the_objective_cost_gives_nothing_up_for_sales_and_sells_what_is_left() -> None:
    plan = planned(problem([50, 60], own_kwh=[3, 0], sale_per_mwh=[500, 0], battery=LOSSLESS, objective=Objective.COST))
    assert plan.import_kwh.sum() == near(0)
    assert plan.own_sold_kwh.sum() == near(1)


def test_half_hours_limit_power_and_not_energy() -> None:
    from harch.energy.steps import Steps
    from unit.energy.energy_fixtures import START

    slow = Battery(energy_kwh=10, power_kw=1, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=0)
    plan = planned(problem([10, 100], steps=Steps(START, 1800, 2), battery=slow))
    assert plan.charge_kwh.tolist() == near([0.5, 0])


def test_a_fading_future_uses_the_battery_now_unless_later_is_much_dearer() -> None:
    asked = {"battery": LOSSLESS, "stored_kwh": 1.0}
    assert planned(problem([100, 105], fade_per_h=0.1, **asked)).discharge_kwh.tolist() == near([1, 0])
    assert planned(problem([100, 105], **asked)).discharge_kwh.tolist() == near([0, 1])
    values = planned(problem([100, 105], fade_per_h=0.1)).energy_value_per_mwh
    assert values is not None
    assert values.tolist() == near([100, 105])
