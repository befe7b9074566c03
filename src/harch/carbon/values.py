"""What is observed about a hub, and what must be known of a value before a decision may rest on it?

Numbers of power, carbon, price and weather that cannot be mixed with those of another kind.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar

from harch.base.errors import HarchError

# What is a figure about power, carbon, price or weather? A number that cannot be mixed with one of another kind.
#
# The average intensity of a grid and that of its marginal plant, grams by location and grams by contract, euros and
# dirhams: each pair looks alike and has no sum that means anything. Adding or comparing them raises `KindsMixed`.


class KindsMixed(HarchError):
    """Two figures of different kinds were added or compared, or a figure was given for a signal of another kind."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("E0221", message, hint=hint or "convert them to one kind before combining them")


class Basis(StrEnum):
    """Of all plants that run, or of the one that would run more?"""

    AVERAGE = "average"
    MARGINAL = "marginal"


class EmissionScope(StrEnum):
    """With building, fuel supply and scrapping of the plants, or what leaves the chimney only?"""

    LIFECYCLE = "lifecycle"
    DIRECT = "direct"


class Method(StrEnum):
    """Whose emissions: of the grid where it runs, of the contracts that were bought, of the plants behind the meter?"""

    LOCATION = "location"
    MARKET = "market"
    ONSITE = "onsite"


@dataclass(frozen=True, slots=True)
class IntensityKind:
    """What grams per kWh are grams of."""

    basis: Basis
    scope: EmissionScope
    method: Method

    def __str__(self) -> str:
        return f"{self.basis}, {self.scope}, {self.method}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in one unit. The first field of a subclass is the number; the others say its kind and must be equal."""

    unit: ClassVar[str] = ""

    @property
    def number(self) -> float:
        return float(getattr(self, _names(type(self))[0]))

    @property
    def kind(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in _names(type(self))[1:])

    def with_number(self, number: float) -> Self:
        make: Callable[..., Self] = type(self)
        return make(number, *self.kind)

    def __add__(self, other: Self) -> Self:
        return self.with_number(self.number + self._same(other))

    def __sub__(self, other: Self) -> Self:
        return self.with_number(self.number - self._same(other))

    def __mul__(self, factor: float) -> Self:
        """By a plain number. A product with another quantity is a third kind, and has a method of its own."""
        return self.with_number(self.number * float(factor))

    __rmul__ = __mul__

    def __lt__(self, other: Self) -> bool:
        return self.number < self._same(other)

    def __le__(self, other: Self) -> bool:
        return self.number <= self._same(other)

    def __gt__(self, other: Self) -> bool:
        return self.number > self._same(other)

    def __ge__(self, other: Self) -> bool:
        return self.number >= self._same(other)

    def __str__(self) -> str:
        words = ", ".join(str(part) for part in self.kind)
        return f"{self.number:.6g} {self.unit}".rstrip() + (f" ({words})" if words else "")

    def _same(self, other: Quantity) -> float:
        if type(other) is not type(self) or other.kind != self.kind:
            raise KindsMixed(f"`{self}` and `{other}` are different kinds of quantity")
        return other.number


_NAMES: dict[type[Any], tuple[str, ...]] = {}  # `fields` is slow, and every reading asks


def _names(quantity: type[Any]) -> tuple[str, ...]:
    if quantity not in _NAMES:
        _NAMES[quantity] = tuple(entry.name for entry in fields(quantity))
    return _NAMES[quantity]


@dataclass(frozen=True, slots=True)
class Energy(Quantity):
    """Electric energy."""

    kwh: float
    unit: ClassVar[str] = "kWh"


@dataclass(frozen=True, slots=True)
class Emissions(Quantity):
    """Grams of CO2 equivalent, of the kind of the intensity that they were computed with."""

    g: float
    of: IntensityKind
    unit: ClassVar[str] = "g"


