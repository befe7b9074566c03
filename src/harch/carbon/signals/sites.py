"""Which place are the signals about, and how high does the sun stand there?

A hub with its grid zone, its coordinates and what it generates itself.
"""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

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
class SignalSite:
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


def site_of(hub: Hub, onsite: OnSite = NO_PLANTS, *, grid_zone: str | None = None) -> SignalSite:
    """The site of a hub of the fleet file. `grid_zone` replaces the file's where a source files the place elsewhere."""
    return SignalSite(
        hub=hub.id,
        country=hub.country,
        grid_zone=grid_zone or hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        onsite=onsite,
    )


# How high does the sun stand, and how bright would a cloudless sky be? Both follow from time and place.
#
# The position follows the low-precision formulas of the Astronomical Almanac (Michalsky 1988), good to about 0.01
# degrees
# from 1950 to 2050. The clear sky is the model of Haurwitz (1945): it needs nothing but the sun's height. Both are
# compared with pvlib in the tests.


_J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
SECONDS_PER_DAY = 86400.0


def sun_elevation_deg(moment: datetime, latitude: float, longitude: float) -> float:
    """Degrees of the sun's centre above the horizon, without refraction. East and north are positive."""
    days = (moment - _J2000).total_seconds() / SECONDS_PER_DAY
    declination, right_ascension = _equatorial(days)
    sidereal_hours = 6.697375 + 0.0657098242 * days + _utc_hours(moment)
    hour_angle = math.radians((sidereal_hours * 15.0 + longitude) % 360.0) - right_ascension
    phi = math.radians(latitude)
    sine = math.sin(declination) * math.sin(phi) + math.cos(declination) * math.cos(phi) * math.cos(hour_angle)
    return math.degrees(math.asin(max(-1.0, min(1.0, sine))))


def clear_sky_w_per_m2(moment: datetime, latitude: float, longitude: float) -> float:
    """Global horizontal irradiance under a cloudless sky (Haurwitz). 0 at night."""
    sine = math.sin(math.radians(sun_elevation_deg(moment, latitude, longitude)))
    return 0.0 if sine <= 0 else 1098.0 * sine * math.exp(-0.059 / sine)


def _equatorial(days: float) -> tuple[float, float]:
    """Declination and right ascension of the sun, in radians, at so many days after noon of 1 January 2000."""
    mean_longitude = 280.460 + 0.9856474 * days
    anomaly = math.radians((357.528 + 0.9856003 * days) % 360.0)
    ecliptic = math.radians((mean_longitude + 1.915 * math.sin(anomaly) + 0.020 * math.sin(2 * anomaly)) % 360.0)
    obliquity = math.radians(23.439 - 0.0000004 * days)
    right_ascension = math.atan2(math.cos(obliquity) * math.sin(ecliptic), math.cos(ecliptic))
    return math.asin(math.sin(obliquity) * math.sin(ecliptic)), right_ascension


def _utc_hours(moment: datetime) -> float:
    utc = moment.astimezone(UTC)
    return utc.hour + utc.minute / 60 + (utc.second + utc.microsecond / 1e6) / 3600
