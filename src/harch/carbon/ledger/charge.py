"""What did one job cost at one hub in one interval?

Energy, factors, grams by location, by contract and of own plants side by side, and the naive run.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from math import isfinite

from msgspec import Struct

from harch.carbon.values import (
    Basis,
    CarbonIntensity,
    Emissions,
    EmissionScope,
    Energy,
    Evidence,
    IntensityKind,
    KindsMixed,
    Method,
    Quantity,
    Reading,
)

# How much carbon, by which method? Grams by location, by contract and of own plants side by side, never in one sum.
#
# Own plants are counted alike by both methods, so a total is "by location, with own plants" or "by contract, with own
# plants". There is no total of all three: it would count the power from the grid twice.


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Emissions by each method."""

    location: Emissions
    market: Emissions
    onsite: Emissions

    def __post_init__(self) -> None:
        for emissions, method in (
            (self.location, Method.LOCATION),
            (self.market, Method.MARKET),
            (self.onsite, Method.ONSITE),
        ):
            if emissions.of.method is not method:
                raise KindsMixed(f"`{emissions}` is not emissions by {method}")

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(
            location=self.location + other.location,
            market=self.market + other.market,
            onsite=self.onsite + other.onsite,
        )

    def __sub__(self, other: Footprint) -> Footprint:
        return Footprint(
            location=self.location - other.location,
            market=self.market - other.market,
            onsite=self.onsite - other.onsite,
        )

    def __mul__(self, share: float) -> Footprint:
        return Footprint(location=self.location * share, market=self.market * share, onsite=self.onsite * share)

    def total(self, method: Method) -> Emissions:
        """By location or by contract, own plants included. What is on-site alone is `onsite`."""
        if method is Method.ONSITE:
            raise KindsMixed("own plants have no total of their own: they are part of the location and contract totals")
        grid = self.location if method is Method.LOCATION else self.market
        return grid.with_number(grid.g + self.onsite.g)


def no_footprint(scope: EmissionScope = EmissionScope.LIFECYCLE, basis: Basis = Basis.AVERAGE) -> Footprint:
    return Footprint(
        location=Emissions(0.0, IntensityKind(basis, scope, Method.LOCATION)),
        market=Emissions(0.0, IntensityKind(Basis.AVERAGE, scope, Method.MARKET)),
        onsite=Emissions(0.0, IntensityKind(Basis.AVERAGE, scope, Method.ONSITE)),
    )


# What did one job cost at one hub in one interval? Energy, factors, grams by each method, the naive run.
#
# Grams by location and by contract are two answers to one question. They are handed out typed, so that adding them
# raises `KindsMixed`; only the plain numbers are stored.


INTERVAL_MAX = timedelta(hours=1)  # intensities are hourly: over longer times a mean would hide who ran when


class Interval(Struct, frozen=True, gc=False):
    """A time that is charged as one. Never longer than an hour, never over the end of a UTC hour: months stay whole."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.utcoffset() != timedelta(0) or self.end.utcoffset() != timedelta(0):
            raise ValueError("interval times must be in UTC")
        if self.start.microsecond or self.end.microsecond:
            raise ValueError("an interval must begin and end on a whole second")
        hour = self.start.replace(minute=0, second=0, microsecond=0)
        if not self.start < self.end <= hour + INTERVAL_MAX:
            raise ValueError(f"not an interval within one hour: {self.start} to {self.end}")

    @property
    def duration(self) -> timedelta:
        return self.end - self.start

    @property
    def month(self) -> str:
        return self.start.isoformat()[:7]


def intervals(start: datetime, end: datetime, step: timedelta = INTERVAL_MAX) -> Iterator[Interval]:
    """The intervals from `start` to `end`: no longer than `step`, and cut at every full hour."""
    if step <= timedelta(0):
        raise ValueError("a step must be longer than 0")
    while start < end:
        hour = start.replace(minute=0, second=0, microsecond=0) + INTERVAL_MAX
        stop = min(start + step, hour, end)
        yield Interval(start, stop)
        start = stop


class Activity(StrEnum):
    """What did the power do?"""

    RUNNING = "running"  # at least for a part of the interval
    HOLDING = "holding"  # suspended or paused with its GPUs kept: their idle power is its holder's
    UNALLOCATED = "unallocated"  # nobody held it: idle GPUs and hosts, and what no model explains


# One object per kind: a report compares those of every row, and the same object is equal at a glance.
_kind = cache(IntensityKind)


class Factor(Struct, frozen=True, kw_only=True, gc=False):
    """Grams per kWh as they were observed, of what kind, from whom and as of when."""

    g_per_kwh: float
    basis: Basis
    scope: EmissionScope
    method: Method
    source: str
    evidence: Evidence
    as_of: datetime
    note: str = ""

    def __post_init__(self) -> None:
        not_negative("g/kWh", self.g_per_kwh)

    @property
    def kind(self) -> IntensityKind:
        return _kind(self.basis, self.scope, self.method)

    @property
    def intensity(self) -> CarbonIntensity:
        return CarbonIntensity(self.g_per_kwh, self.kind)


def observed_factor(reading: Reading[Quantity]) -> Factor:
    """The factor that a reading gives. Refuses a forecast: what is billed was observed, or estimated for that time."""
    value = reading.value
    if reading.ahead or not isinstance(value, CarbonIntensity):
        raise KindsMixed(
            f"`{reading}` is {'a forecast' if reading.ahead else 'not an intensity'}: it cannot be billed",
            hint="bill the reading observed at that time",
        )
    return Factor(
        g_per_kwh=value.g_per_kwh,
        basis=value.of.basis,
        scope=value.of.scope,
        method=value.of.method,
        source=reading.source,
        evidence=reading.evidence,
        as_of=reading.at,
        note=reading.note,
    )


class Factors(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that kWh of one hub are multiplied with in one interval."""

    grid: Factor  # by location: what everybody on this grid gets
    residual: Factor  # by contract: of the grid's kWh that no contract covers
    contract: Factor  # by contract: of the kWh that a PPA covers
    onsite: Factor  # of the plants behind the meter

    def __post_init__(self) -> None:
        methods = (Method.LOCATION, Method.MARKET, Method.MARKET, Method.ONSITE)
        for factor, method in zip((self.grid, self.residual, self.contract, self.onsite), methods, strict=True):
            if factor.method is not method:
                raise KindsMixed(f"`{factor.intensity}` from {factor.source} is not a factor for {method}")
        if len({factor.scope for factor in (self.grid, self.residual, self.contract, self.onsite)}) > 1:
            raise KindsMixed("the factors of one charge mix lifecycle and direct")
        if self.residual.basis is not self.contract.basis:
            raise KindsMixed("the contract factors mix average and marginal")

    @property
    def kinds(self) -> tuple[IntensityKind, ...]:
        return (self.grid.kind, self.residual.kind, self.contract.kind, self.onsite.kind)


