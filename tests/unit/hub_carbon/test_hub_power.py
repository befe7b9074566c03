"""What one more kWh emits, what a bid says, and that nothing is shown without its source."""

from __future__ import annotations

import pytest

from harch.carbon.values import Signal
from harch.hub.carbon.signals import CARBON, CARBON_AHEAD, bid_price_per_kwh, hub_power, published_power, received_power
from harch.testing.samples import tiny_fleet
from harch.wire.carbon import HubPower
from unit.hub_carbon.power_samples import signals, state

HUB = tiny_fleet().hubs[0]
GRID = state(Signal.GRID_AVERAGE_LIFECYCLE, 600)
PLANTS = (state(Signal.ONSITE_LIFECYCLE, 20), state(Signal.PV_POWER, 80), state(Signal.WIND_POWER, 20))
PUE = state(Signal.PUE, 1.5)


def power(*states: object, load_kw: float = 0.0) -> HubPower:
    return hub_power(HUB, "MA", signals(*states), load_kw=load_kw)  # type: ignore[arg-type]


def test_own_plants_serve_as_far_as_they_have_power_to_spare() -> None:
    spare, used_up = (power(GRID, *PLANTS, PUE, load_kw=load_kw) for load_kw in (60, 70))
    assert (spare.marginal_g_per_kwh, spare.onsite_kw, spare.load_kw) == (30, 100, 90)
    assert "10 kW of own plants to spare" in spare.marginal_rests_on
    assert (used_up.marginal_g_per_kwh, used_up.load_kw) == (900, 105)


def test_a_meter_of_the_hub_goes_before_the_estimate_of_its_load() -> None:
    metered = power(GRID, *PLANTS, PUE, state(Signal.FACILITY_POWER, 130), load_kw=10)
    assert (metered.load_kw, metered.marginal_g_per_kwh) == (130, 900)


def test_the_marginal_figure_of_the_grid_goes_before_its_average_which_is_named_a_stand_in() -> None:
    both = power(GRID, state(Signal.GRID_MARGINAL_LIFECYCLE, 400), PUE)
    assert (both.marginal_g_per_kwh, "stands in" in both.marginal_rests_on) == (600, False)
    average = power(GRID, PUE)
    assert (average.marginal_g_per_kwh, "stands in" in average.marginal_rests_on) == (900, True)


def test_what_nobody_knows_is_no_number() -> None:
    nothing = power()
    assert (nothing.marginal_g_per_kwh, nothing.price_per_mwh) == (None, None)
    figure = nothing.figure(Signal.GRID_AVERAGE_LIFECYCLE)
    assert (figure.value, figure.quality, "no source" in figure.note) == (None, "missing", True)


def test_a_figure_brings_its_kind_its_source_and_its_evidence() -> None:
    figure = power(GRID).figure(Signal.GRID_AVERAGE_LIFECYCLE)
    assert (figure.value, figure.unit, figure.source, figure.evidence) == (600, "g/kWh", "meter", "measured")
    assert figure.kind == ("average, lifecycle, location",)


@pytest.mark.parametrize(("unit", "bid"), [("USD/MWh", 0.09), ("MAD/MWh", None)])
def test_bids_name_only_prices_that_can_be_compared(unit: str, bid: float | None) -> None:
    assert bid_price_per_kwh(power(state(Signal.PRICE, 90, unit=unit))) == bid


def test_other_hubs_hear_all_of_it_and_guess_nothing() -> None:
    told = power(GRID, *PLANTS, PUE)
    said = published_power(told, None)
    assert CARBON_AHEAD not in said
    assert received_power(said[CARBON]) == told
    assert received_power(b"\xc1") is None
    assert received_power(None) is None
