"""What do the operator's own meters say? Instant queries to a Prometheus: PV, wind, battery, GPU and facility power."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from harch.base.clock import Clock
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import SourceFailed, all_of
from harch.carbon.signals.web import ApiKey, WebReader, shaped
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Quantity, Reading, Signal


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """PromQL that yields one number; `$hub` and `$zone` stand for the place. The unit is the operator's word."""

    text: str
    unit: str
    evidence: Evidence = Evidence.MEASURED


class _Series(msgspec.Struct):
    value: tuple[float, str]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[object]


class _Answer(msgspec.Struct):
    status: str
    data: _Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """One request per signal. Several series are refused: how to add them up is the operator's choice."""

    web: WebReader
    name: str
    url: str
    queries: Mapping[Signal, PrometheusQuery]
    key: ApiKey | None = None
    by_zone: bool = False

    @property
    def provides(self) -> frozenset[Signal]:
        return frozenset(self.queries)

    async def fetch(self, site: SignalSite, clock: Clock) -> list[Reading[Quantity]]:
        return await all_of(
            self.name, [self._run_query(signal, query, site, clock) for signal, query in self.queries.items()]
        )

    async def _run_query(
        self, signal: Signal, query: PrometheusQuery, site: SignalSite, clock: Clock
    ) -> list[Reading[Quantity]]:
        text = query.text.replace("$hub", site.hub).replace("$zone", site.grid_zone)
        headers = {"Authorization": f"Bearer {self.key.reveal()}"} if self.key else {}
        answer = await self.web.get_json(f"{self.url}/api/v1/query", clock, params={"query": text}, headers=headers)
        moment_s, number = self._sample(signal, shaped(self.name, answer, _Answer))
        reading = Reading(
            signal=signal,
            value=quantity(signal, number, query.unit),
            at=datetime.fromtimestamp(moment_s, UTC),
            source=self.name,
            evidence=query.evidence,
            received_at=clock.now(),
        )
        return [reading]

    def _sample(self, signal: Signal, answer: _Answer) -> tuple[float, float]:
        if answer.status != "success":
            raise SourceFailed(self.name, f"the query of {signal} failed")
        if answer.data.result_type == "scalar":
            moment_s, text = shaped(self.name, answer.data.result, tuple[float, str])
        elif answer.data.result_type == "vector" and len(answer.data.result) == 1:
            moment_s, text = shaped(self.name, answer.data.result[0], _Series).value
        else:
            found = len(answer.data.result)
            raise SourceFailed(
                self.name,
                f"the query of {signal} returned {found} series instead of one",
                hint="wrap it in sum()" if found else "check that the meter is scraped",
            )
        try:
            number = float(text)
        except ValueError:
            number = math.nan  # judged and shown like any other value that is no number
        if not 0 <= moment_s < 1e11:
            raise SourceFailed(self.name, f"the query of {signal} returned an invalid time")
        return moment_s, number
