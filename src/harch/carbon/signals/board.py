"""What is known about every hub now? Keeps all sources fresh and gives snapshots that decisions can rest on.

One task per source and place: an API that hangs does not delay a meter. Taking a snapshot asks nobody and cannot fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.carbon.signals.choice import HubSignals, choose
from harch.carbon.signals.feed import EVERY_ROUND, Feed, Pace
from harch.carbon.signals.limits import DEFAULT_LIMITS, Limits
from harch.carbon.signals.sites import Site
from harch.carbon.signals.source import Source
from harch.carbon.values import Quantity, Reading, Signal

ROUND_S = 30.0  # how often every hub is looked at; a source may ask for longer pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """A source and how it is used."""

    source: Source
    pace: Pace = EVERY_ROUND
    is_model: bool = False


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """How one source does at one place: for `doctor` and for metrics."""

    source: str
    place: str
    failure: str
    failures: int


class SignalBoard:
    """The signals of all hubs. `orders` says for each hub and signal which sources are used, best first.

    Sources that a hub does not name for a signal are not asked on its behalf.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        sources: Sequence[SourcePlan],
        orders: Mapping[str, Mapping[Signal, tuple[str, ...]]],
        clock: Clock,
        *,
        limits: Mapping[Signal, Limits] = DEFAULT_LIMITS,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._orders = orders
        plans = {plan.source.name: plan for plan in sources}
        if len(plans) != len(sources):
            raise InvariantBroken("two sources have one name", *(plan.source.name for plan in sources))
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._of_hub: dict[str, dict[str, Feed]] = {}
        for site in sites:
            names = dict.fromkeys(name for order in orders.get(site.hub, {}).values() for name in order)
            self._of_hub[site.hub] = {name: self._feed(plans[name], site) for name in names}

    async def refresh(self, hub: str) -> None:
        """Asks every source of the hub that is due, all at once, and returns when the slowest has answered."""
        await self._refresh_all(tuple(self._feeds_of(hub).values()))

    async def run(self) -> None:
        """Keeps all feeds fresh until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for feed in self._feeds.values():
                group.create_task(self._keep_fresh(feed))

    def now(self, hub: str) -> HubSignals:
        """The snapshot of a hub. Raises HarchError E0305 for a hub that is not on the board."""
        feeds, now, now_s = self._feeds_of(hub), self._clock.now(), self._clock.monotonic_s()
        states = {
            signal: choose(
                signal,
                tuple(feeds[name].candidate(signal, now_s) for name in order),
                now=now,
                limits=self._limits[signal],
            )
            for signal, order in self._orders[hub].items()
        }
        return HubSignals(hub=hub, taken_at=now, states=MappingProxyType(states))

    def outlook(self, hub: str, signal: Signal) -> tuple[Reading[Quantity], ...]:
        """What the best source that looks ahead says about the time from now on: weather, mostly."""
        feeds, now = self._feeds_of(hub), self._clock.now()
        for name in self._orders[hub].get(signal, ()):
            if ahead := tuple(reading for reading in feeds[name].outlook(signal) if reading.at >= now):
                return ahead
        return ()

    def health(self) -> tuple[FeedHealth, ...]:
        return tuple(
            FeedHealth(feed.source.name, place, feed.failure, feed.breaker.failures)
            for (_, place), feed in self._feeds.items()
        )

    def _feed(self, plan: SourcePlan, site: Site) -> Feed:
        place = site.grid_zone if plan.source.by_zone else site.hub
        key = (plan.source.name, place)
        if key not in self._feeds:
            self._feeds[key] = Feed(
                source=plan.source, site=site, pace=plan.pace, limits=self._limits, is_model=plan.is_model
            )
        return self._feeds[key]

    def _feeds_of(self, hub: str) -> dict[str, Feed]:
        if hub not in self._of_hub:
            raise HarchError("E0305", f"no hub `{hub[:64]}` has carbon signals", hint="`harch hubs` lists the hubs")
        return self._of_hub[hub]

    async def _keep_fresh(self, feed: Feed) -> None:
        while True:
            await feed.refresh(self._clock)
            await self._clock.sleep(min(ROUND_S, feed.pace.every_s))

    async def _refresh_all(self, feeds: Sequence[Feed]) -> None:
        async with asyncio.TaskGroup() as group:
            for feed in feeds:
                group.create_task(feed.refresh(self._clock))