class Supply(Struct, frozen=True, kw_only=True, gc=False):
    """Where kWh at the meter came from."""

    grid_kwh: float
    onsite_kwh: float
    ppa_kwh: float

    def __post_init__(self) -> None:
        for number in (self.grid_kwh, self.onsite_kwh, self.ppa_kwh):
            not_negative("kWh", number)

    @property
    def kwh(self) -> float:
        return self.grid_kwh + self.onsite_kwh + self.ppa_kwh

    def share(self, fraction: float) -> Supply:
        return Supply(
            grid_kwh=self.grid_kwh * fraction, onsite_kwh=self.onsite_kwh * fraction, ppa_kwh=self.ppa_kwh * fraction
        )


class Grams(Struct, frozen=True, kw_only=True, gc=False):
    """What is stored: plain numbers. `Charge.footprint` gives them with their kinds."""

    location: float
    market: float
    onsite: float

    def __post_init__(self) -> None:
        for number in (self.location, self.market, self.onsite):
            not_negative("g", number)

    def share(self, fraction: float) -> Grams:
        return Grams(location=self.location * fraction, market=self.market * fraction, onsite=self.onsite * fraction)


def grams_of(supply: Supply, factors: Factors, transmission_loss: float) -> Grams:
    """Loss on the way to the meter is charged on what the grid delivers, and not on one's own roof."""
    delivered = 1.0 + transmission_loss
    return Grams(
        location=(supply.grid_kwh + supply.ppa_kwh) * factors.grid.g_per_kwh * delivered,
        market=(supply.grid_kwh * factors.residual.g_per_kwh + supply.ppa_kwh * factors.contract.g_per_kwh) * delivered,
        onsite=supply.onsite_kwh * factors.onsite.g_per_kwh,
    )


class Naive(Struct, frozen=True, kw_only=True, gc=False):
    """The same work without carbon routing: at its home hub, started at once, with the same renewables there."""

    home: str
    start: datetime  # when this piece of work would have run
    supply: Supply
    grid: Factor  # of its grid then: whoever doubts a saving can recompute it
    grams: Grams
    evidence: Evidence
    method: str


class Charge(Struct, frozen=True, kw_only=True, gc=False):
    """One job at one hub in one interval, or what nobody held (`job` is empty). kWh are at the hub's meter."""

    hub: str
    interval: Interval
    job: str
    tenant: str
    home: str  # the hub that owns the job; another one than `hub`: it was a guest
    scheduling_class: str
    activity: Activity
    data_ids: tuple[str, ...]
    it_kwh: float
    holding_it_kwh: float  # of it, what a naive run had not needed: GPUs held while suspended, a move
    evidence: Evidence  # of the energy
    method: str  # how the energy was found
    pue: float
    transmission_loss: float
    supply: Supply
    factors: Factors
    grams: Grams
    hub_kwh: float  # the whole hub in this interval: the charges of an interval add up to it
    hub_evidence: Evidence
    hub_onsite_kwh: float  # what the hub's own plants gave, used or not; what was not used earns no credit
    naive: Naive | None = None
    naive_missing: str = ""  # why there is none

    @property
    def energy(self) -> Energy:
        return Energy(self.supply.kwh)

    @property
    def footprint(self) -> Footprint:
        return self._typed(self.grams)

    @property
    def naive_footprint(self) -> Footprint | None:
        return None if self.naive is None else self._typed(self.naive.grams)

    def _typed(self, grams: Grams) -> Footprint:
        return Footprint(
            location=Emissions(grams.location, self.factors.grid.kind),
            market=Emissions(grams.market, self.factors.residual.kind),
            onsite=Emissions(grams.onsite, self.factors.onsite.kind),
        )


def not_negative(what: str, number: float) -> None:
    if not (isfinite(number) and number >= 0):
        raise ValueError(f"{what} must be a number, at least 0, not {number}")
