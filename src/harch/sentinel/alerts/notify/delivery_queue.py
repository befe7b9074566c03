"""Who carries notifications? Workers over a bounded queue: attempts with pauses, a rate per receiver, a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.notify.retry_policy import TokenBucket, pause_ms

log = logging.getLogger(__name__)

QUEUE_MAX = 1_000
WORKERS = 8
RECEIVERS_MAX = 1_000


class Sends(Protocol):
    async def send(self, delivery: Delivery, /) -> None: ...


class DeliveryQueue:
    """Every delivery that it takes ends in one call of `done`, with None or the last error."""

    def __init__(self, sender: Sends, clock: Clock, *, done: Callable[[Delivery, HarchError | None], None]) -> None:
        self.sender, self._clock, self._done = sender, clock, done
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue(QUEUE_MAX)
        self._buckets: dict[str, TokenBucket] = {}
        self.counts: Counter[tuple[str, str]] = Counter()  # by receiver and what: sent, failed, attempts, refused

    def offer(self, delivery: Delivery) -> None:
        """Takes it, or, when the queue is full, fails it at once: the group's next look comes again."""
        try:
            self._queue.put_nowait(delivery)
        except asyncio.QueueFull:
            self.counts[delivery.receiver, "refused"] += 1
            self._done(
                delivery,
                HarchError("E0649", f"{QUEUE_MAX} notifications are already queued", hint="it will be retried"),
            )

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            delivery = await self._queue.get()
            error: HarchError | None = None
            try:
                await self._carry(delivery)
            except HarchError as failed:
                error = failed
                log.warning("notification to %s: %s", delivery.receiver, failed.message)
            except Exception:  # the edge: one broken receiver must not stop the others
                log.exception("notification to %s", delivery.receiver)
                error = HarchError("E0650", "unexpected error", hint="see the log of SENTINEL")
            self.counts[delivery.receiver, "failed" if error else "sent"] += 1
            self._done(delivery, error)

    async def _carry(self, delivery: Delivery) -> None:
        attempt = 0
        # By the boot's own seconds: a clock that is set ahead must not drop what waits.
        deadline_s = self._clock.monotonic_s() + max(0, delivery.deadline_ms - self._now_ms()) / 1000
        while True:
            await self._wait_for_token(delivery, deadline_s)
            attempt += 1
            self.counts[delivery.receiver, "attempts"] += 1
            try:
                await self.sender.send(delivery)
            except HarchError as error:
                wait_ms = pause_ms(attempt)
                if not error.meta.get("retry") or self._clock.monotonic_s() + wait_ms / 1000 > deadline_s:
                    raise
                await self._clock.sleep(wait_ms / 1000)
            else:
                return

    async def _wait_for_token(self, delivery: Delivery, deadline_s: float) -> None:
        if len(self._buckets) > RECEIVERS_MAX:
            self._buckets.clear()
        bucket = self._buckets.setdefault(delivery.receiver, TokenBucket())
        while wait_ms := bucket.wait_ms(round(self._clock.monotonic_s() * 1000)):
            if self._clock.monotonic_s() + wait_ms / 1000 > deadline_s:
                raise HarchError(
                    "E0650", f"{delivery.receiver} exceeds its notification limit", hint="group by fewer labels"
                )
            await self._clock.sleep(wait_ms / 1000)

    def _now_ms(self) -> int:
        return round(self._clock.now().timestamp() * 1000)
