"""Which place are the signals about? A hub with its grid zone, its coordinates and what it generates itself."""

from __future__ import annotations

from dataclasses import dataclass

from harch.carbon.values import Signal
from harch.fleet.model import Hub

# Plants briefly exceed their plate: cold bright days for PV, gusts for wind, and plates are rounded.
PLATE_HEADROOM = 1.25
CLEARNESS = 0.75  # of a clear sky's light, what arrives over the year
PERFORMANCE = 0.80  # of the light's power at the panel's plate, what leaves the inverter


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSite:
    """What stands behind the hub's meter. 0 means that there is none."""

    pv_kw_peak: float = 0.0
    wind_kw: float = 0.0
    battery_kw: float = 0.0
    battery_kwh: float = 0.0
    clearness: float = CLEARNESS
    performance: float = PERFORMANCE
    wind_capacity_factor: float | None = None  # None: the shipped assumption for this hub


NO_PLANTS = OnSite()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A hub as the sources see it. `grid_zone` is whose power it draws, which need not be its jurisdiction."""

    hub: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float
    onsite: OnSite = NO_PLANTS

    def number_max(self, signal: Signal) -> float | None:
        """The most that the plants of this site can show, or None where no plate says so."""
        plates = {
            Signal.PV_POWER: self.onsite.pv_kw_peak,
            Signal.WIND_POWER: self.onsite.wind_kw,
            Signal.BATTERY_POWER: self.onsite.battery_kw,
            Signal.BATTERY_CHARGE: self.onsite.battery_kwh,
        }
        plate = plates.get(signal, 0.0)
        return plate * PLATE_HEADROOM if plate > 0 else None


def site_of(hub: Hub, onsite: OnSite = NO_PLANTS, *, grid_zone: str | None = None) -> Site:
    """The site of a hub of the fleet file. `grid_zone` replaces the file's where a source files the place elsewhere."""
    return Site(
        hub=hub.id,
        country=hub.country,
        grid_zone=grid_zone or hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        onsite=onsite,
    )
