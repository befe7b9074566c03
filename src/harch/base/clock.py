"""What time is it, also when the wall clock jumps?

The only module that reads the machine's clocks; everyone else receives a `Clock` or a `now`. The steady clock goes on
by the boot clock until a new time has proved itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from harch.base.elapsed import Adopted

# Systems without it have no such suspend either, or none that we could see. `execution.kernel` reads the same clock.
BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """A source of time: wall time for people, monotonic seconds for durations, boot seconds for leases, and sleep."""

    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...

    def boot_s(self) -> float:
        """Seconds since this machine started, also while it was suspended: a lease runs out in its sleep, too."""
        ...

    async def sleep(self, delay_s: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_s(self) -> float:
        return time.clock_gettime(BOOT_CLOCK)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


async def sleep_unless(event: asyncio.Event, clock: Clock, delay_s: float) -> bool:
    """Sleeps for that long, or until the event is set. True: it is set."""
    waits = [asyncio.ensure_future(wait) for wait in (event.wait(), clock.sleep(max(delay_s, 0.0)))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return event.is_set()


def machine_boot_id() -> str:
    """Which boot of which machine the boot clock counts for; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970, the time of telemetry."""
    return round(moment.timestamp() * 1000)


def epoch_ns(moment: datetime) -> int:
    """Nanoseconds since 1970, exact to the microsecond that a moment has."""
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


@lru_cache(maxsize=4096)  # the same moment is written several times: a workload's age, all events of one turn
def iso(moment: datetime) -> str:
    """UTC in ISO 8601 with milliseconds and `Z`: the one form that HarchOS writes."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"  # without its "+00:00"


def parse_iso(text: str) -> datetime:
    """Reads ISO 8601; a time without a zone is refused, because guessing one moves jobs by hours."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time `{text}` has no time zone; write e.g. `{text}Z`")
    return moment.astimezone(UTC)


# What time is it when the wall clock jumps? A clock that goes on by the boot clock until a new time has proved itself.
#
# People set clocks, machines wake up with wrong ones, and time servers put them right at once. Whoever takes the
# difference of two such times finds an hour that never was. So this clock runs with the boot clock. It follows the wall
# clock as long as both agree; a jump is bridged: for five minutes time goes on as if nothing had happened. A clock that
# is back by then has done no harm. One that stays is believed: this clock then jumps once, and remembers by how much,
# so
# that `elapsed` (in the module of that name) still tells the seconds that really passed.


STEP_S_MIN = 1.0  # less is not a jump, and is followed at once
DRIFT_MAX = 0.002  # how much the clocks may drift apart without a jump: four times what time servers slew by
SETTLE_S = 300.0
ADOPTED_MAX = 64
NEWS_MAX = 64


class Anchor(Struct, frozen=True, kw_only=True):
    """What a process leaves to the next one of the same boot of the same machine."""

    boot_id: str
    boot_s: float
    at: datetime
    adopted: tuple[Adopted, ...] = ()


class ClockStepKind(StrEnum):
    STEPPED = "clock.stepped"
    BACK = "clock.back"
    ADOPTED = "clock.adopted"


class StepNews(Struct, frozen=True):
    kind: ClockStepKind
    delta_s: float

    @property
    def sentence(self) -> str:
        way = f"{abs(self.delta_s):,.1f} s {'ahead' if self.delta_s > 0 else 'back'}"
        match self.kind:
            case ClockStepKind.STEPPED:
                return f"the wall clock was set {way}; time goes on by the boot clock for {SETTLE_S / 60:.0f} minutes"
            case ClockStepKind.BACK:
                return f"the wall clock is right again; it had been set {way}, and nothing was counted by it"
            case ClockStepKind.ADOPTED:
                return f"the new wall clock is accepted, {way}: that is the time from now on"


class SteadyClock:
    """A `Clock` above another one. May be read from any thread."""

    def __init__(self, clock: Clock, anchor: Anchor | None = None, *, boot_id: str = "") -> None:
        self._clock, self._boot_id = clock, boot_id
        self._at, self._boot_s = clock.now(), clock.boot_s()
        self.adopted: tuple[Adopted, ...] = ()
        self._pending_s: float | None = None  # by how much the wall clock is off
        self._pending_since_s = 0.0
        self._news: list[StepNews] = []
        self._lock = threading.Lock()
        if anchor is not None and boot_id and anchor.boot_id == boot_id and anchor.boot_s <= self._boot_s:
            self._at, self._boot_s, self.adopted = anchor.at, anchor.boot_s, anchor.adopted

    def now(self) -> datetime:
        with self._lock:
            return self._read(self._clock.now(), self._clock.boot_s())

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def boot_s(self) -> float:
        return self._clock.boot_s()

    async def sleep(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)

    @property
    def offset_s(self) -> float:
        """By how much the wall clock is off at the moment; 0 while it is believed."""
        return self._pending_s or 0.0

    def anchor(self) -> Anchor:
        at = self.now()
        return Anchor(boot_id=self._boot_id, boot_s=self._clock.boot_s(), at=at, adopted=self.adopted)

    def take_news(self) -> list[StepNews]:
        with self._lock:
            news, self._news = self._news, []
        return news

    def _read(self, wall: datetime, boot_s: float) -> datetime:
        passed_s = max(0.0, boot_s - self._boot_s)
        off_s = (wall - self._at).total_seconds() - passed_s
        if abs(off_s) <= STEP_S_MIN + DRIFT_MAX * passed_s:
            if self._pending_s is not None:
                self._emit(ClockStepKind.BACK, self._pending_s)
            self._at, self._boot_s, self._pending_s = wall, boot_s, None
            return wall
        line = self._at + timedelta(seconds=passed_s)
        if self._pending_s is None or abs(off_s - self._pending_s) > STEP_S_MIN:
            self._pending_s, self._pending_since_s = off_s, boot_s
            self._emit(ClockStepKind.STEPPED, off_s)
        elif boot_s - self._pending_since_s >= SETTLE_S:
            self.adopted = (*self.adopted, Adopted(line, wall))[-ADOPTED_MAX:]
            self._at, self._boot_s, self._pending_s = wall, boot_s, None
            self._emit(ClockStepKind.ADOPTED, off_s)
            return wall
        return line

    def _emit(self, kind: ClockStepKind, delta_s: float) -> None:
        self._news = [*self._news, StepNews(kind, delta_s)][-NEWS_MAX:]
