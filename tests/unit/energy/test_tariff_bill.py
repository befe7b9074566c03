"""Does a bill charge what the contract says, line by line?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from harch.base.errors import HarchError
from harch.carbon.values import Method
from harch.energy.carbon_price import predicted_prices
from harch.energy.currencies import ExchangeRates
from harch.energy.procurement.contract import bill_of_plan, problem_under
from harch.energy.procurement.problem import Battery
from harch.energy.steps import Steps
from harch.energy.tariffs.prices import (
    PpaDelivery,
    SpotSeries,
    bill,
    expected_spot,
    import_prices,
    known_spot,
    sale_prices,
)
from harch.energy.tariffs.terms import SpotPrice
from unit.energy.energy_fixtures import START, hours, planned, spot_tariff, time_of_use

MADRID = SpotPrice("ES", ZoneInfo("Europe/Madrid"), time(13))


def test_energy_is_billed_by_band_fee_peak_and_sale() -> None:
    tariff = replace(time_of_use(), ppas=())
    # A Monday in winter, when Casablanca is an hour ahead of UTC: the second hour is the first of the peak.
    steps = hours(2, datetime(2026, 1, 12, 15, tzinfo=UTC))
    found = bill(tariff, steps, [10, 20], sold_kwh=[5, 0])
    amounts = {line.what: line.amount for line in found.lines}
    assert amounts["energy, winter peak"] == pytest.approx(20 * 1.4)
    assert amounts["energy, winter normal"] == pytest.approx(10 * 1.0)
    assert amounts["network fee"] == pytest.approx(30 * 0.05)
    assert amounts["peak of 2026-01"] == pytest.approx(20 * 40)
    assert amounts["sold"] == pytest.approx(-5 * 0.2)
    assert found.total == pytest.approx(sum(amounts.values()))
    assert found.currency == "MAD"


def test_an_hour_with_two_bands_is_billed_by_the_quarter() -> None:
    tariff = replace(time_of_use(), ppas=(), fee_per_mwh=0.0, demand=None, local_time=UTC)
    step = hours(1, datetime(2026, 7, 6, 18, tzinfo=UTC))  # the peak starts at 18:30
    assert bill(tariff, step, [100]).total == pytest.approx(50 * 1.1 + 50 * 1.5)
    assert import_prices(tariff, step)[0] == pytest.approx(1300)


def test_what_must_be_taken_is_paid_without_being_used() -> None:
    tariff = time_of_use()
    farm, base = tariff.ppas
    steps = hours(1)
    deliveries = [
        PpaDelivery(farm, np.array([40.0]), np.array([10.0])),
        PpaDelivery(base, np.array([100.0]), np.array([10.0])),
    ]
    amounts = {line.what: line.amount for line in bill(tariff, steps, [0], ppas=deliveries).lines}
    assert amounts["agreement wind farm, taken or not"] == pytest.approx(40 * 0.45)
    assert amounts["agreement baseload, as used"] == pytest.approx(10 * 0.6)
    assert amounts["peak of 2026-03"] == pytest.approx(20 * 40)  # the meter sees what is used


def test_only_the_part_of_a_peak_above_an_earlier_one_is_charged() -> None:
    tariff = replace(time_of_use(), ppas=())
    found = bill(tariff, hours(1), [50], peaks_before_kw={"2026-03": 45.0})
    assert next(line.amount for line in found.lines if line.what.startswith("peak")) == pytest.approx(5 * 40)


def test_months_are_those_of_the_contract() -> None:
    tariff = replace(time_of_use(), ppas=(), local_time=ZoneInfo("Asia/Tokyo"))
    found = bill(tariff, hours(2, datetime(2026, 3, 31, 14, tzinfo=UTC)), [1, 2])
    assert [line.what for line in found.lines if line.what.startswith("peak")] == ["peak of 2026-03", "peak of 2026-04"]


@pytest.mark.parametrize("energy", [[1, float("nan")], [1, -1], [1]])
def test_meters_with_gaps_are_not_billed(energy: list[float]) -> None:
    with pytest.raises(HarchError, match="E0242"):
        bill(time_of_use(), hours(2), energy)


def spot_series(days: int, start: datetime = START - timedelta(days=10)) -> SpotSeries:
    steps = hours(days * 24, start)
    return SpotSeries("ES", "EUR", steps, 50 + 10 * np.sin(np.arange(steps.count) * np.pi / 12))


def test_a_spot_bill_is_the_sum_over_hours() -> None:
    tariff, steps = spot_tariff(), hours(3)
    prices = np.array([10.0, -20.0, 30.0])
    found = bill(tariff, steps, [100, 100, 100], sold_kwh=[10, 0, 0], spot_per_mwh=prices)
    assert found.total == pytest.approx((10 - 20 + 30) / 10 + 3 - 0.09)
    assert sale_prices(tariff, steps, spot_per_mwh=prices).tolist() == pytest.approx([9, -18, 27])
    with pytest.raises(HarchError, match="needs the spot prices of ES"):
        bill(tariff, steps, [1, 1, 1])


def test_prices_that_are_not_published_yet_are_not_known_though_the_series_has_them() -> None:
    steps = hours(48)
    known = known_spot(spot_series(20), MADRID, steps, now=START + timedelta(hours=9))  # 10:00 in Madrid
    assert np.flatnonzero(np.isnan(known))[0] == 23  # the market's midnight is 23:00 UTC
    later = known_spot(spot_series(20), MADRID, steps, now=START + timedelta(hours=12))
    assert np.flatnonzero(np.isnan(later))[0] == 47


def test_beyond_what_is_published_the_usual_day_is_expected() -> None:
    spot, steps = spot_series(20), hours(48)
    expected = expected_spot(spot, MADRID, steps, now=START + timedelta(hours=9))
    assert expected == pytest.approx(spot.over(steps))  # every day is alike here
    dearer = replace(spot, per_mwh=np.where(np.arange(480) >= 9 * 24, spot.per_mwh + 30, spot.per_mwh))
    above = expected_spot(dearer, MADRID, steps, now=START + timedelta(hours=9))[23:] - spot.over(steps)[23:]
    assert above[0] > 20
    assert above[0] > above[-1] > 0


def test_expected_prices_never_look_at_what_is_not_published() -> None:
    now, steps = START + timedelta(hours=9), hours(48)
    spot = spot_series(20)
    changed = spot.per_mwh.copy()
    changed[10 * 24 + 23 :] = 9999
    other = replace(spot, per_mwh=changed)
    assert (expected_spot(spot, MADRID, steps, now=now) == expected_spot(other, MADRID, steps, now=now)).all()


def test_without_any_history_nothing_is_made_up() -> None:
    expected = expected_spot(spot_series(1, START - timedelta(days=99)), MADRID, hours(48), now=START)
    assert np.isnan(expected).all()


def test_a_plan_costs_what_the_contract_bills_for_it() -> None:
    tariff, steps = time_of_use(), hours(36)
    wave = 300 + 200 * np.sin(np.arange(36) / 4)
    asked = problem_under(
        tariff,
        steps,
        load_kwh=np.full(36, 500.0),
        own_kwh=wave,
        grid_g_per_kwh=630.0,
        import_kw_max=2000,
        plants_kwh={"akhfenir": wave},
        peaks_before_kw={"2026-03": 150.0},
        method=Method.MARKET,
    )
    asked = replace(asked, battery=Battery(energy_kwh=800, power_kw=200), stored_kwh=100.0)
    plan = planned(asked)
    assert bill_of_plan(tariff, asked, plan).total == pytest.approx(plan.costs.bill)
    assert asked.ppas[0].g_per_kwh[0] == 11
    with pytest.raises(HarchError, match="which has no forecast"):
        problem_under(tariff, steps, load_kwh=1, own_kwh=0, grid_g_per_kwh=1, import_kw_max=1)


def test_by_location_an_agreement_is_as_clean_as_the_grid_that_brings_it() -> None:
    steps = hours(2)
    asked = problem_under(
        time_of_use(),
        steps,
        load_kwh=1,
        own_kwh=0,
        grid_g_per_kwh=[600, 700],
        import_kw_max=9,
        plants_kwh={"akhfenir": np.ones(2)},
    )
    assert [ppa.g_per_kwh.tolist() for ppa in asked.ppas] == [[600, 700]] * 2


def test_the_predicted_carbon_price_is_tariff_plus_intensity_times_price_per_tonne() -> None:
    prices = predicted_prices(hours(2), [90, 100], [500, 250], currency="USD")
    assert prices.total_per_mwh.tolist() == [130, 120]
    assert (prices.per_t, prices.basis) == (80.0, "stated")


def test_under_a_budget_its_shadow_price_counts_if_it_is_higher() -> None:
    prices = predicted_prices(hours(1), [90], [500], currency="USD", shadow_per_t=200.0)
    assert prices.total_per_mwh.tolist() == [190]
    assert prices.basis == "shadow price of the budget"
    assert predicted_prices(hours(1), [90], [500], currency="USD", shadow_per_t=20.0).per_t == 80


def test_dollars_per_tonne_are_converted_at_a_stated_rate_or_not_at_all() -> None:
    rates = ExchangeRates({"MAD": 10.0}, "test")
    assert predicted_prices(hours(1), [900], [500], currency="MAD", rates=rates).total_per_mwh.tolist() == [1300]
    with pytest.raises(HarchError, match="no exchange rate for XOF"):
        predicted_prices(hours(1), [900], [500], currency="XOF", rates=rates)
    assert rates.convert(5, of="XOF", to="XOF") == 5
    with pytest.raises(HarchError, match="E0241"):
        ExchangeRates({"MAD": 0.0})


def test_half_hourly_steps_take_the_price_of_their_hour() -> None:
    spot = spot_series(20)
    halves = Steps(START, 1800, 4)
    assert spot.over(halves).tolist() == np.repeat(spot.over(hours(2)), 2).tolist()
