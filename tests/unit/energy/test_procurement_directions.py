"""What does a plan do at prices where a linear program would run away? Zero, negative, and selling above buying."""

from __future__ import annotations

import numpy as np
import pytest

from harch.energy.procurement.problem import Battery, FlexibleLoad
from unit.energy.energy_fixtures import LOSSLESS, planned, problem


def test_negative_prices_fill_the_battery_once_and_end_at_the_connection() -> None:
    plan = planned(problem([-50, -50], battery=LOSSLESS, import_kw_max=4.0))
    assert plan.import_kwh.tolist() == pytest.approx([4, 4])
    assert not (plan.charge_kwh * plan.discharge_kwh).any()


def test_at_zero_prices_nothing_goes_in_a_circle() -> None:
    plan = planned(problem([0, 0, 0], battery=LOSSLESS))
    assert plan.import_kwh.tolist() == pytest.approx([1, 1, 1])
    assert plan.charge_kwh.sum() == 0


def test_paid_to_use_power_the_site_curtails_its_own() -> None:
    plan = planned(problem([-50], own_kwh=[1], sale_per_mwh=[0]))
    assert plan.import_kwh[0] == pytest.approx(1)
    assert plan.curtailed_kwh[0] == pytest.approx(1)


def test_where_selling_pays_more_than_buying_costs_the_surplus_is_sold_and_nothing_bought() -> None:
    plan = planned(problem([5, 100], own_kwh=[3, 0], sale_per_mwh=[20, 20], battery=LOSSLESS))
    assert plan.import_kwh[0] == 0
    assert plan.import_kwh[1] == pytest.approx(0)  # the battery holds own power that would have earned 20
    assert plan.own_sold_kwh[0] == pytest.approx(1)


def test_a_load_above_the_connection_is_supplied_from_a_battery_filled_while_selling_would_pay() -> None:
    # The first hour would rather sell, but only buying in it fills the battery for the second.
    asked = {"own_kwh": [2, 0], "load_kwh": [1, 9], "sale_per_mwh": [50, 0], "import_kw_max": 5.0}
    plan = planned(problem([10, 10], battery=LOSSLESS, **asked))
    assert plan.import_kwh.tolist() == pytest.approx([3, 5])
    assert plan.own_sold_kwh.sum() == 0


def test_flexible_load_may_need_power_in_an_hour_that_would_rather_sell() -> None:
    now = FlexibleLoad(name="now", energy_kwh=5, power_kw=5, first=0, last=1)
    plan = planned(problem([5], own_kwh=[3], sale_per_mwh=[20], flexible=(now,)))
    assert plan.import_kwh[0] == pytest.approx(3)
    assert plan.own_sold_kwh[0] == 0


def test_the_battery_sells_only_if_it_may() -> None:
    asked = {"stored_kwh": 5.0, "sale_per_mwh": [80, 80], "load_kwh": [0, 0]}
    assert planned(problem([100, 100], battery=LOSSLESS, **asked)).sold_kwh.sum() == 0
    trader = Battery(
        energy_kwh=10, power_kw=10, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=0, to_grid=True
    )
    plan = planned(problem([100, 100], battery=trader, **asked))
    assert plan.battery_sold_kwh.sum() == pytest.approx(5)
    assert plan.own_sold_kwh.sum() == 0


def test_energy_that_nobody_pays_for_is_not_sold() -> None:
    plan = planned(problem([50], own_kwh=[3], sale_per_mwh=[-10]))
    assert plan.sold_kwh.sum() == 0
    assert plan.curtailed_kwh[0] == pytest.approx(2)


def test_the_same_problem_gives_the_same_plan() -> None:
    prices = [float(price) for price in np.random.default_rng(3).integers(-5, 5, 36)]
    first, second = (planned(problem(prices, battery=LOSSLESS, own_kwh=[1.5] * 36)) for _ in range(2))
    assert (first.import_kwh == second.import_kwh).all()
    assert (first.stored_kwh == second.stored_kwh).all()


def test_a_battery_that_may_not_charge_from_the_grid_stores_own_surplus_only() -> None:
    own_only = Battery(
        energy_kwh=10, power_kw=10, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=0, from_grid=False
    )
    plan = planned(problem([1, 100, 100], own_kwh=[2, 0, 0], battery=own_only))
    assert plan.charge_kwh.tolist() == pytest.approx([1, 0, 0])
