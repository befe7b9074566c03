"""How high does the sun stand, and how bright would a cloudless sky be? Both follow from time and place.

The position follows the low-precision formulas of the Astronomical Almanac (Michalsky 1988), good to about 0.01 degrees
from 1950 to 2050. The clear sky is the model of Haurwitz (1945): it needs nothing but the sun's height. Both are
compared with pvlib in the tests.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

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
