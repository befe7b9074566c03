"""Reports add up, show every method side by side, and never add location to market."""

from __future__ import annotations

import csv
import json

import pytest

from harch.base.errors import HarchError
from harch.carbon.ledger.accounting import account
from harch.carbon.ledger.budgets import month_bounds, projected, spent
from harch.carbon.ledger.chain import LedgerHead, LedgerRow, book
from harch.carbon.ledger.charge import Factors, Footprint, no_footprint, observed_factor
from harch.carbon.ledger.report import COLUMNS, GroupBy, as_csv, as_json, as_plain, report, totals
from harch.carbon.values import (
    Basis,
    CarbonIntensity,
    Emissions,
    EmissionScope,
    Evidence,
    IntensityKind,
    KindsMixed,
    Method,
    Power,
    Reading,
    Signal,
)
from unit.carbon.ledger.charges import HOUR, START, energy, factor, factors, hour, job

BY_LOCATION = IntensityKind(Basis.AVERAGE, EmissionScope.LIFECYCLE, Method.LOCATION)
BY_MARKET = IntensityKind(Basis.AVERAGE, EmissionScope.LIFECYCLE, Method.MARKET)


def rows_of(hub: str = "dakhla", *, of: Factors | None = None) -> list[LedgerRow]:
    jobs = [
        job("train", 16, data=("images", "labels"), evidence=Evidence.MEASURED),
        job("serve", 8, tenant="rif", data=("images",)),
        job("=cmd()", 4, tenant="rif"),
    ]
    charges = account(hour(), hub, energy(100, onsite=25, ppa=15), jobs, of or factors())
    return [linked.row for linked in book(LedgerHead(), charges, booked_at=START + HOUR).rows]


@pytest.mark.parametrize("group_by", list(GroupBy))
def test_the_lines_of_a_report_add_up_to_its_total(group_by: GroupBy) -> None:
    found = report([*rows_of(), *rows_of("dakar")], group_by)
    for method in (Method.LOCATION, Method.MARKET):
        lines = sum(line.footprint.total(method).g for line in found.lines.values())
        assert lines == pytest.approx(found.total.footprint.total(method).g)
    assert sum(line.energy.kwh for line in found.lines.values()) == pytest.approx(200)
    assert found.hubs == ("dakar", "dakhla")
    assert found.months == ("2026-03",)


def test_a_job_that_read_two_datasets_is_divided_between_them() -> None:
    lines = report(rows_of(), GroupBy.DATASET).lines
    assert lines["labels"].energy.kwh == pytest.approx(10)
    assert lines["images"].energy.kwh == pytest.approx(20)
    assert lines[""].energy.kwh == pytest.approx(70)


def test_location_and_market_are_never_summed() -> None:
    footprint = totals(rows_of()).footprint
    with pytest.raises(KindsMixed):
        footprint.location + footprint.market
    with pytest.raises(KindsMixed):
        footprint.location - footprint.onsite
    with pytest.raises(KindsMixed):
        assert footprint.location < footprint.market
    with pytest.raises(KindsMixed):
        Footprint(location=footprint.market, market=footprint.market, onsite=footprint.onsite)
    with pytest.raises(KindsMixed, match="no total of their own"):
        footprint.total(Method.ONSITE)


def test_rows_with_lifecycle_and_with_direct_factors_have_no_total() -> None:
    with pytest.raises(KindsMixed, match="cannot be totalled"):
        totals([*rows_of(), *rows_of(of=factors(scope=EmissionScope.DIRECT))])
    with pytest.raises(KindsMixed):
        no_footprint(EmissionScope.DIRECT) + no_footprint(EmissionScope.LIFECYCLE)


def test_factors_are_used_for_what_they_are_of() -> None:
    good = factors()
    with pytest.raises(KindsMixed, match="not a factor for location"):
        Factors(grid=good.residual, residual=good.residual, contract=good.contract, onsite=good.onsite)
    direct = factor(0, Method.ONSITE, scope=EmissionScope.DIRECT)
    with pytest.raises(KindsMixed, match="mix lifecycle"):
        Factors(grid=good.grid, residual=good.residual, contract=good.contract, onsite=direct)
    marginal = factor(9, Method.MARKET, basis=Basis.MARGINAL)
    with pytest.raises(KindsMixed, match="mix average"):
        Factors(grid=good.grid, residual=good.residual, contract=marginal, onsite=good.onsite)


def test_a_forecast_is_not_billed() -> None:
    reading = Reading(
        signal=Signal.GRID_AVERAGE_LIFECYCLE,
        value=CarbonIntensity(50, BY_LOCATION),
        at=START,
        source="maps",
        evidence=Evidence.ESTIMATED,
        received_at=START,
        ahead=True,
    )
    with pytest.raises(KindsMixed, match="is a forecast: it cannot be billed"):
        observed_factor(reading)


