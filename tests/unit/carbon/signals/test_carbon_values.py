"""Can figures of different kinds be mixed? No; and whoever prints a reading prints where it is from."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.carbon.units import quantity, units_of
from harch.carbon.values import (
    EXAMPLES,
    Basis,
    CarbonIntensity,
    Emissions,
    EmissionScope,
    Energy,
    Evidence,
    IntensityKind,
    KindsMixed,
    Method,
    Power,
    Price,
    Reading,
    Signal,
    WindSpeed,
)
from harch.testing.clock import START
from unit.carbon.signals.carbon_readings import reading

KINDS = [IntensityKind(*parts) for parts in product(Basis, EmissionScope, Method)]
numbers = st.floats(0, 1e6)


@given(numbers, numbers, st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_intensities_add_and_compare_only_within_one_kind(
    one: float, other: float, first: IntensityKind, second: IntensityKind
) -> None:
    a, b = CarbonIntensity(one, first), CarbonIntensity(other, second)
    if first == second:
        assert (a + b).g_per_kwh == one + other
        assert (a < b) == (one < other)
    else:
        for mix in (lambda: a + b, lambda: a - b, lambda: a < b, lambda: a >= b):
            with pytest.raises(KindsMixed):
                mix()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Price(80.0, "USD"), Price(80.0, "MAD")),
        (WindSpeed(5.0, 10), WindSpeed(5.0, 80)),
        (Power(5.0), Energy(5.0)),
        (Emissions(5.0, KINDS[0]), Emissions(5.0, KINDS[1])),
    ],
    ids=["currencies", "heights", "power and energy", "grams of two methods"],
)
def test_other_figures_that_look_alike_cannot_be_mixed_either(one: Power, other: Power) -> None:
    with pytest.raises(KindsMixed, match="different kinds"):
        one + other


def test_a_product_of_two_quantities_needs_a_method_of_its_own() -> None:
    intensity, energy = CarbonIntensity(600.0, KINDS[0]), Power(100.0).over(timedelta(minutes=30))
    assert intensity.emissions(energy) == Emissions(30_000.0, KINDS[0])
    with pytest.raises(TypeError):
        intensity * energy


@pytest.mark.parametrize("signal", Signal)
def test_every_signal_has_one_kind_and_takes_no_reading_of_another(signal: Signal) -> None:
    assert reading(1.0, signal=signal).value == EXAMPLES[signal].with_number(1.0)
    others = [example for example in EXAMPLES.values() if not _fits(example, EXAMPLES[signal])]
    for other in others:
        with pytest.raises(KindsMixed):
            Reading(signal=signal, value=other, at=START, source="api", evidence=Evidence.MEASURED, received_at=START)


def _fits(one: object, other: object) -> bool:
    return type(one) is type(other) and one.kind == other.kind  # type: ignore[attr-defined]


def test_a_printed_reading_says_kind_evidence_source_and_time() -> None:
    text = str(reading(412.0, evidence=Evidence.ESTIMATED, source="electricity-maps"))
    assert text == "412 g/kWh (average, lifecycle, location) [estimated, electricity-maps, 2026-01-01T00:00:00Z]"


def test_a_reading_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        reading(1.0, at=START.replace(tzinfo=None))


@given(st.floats(0, 3000))
def test_pounds_per_mwh_become_grams_per_kwh(number: float) -> None:
    value = quantity(Signal.GRID_MARGINAL_DIRECT, number, "lbs/MWh")
    assert value.number == pytest.approx(number * 453.59237 / 1000)
    assert value.kind == EXAMPLES[Signal.GRID_MARGINAL_DIRECT].kind


@given(st.sampled_from(list(Signal)), st.data(), st.floats(-1e6, 1e6))
def test_a_unit_converts_in_proportion_or_is_refused(signal: Signal, data: st.DataObject, number: float) -> None:
    unit = data.draw(st.sampled_from(sorted({unit for other in Signal for unit in units_of(other)})))
    if unit not in units_of(signal):
        with pytest.raises(KindsMixed, match="is not a unit of"):
            quantity(signal, number, unit)
        return
    value, zero, one = (quantity(signal, times, unit).number for times in (number, 0.0, 1.0))
    assert value == pytest.approx(zero + number * (one - zero), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("signal", "number", "unit", "expected"),
    [
        (Signal.GRID_AVERAGE_DIRECT, 0.63, "kg/kWh", "630 g/kWh (average, direct, location)"),
        (Signal.GRID_AVERAGE_DIRECT, 630.0, "kg/MWh", "630 g/kWh (average, direct, location)"),
        (Signal.PV_POWER, 412500.0, "W", "412.5 kW"),
        (Signal.PRICE, 0.11, "EUR/kWh", "110 per MWh (EUR)"),
        (Signal.WIND_SPEED_10M, 36.0, "km/h", "10 m/s (10 m above ground)"),
        (Signal.TEMPERATURE, 300.15, "K", "27 °C"),
        (Signal.CLOUD_COVER, 25.0, "%", "0.25 of the sky"),
    ],
)
def test_units_of_other_places_are_understood(signal: Signal, number: float, unit: str, expected: str) -> None:
    assert str(quantity(signal, number, unit)) == expected
