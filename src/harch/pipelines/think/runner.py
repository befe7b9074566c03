"""Who drives a stage that serves requests? One task: it sleeps until a batch is due, runs it and hands out.

Slow models run in a thread, so that reading requests goes on while a batch is computed. Quick ones run in the event
loop: changing threads would take longer than they do, up to Python's switch interval of 5 ms where the loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.pipelines.think.messages import DroppedRows, InferenceAnswer, Thought
from harch.pipelines.think.sessions import Features, Tensors
from harch.pipelines.think.settings import PRIORITY_DEFAULT
from harch.pipelines.think.stage import ThinkStage

INLINE_S_MAX = 0.001
IDLE_S = 1.0  # a sleeper without work looks around so often; news wake it at once


class ThinkRunner:
    """Owns the queue of a stage. `handed_over` gets every thought with outputs or drops of feature batches."""

    def __init__(
        self, stage: ThinkStage, clock: Clock, handed_over: Callable[[Thought], None] = lambda thought: None
    ) -> None:
        self.stage = stage
        self._clock = clock
        self._handed_over = handed_over
        self._news = asyncio.Event()
        self._waiters: set[asyncio.Future[InferenceAnswer]] = set()
        self._stopped = False

    def submit(self, features: Features) -> list[DroppedRows]:
        """Queues a feature batch; what was not taken comes back at once."""
        dropped = self.stage.submit(features, now_s=self._clock.monotonic_s())
        self._news.set()
        return dropped

    async def infer(
        self,
        name: str,
        tensors: Tensors,
        *,
        version: str | None = None,
        device: int | str | None = None,
        priority: int = PRIORITY_DEFAULT,
        timeout_s: float | None = None,
    ) -> InferenceAnswer:
        """One request, answered when its batch has run. Raises what the stage or the model has against it."""
        if self._stopped:
            raise HarchError("E0801", "the stage is stopping", hint="use another worker")
        now_s = self._clock.monotonic_s()
        waiter: asyncio.Future[InferenceAnswer] = asyncio.get_running_loop().create_future()
        self.stage.score_request(
            name,
            tensors,
            ticket=waiter,
            now_s=now_s,
            version=version,
            device=device,
            priority=priority,
            deadline_s=None if timeout_s is None else now_s + timeout_s,
        )
        self._news.set()
        self._waiters.add(waiter)
        try:
            found = await waiter
        finally:
            self._waiters.discard(waiter)
        if found.error is not None:
            raise found.error
        return found

    async def run(self) -> None:
        """Until `stop`; what is queued by then is still answered. Whoever waits when it ends otherwise hears of it."""
        try:
            await self._drive()
        finally:
            self._stopped = True
            gone = HarchError("E0801", "the stage has stopped", hint="use another worker")
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(gone)

    async def _drive(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            wake_s = self.stage.wake_s(now_s=now_s)
            if wake_s is None and self._stopped:
                return
            if wake_s is None or wake_s > now_s:
                await self._sleep(IDLE_S if wake_s is None else wake_s - now_s)
                continue
            if self.stage.run_s_expected <= INLINE_S_MAX:
                thought = self.stage.step(now_s=now_s)
            else:
                thought = await asyncio.to_thread(self.stage.step, now_s=now_s)
            for found in thought.answers:
                if not found.ticket.done():  # the client may have gone
                    found.ticket.set_result(found)
            if thought.scored or thought.dropped:
                self._handed_over(thought)
            if self.stage.shadows_wait:
                await asyncio.to_thread(self.stage.compare_shadows)
            await asyncio.sleep(0)  # others take their turn between batches

    def stop(self) -> None:
        self._stopped = True
        self._news.set()

    async def _sleep(self, delay_s: float) -> None:
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout=delay_s)
