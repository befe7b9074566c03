"""What does WattTime say about a region? API v3: marginal direct emissions, with a log-in whose token is renewed.

Marginal emissions cannot be metered: whatever WattTime says is an estimate, and is labelled so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import AccessRefused, SourceFailed
from harch.carbon.signals.web import ApiKey, WebReader, moment_of, shaped
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal

URL = "https://api.watttime.org"
TOKEN_LIFE_S = 25 * 60.0  # the service ends them after 30 minutes
HORIZON_HOURS = 24
SIGNAL_TYPE = "co2_moer"
UNITS = {"lbs_co2_per_mwh": "lbs/MWh"}
PROVIDES = frozenset({Signal.GRID_MARGINAL_DIRECT})


class _Token(msgspec.Struct):
    token: str


class _Point(msgspec.Struct):
    point_time: datetime
    value: float


class _Meta(msgspec.Struct):
    region: str
    signal_type: str
    units: str


class _Forecast(msgspec.Struct):
    data: list[_Point]
    meta: _Meta


@dataclass(slots=True, kw_only=True)
class WattTime:
    """The value of now is the forecast's newest point that has begun; the rest of it is the outlook."""

    web: WebReader
    user: ApiKey
    password: ApiKey
    name: str = "watttime"
    url: str = URL
    provides: frozenset[Signal] = PROVIDES
    regions: Mapping[str, str] = field(default_factory=dict)  # grid zone -> WattTime's region
    by_zone: bool = True
    _token: ApiKey | None = None
    _token_at_s: float = 0.0
    _login: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        region = self.regions.get(site.grid_zone, site.grid_zone)
        token = await self._fresh_token(clock)
        try:
            answer = await self._query(region, token, clock)
        except AccessRefused:
            # Tokens may end early; a second refusal means that the account may not see this region.
            answer = await self._query(region, await self._fresh_token(clock, instead_of=token), clock)
        return self._readings(shaped(self.name, answer, _Forecast), region, clock.now())

    async def _fresh_token(self, clock: Clock, *, instead_of: ApiKey | None = None) -> ApiKey:
        async with self._login:  # log-ins are limited too: several zones share one
            expired = clock.monotonic_s() - self._token_at_s >= TOKEN_LIFE_S
            if self._token is None or expired or self._token is instead_of:
                auth = (self.user.reveal(), self.password.reveal())
                answer = await self.web.get_json(f"{self.url}/login", clock, auth=auth)
                token = shaped(self.name, answer, _Token).token
                if not token.isascii() or not token.isprintable() or not token:
                    raise SourceFailed(self.name, "login returned no token")
                self._token = ApiKey(token)
                self._token_at_s = clock.monotonic_s()
            return self._token

    async def _query(self, region: str, token: ApiKey, clock: Clock) -> object:
        return await self.web.get_json(
            f"{self.url}/v3/forecast",
            clock,
            params={"region": region, "signal_type": SIGNAL_TYPE, "horizon_hours": str(HORIZON_HOURS)},
            headers={"Authorization": f"Bearer {token.reveal()}"},
        )

    def _readings(self, forecast: _Forecast, region: str, now: datetime) -> list[Reading[Quantity]]:
        meta = forecast.meta
        if (meta.region, meta.signal_type) != (region, SIGNAL_TYPE):
            raise SourceFailed(self.name, f"requested {region}, received {meta.signal_type[:20]} of {meta.region[:20]}")
        if meta.units not in UNITS:
            raise SourceFailed(self.name, f"returned unit `{meta.units[:30]}`, which is unknown")
        points = sorted((moment_of(self.name, point.point_time), point.value) for point in forecast.data)
        begun = max((moment for moment, _ in points if moment <= now), default=None)
        return [
            Reading(
                signal=Signal.GRID_MARGINAL_DIRECT,
                value=quantity(Signal.GRID_MARGINAL_DIRECT, number, UNITS[meta.units]),
                at=moment,
                source=self.name,
                evidence=Evidence.ESTIMATED,
                received_at=now,
                ahead=moment > now,
            )
            for moment, number in points
            if begun is None or moment >= begun
        ]
