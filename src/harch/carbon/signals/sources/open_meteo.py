"""What does Open-Meteo say about the weather at a site, now and in the next days? All of it is estimated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import SourceFailed
from harch.carbon.signals.web import ApiKey, WebReader, moment_of, shaped
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, KindsMixed, Quantity, Reading, Signal

URL = "https://api.open-meteo.com/v1"
FORECAST_DAYS = 5  # 96 hours from any hour of the first day
VARIABLES = {
    Signal.IRRADIANCE: "shortwave_radiation",
    Signal.WIND_SPEED_10M: "wind_speed_10m",
    Signal.WIND_SPEED_80M: "wind_speed_80m",
    Signal.CLOUD_COVER: "cloud_cover",
    Signal.TEMPERATURE: "temperature_2m",
}
PROVIDES = frozenset(VARIABLES)


class _Answer(msgspec.Struct):
    utc_offset_seconds: int
    current_units: dict[str, str]
    current: dict[str, float | None]
    hourly_units: dict[str, str]
    hourly: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeteo:
    """One request for all variables. The key is for paying customers, who have a host of their own."""

    web: WebReader
    name: str = "open-meteo"
    url: str = URL
    key: ApiKey | None = None
    provides: frozenset[Signal] = PROVIDES
    by_zone: bool = False

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        variables = ",".join(VARIABLES[signal] for signal in sorted(self.provides))
        params = {
            "latitude": f"{site.latitude:.4f}",
            "longitude": f"{site.longitude:.4f}",
            "current": variables,
            "hourly": variables,
            "wind_speed_unit": "ms",
            "timeformat": "unixtime",
            "timezone": "GMT",
            "forecast_days": str(FORECAST_DAYS),
        }
        if self.key is not None:
            params["apikey"] = self.key.reveal()
        answer = shaped(self.name, await self.web.get_json(f"{self.url}/forecast", clock, params=params), _Answer)
        if answer.utc_offset_seconds != 0:
            raise SourceFailed(self.name, "the response is in a different time zone than requested")
        now = clock.now()
        try:
            return [reading for signal in sorted(self.provides) for reading in self._readings(signal, answer, now)]
        except KindsMixed as error:
            raise SourceFailed(self.name, error.message) from error

    def _readings(self, signal: Signal, answer: _Answer, now: datetime) -> list[Reading[Quantity]]:
        name = VARIABLES[signal]
        found = []
        number, moment = answer.current.get(name), answer.current.get("time")
        if number is not None and moment is not None:
            found.append(self._reading(signal, number, answer.current_units.get(name, ""), moment, now, ahead=False))
        unit = answer.hourly_units.get(name, "")
        hours = zip(answer.hourly.get("time", ()), answer.hourly.get(name, ()), strict=False)
        found += [
            self._reading(signal, number, unit, moment, now, ahead=True)
            for moment, number in hours
            if moment is not None and number is not None and moment > now.timestamp()
        ]
        return found

    def _reading(
        self, signal: Signal, number: float, unit: str, moment: float, now: datetime, *, ahead: bool
    ) -> Reading[Quantity]:
        try:
            at = moment_of(self.name, datetime.fromtimestamp(moment, UTC))
        except (ValueError, OverflowError, OSError) as error:
            raise SourceFailed(self.name, "the response has an invalid time") from error
        return Reading(
            signal=signal,
            value=quantity(signal, number, unit),
            at=at,
            source=self.name,
            evidence=Evidence.ESTIMATED,
            received_at=now,
            ahead=ahead,
        )
