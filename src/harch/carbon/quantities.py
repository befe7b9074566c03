"""What is a figure about power, carbon, price or weather? A number that cannot be mixed with one of another kind.

The average intensity of a grid and that of its marginal plant, grams by location and grams by contract, euros and
dirhams: each pair looks alike and has no sum that means anything. Adding or comparing them raises `KindsMixed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self

from harch.base.errors import HarchError


class KindsMixed(HarchError):
    """Two figures of different kinds were added or compared, or a figure was given for a signal of another kind."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("E0221", message, hint=hint or "convert or choose figures of one kind before you combine them")


class Basis(StrEnum):
    """Of all plants that run, or of the one that would run more?"""

    AVERAGE = "average"
    MARGINAL = "marginal"


class Scope(StrEnum):
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
    scope: Scope
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
            raise KindsMixed(f"`{self}` and `{other}` are figures of different kinds")
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
