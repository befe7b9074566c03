"""What comes out of a battery is billed as what went in: nothing gets cleaner by being stored, and nothing is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.carbon.ledger.battery import ROUND_TRIP, BatteryFlows, Stored, battery_flows, bill_battery
from harch.carbon.ledger.charge import grams_of
from harch.carbon.values import Signal
from unit.carbon.ledger.charges import energy, factors, hour
from unit.carbon.ledger.test_ledger_meter import sample


def test_own_surplus_goes_in_before_power_from_the_grid() -> None:
    filling = sample(timedelta(0), {Signal.FACILITY_POWER: 100, Signal.PV_POWER: 130, Signal.BATTERY_POWER: -50})
    using = sample(timedelta(minutes=30), {Signal.FACILITY_POWER: 100, Signal.WIND_POWER: 80, Signal.BATTERY_POWER: 60})
    found = battery_flows(hour(), [filling, using], modelled_it_kw=0, pue=1)
    assert found == BatteryFlows(onsite_in_kwh=15, grid_in_kwh=10, served_kwh=10)


def test_coal_power_of_the_night_is_coal_power_at_noon() -> None:
    night = bill_battery(energy(100), factors(800), BatteryFlows(grid_in_kwh=50), Stored())
    assert night.energy == energy(100)  # what went in is not charged yet
    served = 50 * ROUND_TRIP
    noon = bill_battery(energy(100), factors(100), BatteryFlows(served_kwh=served), night.stored)
    grams = grams_of(noon.energy.supply, noon.factors, 0)
    assert grams.location == pytest.approx((100 - served) * 100 + 50 * 800)
    assert noon.stored.kwh == pytest.approx(0)
    assert "from the battery" in noon.factors.grid.note


def test_stored_sun_is_own_power_when_it_is_used_and_not_before() -> None:
    noon = bill_battery(energy(100, onsite=100, made=150), factors(), BatteryFlows(onsite_in_kwh=50), Stored())
    assert noon.energy.onsite_available_kwh == pytest.approx(100)
    served = 50 * ROUND_TRIP
    evening = bill_battery(energy(100), factors(), BatteryFlows(served_kwh=served), noon.stored)
    assert evening.energy.supply.onsite_kwh == pytest.approx(served)
    assert grams_of(evening.energy.supply, evening.factors, 0).onsite == pytest.approx(50 * 20)  # losses included


def test_power_that_nobody_saw_going_in_is_the_grids() -> None:
    found = bill_battery(energy(100), factors(600), BatteryFlows(served_kwh=40), Stored())
    assert found.energy.supply.onsite_kwh == 0
    assert grams_of(found.energy.supply, found.factors, 0).location == pytest.approx((60 + 40 / ROUND_TRIP) * 600)


def test_an_interval_without_a_battery_is_unchanged() -> None:
    found = bill_battery(energy(100, onsite=30, made=50, ppa=20), factors(), BatteryFlows(), Stored(), ppa_share=2 / 7)
    assert found.energy == energy(100, onsite=30, made=50, ppa=20)
    assert found.factors == factors()


METHODS = ("location", "market", "onsite")

hours = st.tuples(
    st.floats(1, 1000),  # grid's intensity
    st.floats(0, 1),  # of the load, own power
    st.floats(0, 50),  # own surplus that goes in
    st.floats(0, 50),  # grid power that goes in
    st.floats(0, 100),  # what comes out
)


@given(st.lists(hours, max_size=10), st.floats(0, 1), st.floats(0, 0.2))
def test_no_gram_is_lost_or_made_by_storing(asked: list[tuple[float, ...]], ppa_share: float, loss: float) -> None:
    stored = Stored()
    taken_in, billed = dict.fromkeys(METHODS, 0.0), dict.fromkeys(METHODS, 0.0)
    for grid, own, onsite_in, grid_in, out in asked:
        onsite = 100 * own
        ppa = (100 - onsite) * ppa_share
        meter = energy(100, onsite=onsite, made=onsite + onsite_in, ppa=ppa, loss=loss)
        used = factors(grid, residual=grid * 1.1)
        served = min(out, 100 - onsite, stored.kwh * ROUND_TRIP)  # no more than went in before our eyes
        flows = BatteryFlows(onsite_in_kwh=onsite_in, grid_in_kwh=grid_in, served_kwh=served)
        bill = bill_battery(meter, used, flows, stored, ppa_share=ppa_share)
        stored = bill.stored
        assert bill.energy.supply.kwh == pytest.approx(100)
        grams = grams_of(bill.energy.supply, bill.factors, loss)
        for name in METHODS:
            billed[name] += getattr(grams, name)
        bought = 100 - onsite - served + grid_in
        taken_in["location"] += bought * grid * (1 + loss)
        taken_in["market"] += bought * ((1 - ppa_share) * grid * 1.1 + ppa_share * 11) * (1 + loss)
        taken_in["onsite"] += (onsite + onsite_in) * 20
    left = {"location": stored.location_g, "market": stored.residual_g + stored.contract_g, "onsite": stored.onsite_g}
    for name in METHODS:
        assert billed[name] + left[name] == pytest.approx(taken_in[name], rel=1e-6, abs=1e-6)