@dataclass(frozen=True, slots=True)
class CarbonIntensity(Quantity):
    """Grams of CO2 equivalent per kWh."""

    g_per_kwh: float
    of: IntensityKind
    unit: ClassVar[str] = "g/kWh"

    def emissions(self, energy: Energy) -> Emissions:
        return Emissions(self.g_per_kwh * energy.kwh, self.of)


@dataclass(frozen=True, slots=True)
class Power(Quantity):
    """Electric power. A battery's is positive when it discharges."""

    kw: float
    unit: ClassVar[str] = "kW"

    def over(self, duration: timedelta) -> Energy:
        return Energy(self.kw * duration.total_seconds() / 3600)


@dataclass(frozen=True, slots=True)
class Price(Quantity):
    """Money per MWh. Markets know negative ones."""

    per_mwh: float
    currency: str  # ISO 4217
    unit: ClassVar[str] = "per MWh"


@dataclass(frozen=True, slots=True)
class Irradiance(Quantity):
    """Global irradiance on a horizontal plane."""

    w_per_m2: float
    unit: ClassVar[str] = "W/m2"


@dataclass(frozen=True, slots=True)
class WindSpeed(Quantity):
    """Wind at a height above ground: speeds at two heights differ and are not compared."""

    m_per_s: float
    height_m: int
    unit: ClassVar[str] = "m/s"

    def __str__(self) -> str:
        return f"{self.m_per_s:.6g} m/s ({self.height_m} m above ground)"


@dataclass(frozen=True, slots=True)
class Temperature(Quantity):
    """Air temperature."""

    celsius: float
    unit: ClassVar[str] = "°C"


@dataclass(frozen=True, slots=True)
class CloudCover(Quantity):
    """How much of the sky is covered: 0 to 1."""

    fraction: float
    unit: ClassVar[str] = "of the sky"


@dataclass(frozen=True, slots=True)
class RenewableShare(Quantity):
    """How much of a zone's power is renewable: 0 to 1."""

    fraction: float
    unit: ClassVar[str] = "renewable"


@dataclass(frozen=True, slots=True)
class Pue(Quantity):
    """Facility power over IT power: 1 or more."""

    ratio: float
    unit: ClassVar[str] = "PUE"


# What is observed about a hub, and what must be known of a value before a decision may rest on it?
#
# A reading is a quantity with its signal, its time, its source and whether it was measured. Quantities themselves are
# in
# `quantities`; who needs both imports them from here.


__all__ = [
    "EXAMPLES",
    "Basis",
    "CarbonIntensity",
    "CloudCover",
    "EmissionScope",
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


def _grid(basis: Basis, scope: EmissionScope, method: Method = Method.LOCATION) -> CarbonIntensity:
    return CarbonIntensity(0.0, IntensityKind(basis, scope, method))


# One example per signal: its type and kind are those that every reading of the signal has.
EXAMPLES: Mapping[Signal, Quantity] = MappingProxyType(
    {
        Signal.GRID_AVERAGE_LIFECYCLE: _grid(Basis.AVERAGE, EmissionScope.LIFECYCLE),
        Signal.GRID_AVERAGE_DIRECT: _grid(Basis.AVERAGE, EmissionScope.DIRECT),
        Signal.GRID_MARGINAL_LIFECYCLE: _grid(Basis.MARGINAL, EmissionScope.LIFECYCLE),
        Signal.GRID_MARGINAL_DIRECT: _grid(Basis.MARGINAL, EmissionScope.DIRECT),
        Signal.CONTRACT_LIFECYCLE: _grid(Basis.AVERAGE, EmissionScope.LIFECYCLE, Method.MARKET),
        Signal.ONSITE_LIFECYCLE: _grid(Basis.AVERAGE, EmissionScope.LIFECYCLE, Method.ONSITE),
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
                f"`{self.value}` is not a reading of `{self.signal}`, which is in {example.unit or 'other units'}",
                hint=f"`{self.signal}` takes values like `{example}`",
            )
        for moment in (self.at, self.received_at, self.valid_until):
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"a reading of `{self.signal}` has no time zone: {moment}")

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
