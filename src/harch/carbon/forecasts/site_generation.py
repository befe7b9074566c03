"""How much do panels and turbines on site give?

From the weather by irradiance and a wind curve, and next by their own meters: the usual day, moved by the present.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import FADE_H, HORIZON_H, HOURS_PER_DAY, Floats, usable_hours

_STANDARD_W_PER_M2 = 1000.0  # irradiance and cell temperature at which panels are rated
_STANDARD_CELL_C = 25.0
_NOMINAL_W_PER_M2, _NOMINAL_AIR_C = 800.0, 20.0  # conditions of the nominal operating cell temperature
_WEATHER_HEIGHT_M = 10.0  # weather services give the wind at this height


@dataclass(frozen=True)
class PvPlant:
    """Panels by their rating; the defaults are those of ordinary crystalline modules."""

    capacity_kw: float
    loss_fraction: float = 0.14  # wiring, soiling, inverter
    loss_per_c: float = 0.004
    nominal_cell_c: float = 45.0


@dataclass(frozen=True)
class WindPlant:
    """Turbines by their rating and the three speeds of their curve, at hub height."""

    capacity_kw: float
    cut_in_m_s: float = 3.0
    rated_m_s: float = 12.0
    cut_out_m_s: float = 25.0
    hub_height_m: float = 100.0
    shear_exponent: float = 0.14
    loss_fraction: float = 0.08  # wakes and standstill

    def __post_init__(self) -> None:
        if not 0 <= self.cut_in_m_s < self.rated_m_s < self.cut_out_m_s:
            raise ValueError("wind speeds of a power curve must increase: cut-in, rated, cut-out")


def pv_power_kw(plant: PvPlant, irradiance_w_per_m2: Floats, air_c: Floats) -> Floats:
    """Power per hour from irradiance on the panels and air temperature. Unknown weather (NaN) gives unknown power."""
    irradiance = np.where(irradiance_w_per_m2 < 0, 0.0, irradiance_w_per_m2)  # instruments drift below zero at night
    heating = (plant.nominal_cell_c - _NOMINAL_AIR_C) / _NOMINAL_W_PER_M2
    cell_c = air_c + heating * irradiance
    factor = 1.0 - plant.loss_per_c * (cell_c - _STANDARD_CELL_C)
    power = plant.capacity_kw * (1.0 - plant.loss_fraction) * irradiance / _STANDARD_W_PER_M2 * factor
    return np.clip(power, 0.0, plant.capacity_kw)


def wind_power_kw(plant: WindPlant, wind_10m_m_s: Floats) -> Floats:
    """Power per hour from the wind at 10 m: cubic between cut-in and rated speed, nothing above cut-out."""
    speed = wind_10m_m_s * (plant.hub_height_m / _WEATHER_HEIGHT_M) ** plant.shear_exponent
    span = plant.rated_m_s**3 - plant.cut_in_m_s**3
    share = np.clip((speed**3 - plant.cut_in_m_s**3) / span, 0.0, 1.0)
    share = np.where(speed >= plant.cut_out_m_s, 0.0, share)
    return plant.capacity_kw * (1.0 - plant.loss_fraction) * share


# What will panels and turbines on site give next, by their own meters? The usual day, moved by the present.


_USUAL_DAYS = 7


def onsite_nowcast(measured: Floats, hours: int = HORIZON_H) -> Floats:
    """The next hours: 7-day same-hour mean + (now - its mean) * exp(-h / 12), never below 0.

    `measured` is hourly and ends now; NaN and negative readings are ignored, a same hour never seen counts as 0. The
    present is the last usable reading; the older it is, the less it moves the usual day.
    """
    if hours < 1:
        return np.zeros(0)
    recent = measured[-_USUAL_DAYS * HOURS_PER_DAY :]
    recent = np.where(usable_hours(recent), recent, np.nan)
    padded = np.full(_USUAL_DAYS * HOURS_PER_DAY, np.nan)
    if len(recent):
        padded[-len(recent) :] = recent
    by_day = padded.reshape(_USUAL_DAYS, HOURS_PER_DAY)  # column 0 is the next hour of the clock
    readings = np.isfinite(by_day).sum(axis=0)
    usual = np.nansum(by_day, axis=0) / np.maximum(readings, 1)
    ahead = np.tile(usual, -(-hours // HOURS_PER_DAY))[:hours]
    known = np.flatnonzero(np.isfinite(padded))
    if len(known) == 0:
        return ahead
    last = int(known[-1])
    age_h = len(padded) - 1 - last
    offset = padded[last] - usual[last % HOURS_PER_DAY]
    fade = np.exp(-(age_h + np.arange(1, hours + 1)) / FADE_H)
    moved: Floats = np.maximum(ahead + offset * fade, 0.0)
    return moved
