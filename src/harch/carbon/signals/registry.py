"""What is known about every hub now?

Polls each source when it is due, judges what it says, keeps what was good, and gives snapshots that decisions can
rest on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection
from harch.carbon.signals.choice import HubSignals, SignalCandidate, choose
from harch.carbon.signals.circuit_breaker import CircuitBreaker
from harch.carbon.signals.quality import (
    DEFAULT_LIMITS,
    NO_HISTORY,
    Circumstances,
    SampleHistory,
    SignalLimits,
    arrival_rejections,
    forecast_rejections,
    remembered,
)
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.source import SignalSource, SourceFailed
from harch.carbon.values import Quantity, Reading, Signal

READINGS_MAX = 5000  # of one answer; 16 days of hourly weather in seven variables are 2,688
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a source is asked, and how long one question may take with all its tries."""

    every_s: float = 30.0
    deadline_s: float = 90.0


EVERY_ROUND = Pace()


@dataclass(slots=True, kw_only=True)
class Feed:
    """One source at one place: a grid zone, if its answer serves all hubs of the zone, else one hub."""

    source: SignalSource
    site: SignalSite
    pace: Pace
    limits: Mapping[Signal, SignalLimits]
    is_model: bool = False
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    failure: str = ""
    failed_since: datetime | None = None
    _polled_s: float | None = None
    _polling: bool = False
    _good: dict[Signal, Reading[Quantity]] = field(default_factory=dict)
    _outlook: dict[Signal, tuple[Reading[Quantity], ...]] = field(default_factory=dict)
    _refused: dict[Signal, tuple[Rejection, ...]] = field(default_factory=dict)
    _histories: dict[Signal, SampleHistory] = field(default_factory=dict)

    async def refresh(self, clock: Clock) -> None:
        """Asks the source if it is due, not being asked already and not to be left alone. Never raises."""
        now_s = clock.monotonic_s()
        due = self._polled_s is None or now_s - self._polled_s >= self.pace.every_s
        if self._polling or not due or self.breaker.wait_s(now_s) > 0:
            return
        self._polled_s, self._polling = now_s, True
        try:
            async with asyncio.timeout(self.pace.deadline_s):
                readings = await self.source.fetch(self.site, clock)
        except SourceFailed as error:
            self.take(list(error.readings), clock.now())
            self._fail(error.reason, clock, error.retry_after_s)
            if error.readings:  # it does answer: what it has is fetched at every round
                self.breaker.succeeded()
        except TimeoutError:
            self._fail(f"took more than {self.pace.deadline_s:g} s", clock)
        except Exception as error:  # noqa: BLE001 (the edge of a plug-in: its fault must not silence the other sources)
            _log.exception("source %s failed at %s", self.source.name, self.site.hub)
            self._fail(f"plug-in error ({type(error).__name__})", clock)
        else:
            self.breaker.succeeded()
            self.failure, self.failed_since = "", None
            self.take(readings, clock.now())
        finally:
            self._polling = False

    def take(self, readings: list[Reading[Quantity]], now: datetime) -> None:
        """Judges an answer: what is good becomes the candidate, what is not is kept as a reason."""
        current: dict[Signal, list[Reading[Quantity]]] = {}
        ahead: dict[Signal, list[Reading[Quantity]]] = {}
        for reading in readings[:READINGS_MAX]:
            if reading.signal in self.source.provides:
                (ahead if reading.ahead else current).setdefault(reading.signal, []).append(reading)
        for signal, group in current.items():
            self._refused.pop(signal, None)
            for reading in sorted(group, key=lambda entry: entry.at):
                self._judge(reading, now)
        for signal, group in ahead.items():
            ordered = sorted(group, key=lambda entry: entry.at)
            self._outlook[signal] = tuple(
                entry for entry in ordered if not forecast_rejections(entry, self._circumstances(signal, now))
            )

    def candidate(self, signal: Signal, now_s: float) -> SignalCandidate:
        """What it has to offer for a signal, with everything that speaks against it."""
        problems = list(self._refused.get(signal, ()))
        if self.failure:
            since = "" if self.failed_since is None else f" since {self.failed_since:%Y-%m-%d %H:%M} UTC"
            wait_s = self.breaker.wait_s(now_s)
            pause = f"; next attempt in {wait_s:.0f} s" if wait_s > 0 else ""
            problems.append(
                Rejection(self.source.name, "failing", f"{self.failure} ({self.breaker.failures} times{since}{pause})")
            )
        return SignalCandidate(
            source=self.source.name,
            reading=self._good.get(signal),
            problems=tuple(problems),
            history=self._histories.get(signal, NO_HISTORY),
            is_model=self.is_model,
        )

    def outlook(self, signal: Signal) -> tuple[Reading[Quantity], ...]:
        """What the source itself says about the time ahead, in order of time."""
        return self._outlook.get(signal, ())

    def _judge(self, reading: Reading[Quantity], now: datetime) -> None:
        seen = self._circumstances(reading.signal, now)
        rejections = arrival_rejections(reading, seen)
        self._histories[reading.signal] = remembered(reading, seen)
        if rejections:
            self._refused[reading.signal] = rejections
        else:
            self._good[reading.signal] = reading
            self._refused.pop(reading.signal, None)

    def _circumstances(self, signal: Signal, now: datetime) -> Circumstances:
        return Circumstances(
            now=now,
            limits=self.limits[signal],
            history=self._histories.get(signal, NO_HISTORY),
            number_max=self.site.number_max(signal),
        )

    def _fail(self, reason: str, clock: Clock, retry_after_s: float | None = None) -> None:
        self.failure = reason
        self.failed_since = self.failed_since or clock.now()
        self.breaker.failed(clock.monotonic_s(), retry_after_s=retry_after_s)


# What is known about every hub now? Keeps all sources fresh and gives snapshots that decisions can rest on.
#
# One task per source and place: an API that hangs does not delay a meter. Taking a snapshot asks nobody and cannot
# fail.


ROUND_S = 30.0  # how often every hub is looked at; a source may ask for longer pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """A source and how it is used."""

    source: SignalSource
    pace: Pace = EVERY_ROUND
    is_model: bool = False


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """How one source does at one place: for `doctor` and for metrics."""

    source: str
    place: str
    failure: str
    failures: int


class SignalRegistry:
    """The signals of all hubs. `orders` says for each hub and signal which sources are used, best first.

    Sources that a hub does not name for a signal are not asked on its behalf.
    """

    def __init__(
        self,
        sites: Sequence[SignalSite],
        sources: Sequence[SourcePlan],
        orders: Mapping[str, Mapping[Signal, tuple[str, ...]]],
        clock: Clock,
        *,
        limits: Mapping[Signal, SignalLimits] = DEFAULT_LIMITS,
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

    def _feed(self, plan: SourcePlan, site: SignalSite) -> Feed:
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