def test_the_json_export_names_units_factors_sources_and_shares() -> None:
    plain = json.loads(as_json(report(rows_of(), GroupBy.TENANT)))
    assert plain["units"] == {"energy": "kWh", "emissions": "kg CO2e", "intensity": "g CO2e/kWh"}
    assert "scope 3, category 3" in plain["notes"][0]
    total = plain["total"]
    assert total["scope2_location_based_kgco2e"] == pytest.approx(75 * 0.6)
    assert total["scope2_market_based_kgco2e"] == pytest.approx((60 * 650 + 15 * 11) / 1000)
    assert total["onsite_kgco2e"] == pytest.approx(0.5)
    assert total["kinds"]["market"] == "average, lifecycle, market"
    assert total["measured_share"] == pytest.approx(0.85)  # the measured job, and the rest of the meter
    assert total["measured_share"] + total["estimated_share"] == pytest.approx(1)
    assert {one["use"]: one["kwh"] for one in plain["factors"]} == pytest.approx(
        {"grid": 75, "residual": 60, "contract": 15, "onsite": 25}
    )
    assert {line["name"] for line in plain["lines"]} == {"", "atlas", "rif"}


def test_no_figure_of_an_export_is_a_sum_of_location_and_market() -> None:
    total = as_plain(report(rows_of(), GroupBy.HUB))["total"]
    assert isinstance(total, dict)
    both = total["scope2_location_based_kgco2e"] + total["scope2_market_based_kgco2e"]
    numbers = [value for value in total.values() if isinstance(value, float)]
    assert all(abs(number - both) > 1 for number in numbers)


def test_the_csv_export_has_one_line_per_name_and_no_formulas() -> None:
    lines = list(csv.DictReader(as_csv(report(rows_of(), GroupBy.JOB)).splitlines()))
    assert [(line["group_by"], line["name"]) for line in lines] == [
        ("job", ""),
        ("job", "'=cmd()"),
        ("job", "serve"),
        ("job", "train"),
        ("total", ""),
    ]
    assert tuple(lines[0]) == COLUMNS
    assert lines[0]["saved_method"] == ""  # nobody's power has no naive run
    assert lines[3]["saved_method"].startswith("naive-1: home hub, immediate start")
    assert lines[-1]["factor_sources"] == "maps"


def test_an_empty_report_is_a_report() -> None:
    found = report([], GroupBy.MONTH)
    assert found.total.rows == 0
    assert found.total.g_per_kwh(Method.LOCATION) is None
    assert as_csv(found).count("\n") == 2


def test_what_a_tenant_spent_in_a_month_is_a_value_for_the_planner() -> None:
    found = spent(rows_of(), "rif", "2026-03")
    assert found.energy.kwh == pytest.approx(15)
    assert found.emissions.g == pytest.approx(15 * 0.75 * 600 + 15 * 0.25 * 20)
    assert found.estimated_share == 1
    assert found.left_g(Emissions(10_000, BY_LOCATION)) == pytest.approx(10_000 - found.emissions.g)
    assert found.left_g(Emissions(1, BY_LOCATION)) == 0
    assert spent(rows_of(), "rif", "2026-04").emissions == Emissions(0, BY_LOCATION)


def test_a_budget_by_location_is_not_paid_with_grams_by_contract() -> None:
    with pytest.raises(KindsMixed):
        spent(rows_of(), "rif", "2026-03", Method.MARKET).left_g(Emissions(10_000, BY_LOCATION))


def test_a_job_is_projected_from_what_it_took_and_what_is_left() -> None:
    forecast = CarbonIntensity(100, BY_LOCATION)
    found = projected(rows_of(), "train", power=Power(20), hours_left=3, forecast=forecast)
    assert found.spent.g == pytest.approx(20 * 0.75 * 600 + 20 * 0.25 * 20)
    assert found.expected.g == pytest.approx(6000)
    assert found.total.g == pytest.approx(found.spent.g + 6000)
    assert found.left_g(Emissions(found.spent.g + 5, BY_LOCATION)) == pytest.approx(5)
    assert projected(rows_of(), "train", power=Power(20), hours_left=3, forecast=CarbonIntensity(9, BY_MARKET)).total


@pytest.mark.parametrize("month", ["2026-13", "2026-3", "0000-01", "March", "2026-03-01", "9999-12"])
def test_a_month_that_is_none_is_refused(month: str) -> None:
    with pytest.raises(HarchError, match="is not a month"):
        month_bounds(month)


def test_december_ends_with_the_year() -> None:
    start, end = month_bounds("2026-12")
    assert (start.month, end.year, end.month) == (12, 2027, 1)
