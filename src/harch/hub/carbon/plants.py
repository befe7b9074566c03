"""What will the hub's own plants give? What their source foretells, else what the weather makes of their plates.

The modelled sky knows the sun but no cloud and no wind, so a forecast of the weather is preferred to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from harch.carbon.forecasts.weather_power import PvPlant, WindPlant, pv_power_kw, wind_power_kw
from harch.carbon.signals.sites import Site
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.values import Quantity, Reading, Signal

MILD_C = 20.0  # where nobody foretells the temperature: panels lose 0.4 % per degree
_HEIGHTS_M = {Signal.WIND_SPEED_80M: 80.0, Signal.WIND_SPEED_10M: 10.0}  # the nearest to a turbine's hub first
_WEATHER_HEIGHT_M = 10.0  # that the curve of turbines starts from

Outlook = Callable[[Signal], tuple[Reading[Quantity], ...]]


@dataclass(frozen=True, slots=True)
class PlantAhead:
    """Power of one kind of plant, in the steps of who foretells it."""

    kw: dict[datetime, float]
    rests_on: str


def plants_ahead(outlook: Outlook, site: Site) -> tuple[PlantAhead, ...]:
    """PV and wind, as far as there are any."""
    found = []
    for signal, by_weather in ((Signal.PV_POWER, _pv), (Signal.WIND_POWER, _wind)):
        told = outlook(signal)
        plant = None if told and told[0].source != MODELLED else by_weather(outlook, site)
        if plant is None and told:
            rests_on = f"{signal}: {told[0].source} ({told[0].note})"
            plant = PlantAhead({reading.at: reading.value.number for reading in told}, rests_on)
        found += [] if plant is None else [plant]
    return tuple(found)


def _pv(outlook: Outlook, site: Site) -> PlantAhead | None:
    light = outlook(Signal.IRRADIANCE)
    if not site.onsite.pv_kw_peak or not light or light[0].source == MODELLED:
        return None
    warmth = {reading.at: reading.value.number for reading in outlook(Signal.TEMPERATURE)}
    air_c = np.array([warmth.get(reading.at, MILD_C) for reading in light])
    plant = PvPlant(site.onsite.pv_kw_peak)
    kw = pv_power_kw(plant, np.array([reading.value.number for reading in light]), air_c)
    return _ahead(Signal.PV_POWER, light, kw)


def _wind(outlook: Outlook, site: Site) -> PlantAhead | None:
    if not site.onsite.wind_kw:
        return None
    plant = WindPlant(site.onsite.wind_kw)
    for signal, height_m in _HEIGHTS_M.items():
        wind = outlook(signal)
        if wind and wind[0].source != MODELLED:
            low = (_WEATHER_HEIGHT_M / height_m) ** plant.shear_exponent
            return _ahead(
                Signal.WIND_POWER,
                wind,
                wind_power_kw(plant, low * np.array([reading.value.number for reading in wind])),
            )
    return None


def _ahead(signal: Signal, weather: tuple[Reading[Quantity], ...], kw: np.ndarray) -> PlantAhead:
    at = (reading.at for reading in weather)
    return PlantAhead(
        dict(zip(at, kw.tolist(), strict=True)), f"{signal}: {weather[0].source} (weather, on the plate of the plant)"
    )
