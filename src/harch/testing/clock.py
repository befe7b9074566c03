"""What time is it in a test? Only as late as the test says: `SimClock` moves when it is told to and never by itself."""

from __future__ import annotations

import asyncio
import heapq
import math
from datetime import UTC, datetime, timedelta
from itertools import count

START = datetime(2026, 1, 1, tzinfo=UTC)
# How often the event loop may turn after a wake-up, so that what was woken can finish or sleep again.
SETTLE_TURNS = 50


class SimClock:
    """A `harch.base.clock.Clock` for tests. Sleepers wake in order of their time, then in order of their sleep.

    It rules `clock.sleep` only: `asyncio.sleep` and `asyncio.timeout` still follow the machine. Its boot clock may have
    been started earlier (`boot_offset_s`) and run at another speed (`boot_rate`) than the time of the simulated world.
    """

    def __init__(self, start: datetime = START, *, boot_offset_s: float = 0.0, boot_rate: float = 1.0) -> None:
        if start.tzinfo is None:
            raise ValueError("the start needs a time zone, e.g. tzinfo=UTC")
        self._start = start.astimezone(UTC)
        self._elapsed_s = 0.0
        self._wall_offset_s = 0.0
        self.boot_offset_s, self.boot_rate = boot_offset_s, boot_rate
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s + self._wall_offset_s)

    def set_wall(self, delta_s: float) -> None:
        """Somebody sets the wall clock by so many seconds; no time passes."""
        self._wall_offset_s += delta_s

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def boot_s(self) -> float:
        return self.boot_offset_s + self.boot_rate * self._elapsed_s

    @property
    def sleeper_count(self) -> int:
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, delay_s: float) -> None:
        if math.isnan(delay_s):
            raise ValueError("cannot sleep for NaN seconds")
        if delay_s <= 0:
            await asyncio.sleep(0)  # as the real clock does: others get a turn, time does not pass
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + delay_s, next(self._order), future))
        await future

    async def advance(self, delay_s: float) -> None:
        """Moves time on, stopping at every wake-up on the way, so a loop that sleeps 1 s runs ten times in 10 s."""
        await _settle()  # tasks that were only just created must have reached their first sleep
        target_s = self._elapsed_s + _forward(delay_s)
        while (wake_s := self._next_wake_s()) is not None and wake_s <= target_s:
            self._elapsed_s = wake_s
            self._wake_next()
            await _settle()
        self._elapsed_s = target_s

    def jump(self, delay_s: float) -> None:
        """Moves time on at once, without an event loop: for state machines that only read the clock.

        Sleepers that are due see the new time, as after a machine was suspended.
        """
        self._elapsed_s += _forward(delay_s)
        while (wake_s := self._next_wake_s()) is not None and wake_s <= self._elapsed_s:
            self._wake_next()

    def _next_wake_s(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():  # cancelled meanwhile
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake_next(self) -> None:
        heapq.heappop(self._sleepers)[2].set_result(None)


def _forward(delay_s: float) -> float:
    if not 0 <= delay_s < math.inf:
        raise ValueError(f"time moves forward by a finite number of seconds, not by {delay_s}")
    return delay_s


async def _settle() -> None:
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
