"""Readings become energy and factors: own power is matched in its moment, forecasts are refused, gaps are told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harch.base.errors import HarchError
from harch.carbon.ledger.meter import (
    FROM_GPU_METERS,
    METERED,
    MODELLED,
    NO_CONTRACT,
    STAND_IN,
    hub_energy,
    observed_factors,
)
from harch.carbon.signals.choice import HubSignals, Quality, SignalState
from harch.carbon.values import EXAMPLES, Evidence, KindsMixed, Method, Reading, Signal
from unit.carbon.ledger.charges import START, hour

HALF = timedelta(minutes=30)


def sample(
    after: timedelta,
    numbers: dict[Signal, float],
    *,
    evidence: Evidence = Evidence.MEASURED,
    source: str = "meter",
    ahead: bool = False,
) -> HubSignals:
    at = START + after
    states = {
        signal: SignalState(
            signal=signal,
            reading=Reading(
                signal=signal,
                value=EXAMPLES[signal].with_number(number),
                at=at,
                source=source,
                evidence=evidence,
                received_at=at,
                ahead=ahead,
            ),
            quality=Quality.FIRST,
            age_s=0,
            not_used=(),
        )
        for signal, number in numbers.items()
    }
    return HubSignals(hub="dakhla", taken_at=at, states=states)


def test_own_power_is_matched_with_the_load_sample_by_sample() -> None:
    """Twice the load of sun in the first half hour does not run the second: that would be an export credit."""
    bright = sample(timedelta(0), {Signal.FACILITY_POWER: 100, Signal.PV_POWER: 150, Signal.WIND_POWER: 50})
    dark = sample(HALF, {Signal.FACILITY_POWER: 100, Signal.PV_POWER: 0})
    found = hub_energy(hour(), [bright, dark], modelled_it_kw=1, pue=1.3, ppa_share=0.5)
    assert found.kwh == pytest.approx(100)
    assert found.onsite_kwh == pytest.approx(50)
    assert found.onsite_available_kwh == pytest.approx(100)
    assert found.ppa_kwh == pytest.approx(25)
    assert (found.method, found.evidence, found.pue) == (METERED, Evidence.MEASURED, pytest.approx(1.3))


def test_without_a_facility_meter_the_energy_is_estimated_and_says_how() -> None:
    gpus = sample(timedelta(0), {Signal.GPU_POWER: 80, Signal.PUE: 1.5})
    found = hub_energy(hour(), [gpus], modelled_it_kw=10, pue=1.2)
    assert (found.kwh, found.method) == (pytest.approx(120), FROM_GPU_METERS)
    found = hub_energy(hour(), [sample(timedelta(0), {})], modelled_it_kw=10, pue=1.2)
    assert (found.kwh, found.method, found.evidence) == (pytest.approx(12), MODELLED, Evidence.ESTIMATED)


def test_what_a_battery_gives_is_charged_as_power_from_the_grid() -> None:
    found = hub_energy(
        hour(), [sample(HALF, {Signal.FACILITY_POWER: 10, Signal.BATTERY_POWER: 10})], modelled_it_kw=0, pue=1
    )
    assert found.supply.grid_kwh == pytest.approx(10)


def test_a_sample_from_before_the_interval_holds_until_the_next() -> None:
    before = sample(-timedelta(minutes=1), {Signal.FACILITY_POWER: 40})
    later = sample(timedelta(minutes=45), {Signal.FACILITY_POWER: 80})
    after = sample(timedelta(minutes=61), {Signal.FACILITY_POWER: 9999})
    assert hub_energy(hour(), [after, later, before], modelled_it_kw=0, pue=1).kwh == pytest.approx(50)


def test_the_intensity_of_an_interval_is_the_mean_of_what_was_observed() -> None:
    first = sample(timedelta(0), {Signal.GRID_AVERAGE_LIFECYCLE: 600, Signal.ONSITE_LIFECYCLE: 20}, source="maps")
    second = sample(
        timedelta(minutes=45), {Signal.GRID_AVERAGE_LIFECYCLE: 400}, source="model", evidence=Evidence.ESTIMATED
    )
    found = observed_factors(hour(), [first, second])
    assert found.grid.g_per_kwh == pytest.approx(550)
    assert (found.grid.source, found.grid.evidence) == ("maps, model", Evidence.ESTIMATED)
    assert found.grid.as_of == START + timedelta(minutes=45)
    assert found.onsite.g_per_kwh == 20


def test_the_grid_stands_in_where_no_contract_is_known_and_says_so() -> None:
    found = observed_factors(hour(), [sample(HALF, {Signal.GRID_AVERAGE_LIFECYCLE: 600})])
    assert (found.residual.method, found.residual.note) == (Method.MARKET, STAND_IN)
    assert (found.contract.g_per_kwh, found.contract.note) == (600, NO_CONTRACT)
    assert found.onsite.g_per_kwh == 600  # unknown is never clean
    found = observed_factors(
        hour(), [sample(HALF, {Signal.GRID_AVERAGE_LIFECYCLE: 600, Signal.CONTRACT_LIFECYCLE: 11})]
    )
    assert found.contract.g_per_kwh == 11


def test_nothing_is_charged_on_an_intensity_that_nobody_knows() -> None:
    with pytest.raises(HarchError, match="nothing charged"):
        observed_factors(hour(), [sample(HALF, {Signal.GRID_MARGINAL_DIRECT: 600})])
    with pytest.raises(HarchError, match="no signals"):
        observed_factors(hour(), [])


def test_forecasts_of_power_or_intensity_are_refused() -> None:
    with pytest.raises(KindsMixed, match="forecast"):
        observed_factors(hour(), [sample(HALF, {Signal.GRID_AVERAGE_LIFECYCLE: 6}, ahead=True)])
    with pytest.raises(KindsMixed, match="forecast"):
        hub_energy(hour(), [sample(HALF, {Signal.PV_POWER: 6}, ahead=True)], modelled_it_kw=1, pue=1)
