"""What may be assumed where nobody measures? Yearly means, a clear sky dimmed by its usual clouds, mean wind.

All of it is labelled `estimated`. It depends on time and site alone, so two hubs and a simulation see the same. It
knows no weather: an hour's value is the typical one. It is last in every order, so that a decision always rests on some
value, and says on which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from harch.base.clock import Clock
from harch.carbon.signals.facts import Facts, shipped_facts
from harch.carbon.signals.sites import Site
from harch.carbon.signals.solar import clear_sky_w_per_m2
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal

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
    """The default for all sites. The outlook is told once an hour: it is the same until then."""

    facts: Facts
    name: str = NAME
    provides: frozenset[Signal] = PROVIDES
    by_zone: bool = False
    _told: dict[str, datetime] = field(default_factory=dict)

    async def fetch(self, site: Site, clock: Clock) -> list[Reading[Quantity]]:
        now = clock.now()
        readings = self.readings(site, now, received_at=now)
        first = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        if self._told.get(site.hub) != first:
            self._told[site.hub] = first
            for hour in range(OUTLOOK_HOURS):
                ahead = self.readings(site, first + timedelta(hours=hour), received_at=now)
                readings += [reading for reading in ahead if reading.signal in CHANGING]
        return readings

    def readings(self, site: Site, moment: datetime, *, received_at: datetime) -> list[Reading[Quantity]]:
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
            (Signal.ONSITE_LIFECYCLE, self.facts.onsite_g_per_kwh, "g/kWh", "IPCC AR5, rounded for today's plants"),
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
