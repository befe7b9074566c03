"""Do plans, prices and bills read well, for people and for programs?"""

from __future__ import annotations

import json

import numpy as np
import pytest

from harch.energy.carbon_price import predicted_prices
from harch.energy.market.bids import bids_from
from harch.energy.market.book import Book
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.procurement.rule import plan_by_rule
from harch.energy.rendering import (
    bids_as_plain,
    bill_lines,
    book_as_plain,
    plan_as_plain,
    plan_lines,
    prices_as_plain,
    prices_lines,
)
from harch.energy.tariffs.billing import bill
from harch.energy.tariffs.terms import SpotPrice
from unit.energy.energy_fixtures import LOSSLESS, START, hours, planned, problem, spot_tariff


def test_a_plan_is_json_with_its_duals_and_a_table_with_its_sums() -> None:
    plan = planned(problem([10, 70], grid_g_per_kwh=[800, 200], load_kwh=[0, 1], battery=LOSSLESS, budget_kg=0.5))
    plain = json.loads(json.dumps(plan_as_plain(plan)))
    assert plain["import_kwh"] == pytest.approx([0.5, 0.5])
    assert plain["carbon"]["shadow_per_t"] == pytest.approx(100, abs=0.01)
    assert len(plain["energy_value_per_mwh"]) == 2
    lines = plan_lines(plan)
    assert len(lines) == 1 + 2 + 2
    assert "budget 0.5 kg kept, its last tonne is worth 100 USD/t" in lines[-1]
    assert "estimated" in lines[-1]


def test_a_budget_that_is_missed_is_written_large() -> None:
    plan = planned(problem([10], budget_kg=0.1))
    assert "CANNOT be kept: 0.4 kg above it" in plan_lines(plan)[-1]


def test_a_plan_of_the_rule_says_so() -> None:
    plan = plan_by_rule(problem([10]), note="planned by the rule: HiGHS is not installed")
    assert isinstance(plan, ProcurementPlan)
    assert plan_lines(plan)[-1] == "planned by the rule: HiGHS is not installed"
    plain = json.loads(json.dumps(plan_as_plain(plan)))
    assert plain["planner"] == "self-consumption rule"
    assert plain["energy_value_per_mwh"] is None


def test_prices_show_tariff_carbon_and_what_the_carbon_rests_on() -> None:
    prices = predicted_prices(hours(2), [90, 100], [500, 250], currency="USD")
    assert prices_lines(prices)[1].split() == ["2026-03-02T00:00Z", "90.00", "40.00", "130.00"]
    assert prices_lines(prices)[-1] == "carbon at 80 USD/t (stated)"
    assert json.loads(json.dumps(prices_as_plain(prices)))["total_per_mwh"] == [130, 120]


def test_bids_and_an_empty_book_are_json() -> None:
    terms = spot_tariff().energy
    assert isinstance(terms, SpotPrice)
    plan = planned(problem([10] * 30, load_kwh=[100] * 30))
    bids = bids_from(plan, terms, hub="dakhla", now=START, firm_limit_per_mwh=200)
    plain = json.loads(json.dumps(bids_as_plain(bids, market="paper")))
    assert plain[0]["market"] == "paper"
    assert json.loads(json.dumps(book_as_plain(Book()))) == {"rows": [], "bids": {}, "sums": []}


def test_the_last_line_of_a_bill_is_its_total() -> None:
    found = bill(spot_tariff(), hours(1), [1000], spot_per_mwh=np.array([50.0]))
    assert bill_lines(found)[-1].split() == ["total", "EUR", "60.00"]


def test_numbers_that_are_none_never_reach_a_client() -> None:
    prices = predicted_prices(hours(1), [90], [500], currency="USD")
    prices.carbon_per_mwh[0] = np.nan
    with pytest.raises(ValueError, match="no number"):
        prices_as_plain(prices)
