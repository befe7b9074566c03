"""What does Electricity Maps say about a zone? API v3: average intensity and the renewable share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import SourceFailed, all_of
from harch.carbon.signals.web import ApiKey, WebReader, moment_of, shaped
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal

URL = "https://api.electricitymaps.com/v3"
FACTOR_TYPES: Mapping[Signal, str] = {
    Signal.GRID_AVERAGE_LIFECYCLE: "lifecycle",
    Signal.GRID_AVERAGE_DIRECT: "direct",
}
PROVIDES = frozenset({*FACTOR_TYPES, Signal.RENEWABLE_SHARE})


class _Latest(msgspec.Struct, rename="camel"):
    zone: str
    datetime: datetime
    carbon_intensity: float | None
    emission_factor_type: str
    is_estimated: bool = False
    estimation_method: str | None = None


class _ForecastPoint(msgspec.Struct, rename="camel"):
    datetime: datetime
    carbon_intensity: float | None


class _Forecast(msgspec.Struct, rename="camel"):
    zone: str
    forecast: list[_ForecastPoint]


class _Breakdown(msgspec.Struct, rename="camel"):
    zone: str
    datetime: datetime
    renewable_percentage: float | None
    is_estimated: bool = False
    estimation_method: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectricityMaps:
    """One request per signal, and one more for a forecast where the contract has it."""

    web: WebReader
    key: ApiKey
    name: str = "electricity-maps"
    url: str = URL
    provides: frozenset[Signal] = frozenset({Signal.GRID_AVERAGE_LIFECYCLE})
    zones: Mapping[str, str] = field(default_factory=dict)  # our grid zone -> theirs, where they differ
    with_forecast: bool = False
    by_zone: bool = True

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        zone = self.zones.get(site.grid_zone, site.grid_zone)
        questions = []
        for signal, factor_type in FACTOR_TYPES.items():
            if signal in self.provides:
                questions.append(self._latest(signal, factor_type, zone, clock))
                if self.with_forecast:
                    questions.append(self._forecast(signal, factor_type, zone, clock))
        if Signal.RENEWABLE_SHARE in self.provides:
            questions.append(self._share(zone, clock))
        return await all_of(self.name, questions)

    async def _latest(self, signal: Signal, factor_type: str, zone: str, clock: Clock) -> list[Reading[Quantity]]:
        answer = await self._query("carbon-intensity/latest", zone, clock, emissionFactorType=factor_type)
        latest = shaped(self.name, answer, _Latest)
        self._check_zone(latest.zone, zone)
        if latest.emission_factor_type != factor_type:
            raise SourceFailed(self.name, f"requested {factor_type}, received {latest.emission_factor_type[:20]}")
        return self._reading(
            signal,
            latest.carbon_intensity,
            "g/kWh",
            latest.datetime,
            clock,
            latest.is_estimated,
            latest.estimation_method,
        )

    async def _forecast(self, signal: Signal, factor_type: str, zone: str, clock: Clock) -> list[Reading[Quantity]]:
        answer = await self._query("carbon-intensity/forecast", zone, clock, emissionFactorType=factor_type)
        forecast = shaped(self.name, answer, _Forecast)
        self._check_zone(forecast.zone, zone)
        received_at = clock.now()
        return [
            Reading(
                signal=signal,
                value=quantity(signal, point.carbon_intensity, "g/kWh"),
                at=moment_of(self.name, point.datetime),
                source=self.name,
                evidence=Evidence.ESTIMATED,
                received_at=received_at,
                ahead=True,
            )
            for point in forecast.forecast
            if point.carbon_intensity is not None
        ]

    async def _share(self, zone: str, clock: Clock) -> list[Reading[Quantity]]:
        share = shaped(self.name, await self._query("power-breakdown/latest", zone, clock), _Breakdown)
        self._check_zone(share.zone, zone)
        return self._reading(
            Signal.RENEWABLE_SHARE,
            share.renewable_percentage,
            "%",
            share.datetime,
            clock,
            share.is_estimated,
            share.estimation_method,
        )

    async def _query(self, path: str, zone: str, clock: Clock, **params: str) -> object:
        headers = {"auth-token": self.key.reveal()}
        return await self.web.get_json(f"{self.url}/{path}", clock, params={"zone": zone, **params}, headers=headers)

    def _check_zone(self, answered: str, requested: str) -> None:
        if answered != requested:
            raise SourceFailed(self.name, f"requested zone {requested}, received {answered[:20]}")

    def _reading(
        self,
        signal: Signal,
        number: float | None,
        unit: str,
        moment: datetime,
        clock: Clock,
        is_estimated: bool,
        method: str | None,
    ) -> list[Reading[Quantity]]:
        if number is None:
            raise SourceFailed(self.name, f"no value of {signal} now")
        reading = Reading(
            signal=signal,
            value=quantity(signal, number, unit),
            at=moment_of(self.name, moment),
            source=self.name,
            evidence=Evidence.ESTIMATED if is_estimated else Evidence.MEASURED,
            received_at=clock.now(),
            note=(method or "")[:80],
        )
        return [reading]
