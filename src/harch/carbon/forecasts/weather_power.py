"""How much do panels and turbines give in this weather? Irradiance to PV with a temperature factor, wind to a curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import Floats

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
            raise ValueError("wind speeds of a curve must rise: cut-in, rated, cut-out")


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
