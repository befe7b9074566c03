"""Which value is this number of that unit? Units are converted once, where a number enters, and never guessed."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from harch.carbon.values import (
    EXAMPLES,
    CarbonIntensity,
    CloudCover,
    Energy,
    Irradiance,
    KindsMixed,
    Power,
    Price,
    Pue,
    Quantity,
    RenewableShare,
    Signal,
    Temperature,
    WindSpeed,
)

LB_IN_KG = 0.45359237  # exact, by the international definition of the pound
LBS_PER_MWH_IN_G_PER_KWH = LB_IN_KG
KG_PER_KWH_IN_G_PER_KWH = 1000.0
ZERO_CELSIUS_IN_KELVIN = 273.15

_SHARE = {"fraction": 1.0, "1": 1.0, "%": 0.01}
# The factor into the unit of the type. Grams per kWh and kilograms per MWh are the same number.
_FACTORS: Mapping[type[Quantity], Mapping[str, float]] = MappingProxyType(
    {
        CarbonIntensity: {
            "g/kWh": 1.0,
            "kg/MWh": 1.0,
            "kg/kWh": KG_PER_KWH_IN_G_PER_KWH,
            "t/MWh": KG_PER_KWH_IN_G_PER_KWH,
            "g/MWh": 0.001,
            "lbs/MWh": LBS_PER_MWH_IN_G_PER_KWH,
            "lb/MWh": LBS_PER_MWH_IN_G_PER_KWH,
        },
        Power: {"W": 0.001, "kW": 1.0, "MW": 1000.0},
        Energy: {"Wh": 0.001, "kWh": 1.0, "MWh": 1000.0},
        Irradiance: {"W/m2": 1.0, "W/m²": 1.0, "kW/m2": 1000.0},
        WindSpeed: {"m/s": 1.0, "km/h": 1 / 3.6, "kn": 1852 / 3600},
        CloudCover: _SHARE,
        RenewableShare: _SHARE,
        Pue: {"ratio": 1.0, "1": 1.0},
    }
)
_PRICE = re.compile(r"([A-Z]{3})/(MWh|kWh)")
_TEMPERATURES = ("C", "°C", "K")


def units_of(signal: Signal) -> tuple[str, ...]:
    """The units in which values of a signal may be given."""
    kind = type(EXAMPLES[signal])
    if kind is Price:
        return ("USD/MWh", "EUR/kWh")  # examples: any currency code is taken
    return _TEMPERATURES if kind is Temperature else tuple(_FACTORS[kind])


def quantity(signal: Signal, number: float, unit: str) -> Quantity:
    """The value of `signal` that `number` in `unit` is. Raises KindsMixed for a unit of something else."""
    example = EXAMPLES[signal]
    if isinstance(example, Price):
        if found := _PRICE.fullmatch(unit):
            return Price(number * (1000 if found[2] == "kWh" else 1), found[1])
    elif isinstance(example, Temperature):
        if unit in _TEMPERATURES:
            return Temperature(number - (ZERO_CELSIUS_IN_KELVIN if unit == "K" else 0.0))
    elif unit in (factors := _FACTORS[type(example)]):
        return example.with_number(number * factors[unit])
    raise KindsMixed(
        f"`{unit[:40]}` is not a unit of `{signal}`", hint=f"use one of these units: {', '.join(units_of(signal))}"
    )
