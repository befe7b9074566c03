"""What is observed about a hub, and what must be known of a value before a decision may rest on it?

A reading is a quantity with its signal, its time, its source and whether it was measured. Quantities themselves are in
`quantities`; who needs both imports them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from harch.carbon.quantities import (
    Basis,
    CarbonIntensity,
    CloudCover,
    Emissions,
    Energy,
    IntensityKind,
    Irradiance,
    KindsMixed,
    Method,
    Power,
    Price,
    Pue,
    Quantity,
    RenewableShare,
    Scope,
    Temperature,
    WindSpeed,
)

__all__ = [
    "EXAMPLES",
    "Basis",
    "CarbonIntensity",
    "CloudCover",
    "Emissions",
    "Energy",
    "Evidence",
    "IntensityKind",
    "Irradiance",
    "KindsMixed",
    "Method",
    "Power",
    "Price",
    "Pue",
    "Q_co",
    "Quantity",
    "Reading",
    "RenewableShare",
    "Scope",
    "Signal",
    "Temperature",
    "WindSpeed",
]


class Evidence(StrEnum):
    """Was it measured, or does somebody's model say so?"""

    MEASURED = "measured"
    ESTIMATED = "estimated"


class Signal(StrEnum):
    """What is observed about a hub. The name says the kind, so that a reading of another kind cannot pass for it."""

    GRID_AVERAGE_LIFECYCLE = "grid-average-lifecycle"
    GRID_AVERAGE_DIRECT = "grid-average-direct"
    GRID_MARGINAL_LIFECYCLE = "grid-marginal-lifecycle"
    GRID_MARGINAL_DIRECT = "grid-marginal-direct"
    CONTRACT_LIFECYCLE = "contract-lifecycle"  # what the bought contracts emit: the market-based method
    ONSITE_LIFECYCLE = "onsite-lifecycle"  # what the hub's own PV and wind emit per kWh
    RENEWABLE_SHARE = "renewable-share"
    PV_POWER = "pv-power"
    WIND_POWER = "wind-power"
    BATTERY_POWER = "battery-power"
    BATTERY_CHARGE = "battery-charge"
    GPU_POWER = "gpu-power"
    FACILITY_POWER = "facility-power"
    PRICE = "price"
    PUE = "pue"
    IRRADIANCE = "irradiance"
    WIND_SPEED_10M = "wind-speed-10m"
    WIND_SPEED_80M = "wind-speed-80m"
    CLOUD_COVER = "cloud-cover"
    TEMPERATURE = "temperature"


def _grid(basis: Basis, scope: Scope, method: Method = Method.LOCATION) -> CarbonIntensity:
    return CarbonIntensity(0.0, IntensityKind(basis, scope, method))


# One example per signal: its type and kind are those that every reading of the signal has.
EXAMPLES: Mapping[Signal, Quantity] = MappingProxyType(
    {
        Signal.GRID_AVERAGE_LIFECYCLE: _grid(Basis.AVERAGE, Scope.LIFECYCLE),
        Signal.GRID_AVERAGE_DIRECT: _grid(Basis.AVERAGE, Scope.DIRECT),
        Signal.GRID_MARGINAL_LIFECYCLE: _grid(Basis.MARGINAL, Scope.LIFECYCLE),
        Signal.GRID_MARGINAL_DIRECT: _grid(Basis.MARGINAL, Scope.DIRECT),
        Signal.CONTRACT_LIFECYCLE: _grid(Basis.AVERAGE, Scope.LIFECYCLE, Method.MARKET),
        Signal.ONSITE_LIFECYCLE: _grid(Basis.AVERAGE, Scope.LIFECYCLE, Method.ONSITE),
        Signal.RENEWABLE_SHARE: RenewableShare(0.0),
        Signal.PV_POWER: Power(0.0),
        Signal.WIND_POWER: Power(0.0),
        Signal.BATTERY_POWER: Power(0.0),
        Signal.BATTERY_CHARGE: Energy(0.0),
        Signal.GPU_POWER: Power(0.0),
        Signal.FACILITY_POWER: Power(0.0),
        Signal.PRICE: Price(0.0, "USD"),  # any currency; within one signal of one hub they are never mixed
        Signal.PUE: Pue(1.0),
        Signal.IRRADIANCE: Irradiance(0.0),
        Signal.WIND_SPEED_10M: WindSpeed(0.0, 10),
        Signal.WIND_SPEED_80M: WindSpeed(0.0, 80),
        Signal.CLOUD_COVER: CloudCover(0.0),
        Signal.TEMPERATURE: Temperature(0.0),
    }
)

Q_co = TypeVar("Q_co", bound=Quantity, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[Q_co]):
    """One observed value, with everything that must be known before a decision may rest on it.

    `at` is the moment that the value is about, `received_at` the moment that we learned it. `ahead` marks a forecast of
    the source for a later time. Where a source says how long a value holds (a tariff, an operator's word), it is
    `valid_until`; else the staleness limit of the signal applies.
    """

    signal: Signal
    value: Q_co
    at: datetime
    source: str
    evidence: Evidence
    received_at: datetime
    valid_until: datetime | None = None
    ahead: bool = False
    note: str = ""  # e.g. the estimation method, or the citation of a fact

    def __post_init__(self) -> None:
        example = EXAMPLES[self.signal]
        fits = type(self.value) is type(example) and (isinstance(self.value, Price) or self.value.kind == example.kind)
        if not fits:
            raise KindsMixed(
                f"`{self.value}` is no reading of `{self.signal}`, which is in {example.unit or 'other units'}",
                hint=f"`{self.signal}` takes values like `{example}`",
            )
        for moment in (self.at, self.received_at, self.valid_until):
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"a reading of `{self.signal}` has a time without a time zone: {moment}")

    def age(self, now: datetime) -> timedelta:
        return now - self.at

    def __str__(self) -> str:
        """With its provenance: there is no way to print a reading without it."""
        note = f"; {self.note}" if self.note else ""
        return f"{self.value} [{self.evidence}, {self.source}, {_instant(self.at)}{note}]"

    def as_plain(self) -> dict[str, object]:
        """For JSON: number, unit and kind, and where it is from."""
        plain: dict[str, object] = {
            "signal": str(self.signal),
            "value": self.value.number,
            "unit": self.value.unit,
            "kind": [str(part) for part in self.value.kind],
            "at": _instant(self.at),
            "received_at": _instant(self.received_at),
            "source": self.source,
            "evidence": str(self.evidence),
            "note": self.note,
        }
        if self.valid_until is not None:
            plain["valid_until"] = _instant(self.valid_until)
        return plain


def _instant(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:-6] + "Z"
