"""Own plants are foretold by their source, else by the weather, else by the modelled sky."""

from __future__ import annotations

from datetime import timedelta

from harch.carbon.signals.sites import OnSite, SignalSite
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal
from harch.hub.carbon.forecast import plants_ahead
from harch.testing.clock import START

UNITS = {
    Signal.PV_POWER: "kW",
    Signal.WIND_POWER: "kW",
    Signal.IRRADIANCE: "W/m2",
    Signal.TEMPERATURE: "°C",
    Signal.WIND_SPEED_10M: "m/s",
    Signal.WIND_SPEED_80M: "m/s",
}
SITE = SignalSite(
    hub="dakhla",
    country="MA",
    grid_zone="MA",
    latitude=23.7,
    longitude=-15.9,
    pue=1.2,
    onsite=OnSite(pv_kw_peak=1000.0, wind_kw=500.0),
)
Told = dict[Signal, tuple[Reading[Quantity], ...]]


def told(signal: Signal, *numbers: float, by: str = "open-meteo") -> tuple[Reading[Quantity], ...]:
    return tuple(
        Reading(
            signal=signal,
            value=quantity(signal, number, UNITS[signal]),
            at=START + timedelta(hours=hour),
            source=by,
            evidence=Evidence.ESTIMATED,
            received_at=START,
            ahead=True,
            note="by hand",
        )
        for hour, number in enumerate(numbers)
    )


def ahead(found: Told) -> dict[str, list[float]]:
    plants = plants_ahead(lambda signal: found.get(signal, ()), SITE)
    return {plant.rests_on: list(plant.kw.values()) for plant in plants}


def test_clouds_and_storms_of_the_weather_replace_the_modelled_sky() -> None:
    modelled: Told = {
        Signal.PV_POWER: told(Signal.PV_POWER, 700, 700, by="modelled"),
        Signal.WIND_POWER: told(Signal.WIND_POWER, 200, 200, by="modelled"),
    }
    weather: Told = {
        Signal.IRRADIANCE: told(Signal.IRRADIANCE, 800, 100),
        Signal.TEMPERATURE: told(Signal.TEMPERATURE, 40, 20),
        Signal.WIND_SPEED_10M: told(Signal.WIND_SPEED_10M, 0, 30),
    }
    pv, wind = ahead(modelled | weather).values()
    assert 0.55 * 800 < pv[0] < 0.86 * 800  # warm panels give less than their plate
    assert 0.8 * 100 < pv[1] < 100
    assert wind == [0.0, 0.0]  # a calm, and a storm in which turbines stand still
    assert list(ahead(modelled).values()) == [[700, 700], [200, 200]]


def test_what_the_plants_own_source_foretells_goes_before_the_weather() -> None:
    found: Told = {
        Signal.PV_POWER: told(Signal.PV_POWER, 640, by="scada"),
        Signal.IRRADIANCE: told(Signal.IRRADIANCE, 0),
    }
    assert ahead(found) == {"pv-power: scada (by hand)": [640]}


def test_wind_near_the_hub_of_a_turbine_is_preferred_to_wind_near_the_ground() -> None:
    near: Told = {Signal.WIND_SPEED_80M: told(Signal.WIND_SPEED_80M, 8.0)}
    far: Told = {Signal.WIND_SPEED_10M: told(Signal.WIND_SPEED_10M, 8.0)}
    (by_near,) = ahead(near).values()
    (by_both,) = ahead(near | far).values()
    (by_far,) = ahead(far).values()
    assert by_near == by_both
    assert 0 < by_near[0] < by_far[0]


def test_weather_without_plants_gives_nothing() -> None:
    bare = SignalSite(
        hub="dakar", country="SN", grid_zone="SN", latitude=14.7, longitude=-17.4, pue=1.4, onsite=OnSite()
    )
    light = {Signal.IRRADIANCE: told(Signal.IRRADIANCE, 900)}
    assert plants_ahead(lambda signal: light.get(signal, ()), bare) == ()
