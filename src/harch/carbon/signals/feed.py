"""What has one source said about one place? Asks it when it is due, judges what it says, and keeps what was good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from harch.base.clock import Clock
from harch.base.rejection import Rejection
from harch.carbon.signals.choice import Candidate
from harch.carbon.signals.history import NO_HISTORY, History
from harch.carbon.signals.limits import Limits
from harch.carbon.signals.quality import Circumstances, arrival_rejections, forecast_rejections, remembered
from harch.carbon.signals.restraint import Breaker
from harch.carbon.signals.sites import Site
from harch.carbon.signals.source import Source, SourceFailed
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

    source: Source
    site: Site
    pace: Pace
    limits: Mapping[Signal, Limits]
    is_model: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    failure: str = ""
    failed_since: datetime | None = None
    _asked_s: float | None = None
    _asking: bool = False
    _good: dict[Signal, Reading[Quantity]] = field(default_factory=dict)
    _outlook: dict[Signal, tuple[Reading[Quantity], ...]] = field(default_factory=dict)
    _refused: dict[Signal, tuple[Rejection, ...]] = field(default_factory=dict)
    _histories: dict[Signal, History] = field(default_factory=dict)

    async def refresh(self, clock: Clock) -> None:
        """Asks the source if it is due, not being asked already and not to be left alone. Never raises."""
        now_s = clock.monotonic_s()
        due = self._asked_s is None or now_s - self._asked_s >= self.pace.every_s
        if self._asking or not due or self.breaker.wait_s(now_s) > 0:
            return
        self._asked_s, self._asking = now_s, True
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
            self._fail(f"fault in the plug-in ({type(error).__name__})", clock)
        else:
            self.breaker.succeeded()
            self.failure, self.failed_since = "", None
            self.take(readings, clock.now())
        finally:
            self._asking = False

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

    def candidate(self, signal: Signal, now_s: float) -> Candidate:
        """What it has to offer for a signal, with everything that speaks against it."""
        problems = list(self._refused.get(signal, ()))
        if self.failure:
            since = "" if self.failed_since is None else f" since {self.failed_since:%Y-%m-%d %H:%M} UTC"
            wait_s = self.breaker.wait_s(now_s)
            pause = f"; asked again in {wait_s:.0f} s" if wait_s > 0 else ""
            problems.append(
                Rejection(self.source.name, "failing", f"{self.failure} ({self.breaker.failures} times{since}{pause})")
            )
        return Candidate(
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
