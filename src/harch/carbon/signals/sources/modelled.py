"""What may be assumed where nothing is measured?

Yearly means and capacity factors, each with where it is from; a clear sky dimmed by its usual clouds, mean wind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from importlib import resources

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite, clear_sky_w_per_m2
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFacts:
    """The shipped figures. A country without an entry gets the mean of the world, and the reading says so."""

    citation: str
    world_g_per_kwh: float
    grid_g_per_kwh: Mapping[str, float]  # by country
    wind_capacity_factors: Mapping[str, float]  # by hub
    wind_capacity_factor_elsewhere: float
    onsite_g_per_kwh: float

    def grid(self, grid_zone: str, country: str) -> tuple[float, str]:
        """The yearly mean of a zone's country, and its citation.

        Zones are named after the country whose power they carry (`SE-SE3`), which need not be the jurisdiction. A zone
        that is named otherwise gets the mean of the jurisdiction.
        """
        for name in (grid_zone.partition("-")[0], country):
            if name in self.grid_g_per_kwh:
                return self.grid_g_per_kwh[name], f"yearly mean of {name}: {self.citation}"
        return self.world_g_per_kwh, f"no value for {grid_zone}: world average, {self.citation}"


@cache
def shipped_facts() -> RegionFacts:
    raw = tomllib.loads(resources.files("harch.carbon.signals").joinpath("shipped/facts.toml").read_text("utf-8"))
    return RegionFacts(
        citation=raw["citation"],
        world_g_per_kwh=raw["world"],
        grid_g_per_kwh=raw["grid"],
        wind_capacity_factors=raw["wind"],
        wind_capacity_factor_elsewhere=raw["wind_elsewhere"]["capacity_factor"],
        onsite_g_per_kwh=raw["onsite"]["g_per_kwh"],
    )


# What may be assumed where nobody measures? Yearly means, a clear sky dimmed by its usual clouds, mean wind.
#
# All of it is labelled `estimated`. It depends on time and site alone, so two hubs and a simulation see the same. It
# knows no weather: an hour's value is the typical one. It is last in every order, so that a decision always rests on
# some
# value, and says on which.


NAME = "modelled"
STANDARD_W_PER_M2 = 1000.0  # the light under which panels show their plate
OUTLOOK_HOURS = 96
PROVIDES = frozenset(
    {
        Signal.GRID_AVERAGE_LIFECYCLE,
        Signal.ONSITE_LIFECYCLE,
        Signal.PV_POWER,
        Signal.WIND_POWER,
        Signal.IRRADIANCE,
        Signal.PUE,
    }
)
CHANGING = frozenset({Signal.PV_POWER, Signal.WIND_POWER, Signal.IRRADIANCE})


@dataclass(slots=True, kw_only=True)
class Modelled:
    """The default for all sites. The outlook is published once an hour: it is the same until then."""

    facts: RegionFacts
    name: str = NAME
    provides: frozenset[Signal] = PROVIDES
    by_zone: bool = False
    _given: dict[str, datetime] = field(default_factory=dict)

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        now = clock.now()
        readings = self.readings(site, now, received_at=now)
        first = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        if self._given.get(site.hub) != first:
            self._given[site.hub] = first
            for hour in range(OUTLOOK_HOURS):
                ahead = self.readings(site, first + timedelta(hours=hour), received_at=now)
                readings += [reading for reading in ahead if reading.signal in CHANGING]
        return readings

    def readings(self, site: SignalSite, moment: datetime, *, received_at: datetime) -> list[Reading[Quantity]]:
        """The model's values at any moment: a function of time and site."""
        onsite = site.onsite
        number, citation = self.facts.grid(site.grid_zone, site.country)
        factor = onsite.wind_capacity_factor
        if factor is None:
            known = self.facts.wind_capacity_factors
            factor = known.get(site.hub, self.facts.wind_capacity_factor_elsewhere)
        light = onsite.clearness * clear_sky_w_per_m2(moment, site.latitude, site.longitude)
        pv_kw = onsite.pv_kw_peak * onsite.performance * light / STANDARD_W_PER_M2
        rows = (
            (Signal.GRID_AVERAGE_LIFECYCLE, number, "g/kWh", citation),
            (Signal.ONSITE_LIFECYCLE, self.facts.onsite_g_per_kwh, "g/kWh", "IPCC AR5, rounded to current plants"),
            (Signal.PV_POWER, pv_kw, "kW", f"clear sky x {onsite.clearness:g} x {onsite.performance:g}"),
            (Signal.WIND_POWER, onsite.wind_kw * factor, "kW", f"mean capacity factor {factor:g}"),
            (Signal.IRRADIANCE, light, "W/m2", f"clear sky x {onsite.clearness:g}"),
            (Signal.PUE, site.pue, "ratio", "the fleet file"),
        )
        return [
            Reading(
                signal=signal,
                value=quantity(signal, value, unit),
                at=moment,
                source=self.name,
                evidence=Evidence.ESTIMATED,
                received_at=received_at,
                ahead=moment > received_at,
                note=note,
            )
            for signal, value, unit, note in rows
        ]


def modelled() -> Modelled:
    """The model with the shipped facts."""
    return Modelled(facts=shipped_facts())
