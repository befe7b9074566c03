"""How do SENSE and THINK (and ACT) run in one process? The same parts, without the message engine between them."""

from __future__ import annotations

import asyncio
import contextlib

from harch.pipelines.workers.actor import Actor
from harch.pipelines.workers.lanes import FusedLane
from harch.pipelines.workers.models import Models
from harch.pipelines.workers.sense_worker import SenseWorker
from harch.pipelines.workers.shell import Report, Shell

DRAIN_S = 15.0


class FusedWorker:
    """Holds partitions like a SENSE worker; their features are thought about before the next value is delivered."""

    def __init__(self, shell: Shell) -> None:
        self._models = Models(shell)
        self._actor = Actor(shell, self._models.policies) if shell.config.act is not None else None
        self._lane = FusedLane(shell, self._models.thinker, self._actor)
        self._sense = SenseWorker(shell, self._lane)
        self._ready = False

    async def run(self) -> None:
        await self._models.load()
        parts = [asyncio.create_task(self._models.service.run(), name="think-service")]
        if self._actor is not None:
            await self._actor.open()
            parts.append(asyncio.create_task(self._actor.run(), name="act-stage"))
        self._ready = True
        try:
            sensing = asyncio.create_task(self._sense.run(), name="sense")
            await asyncio.wait((sensing, *parts), return_when=asyncio.FIRST_COMPLETED)
            for part in (sensing, *parts):
                if part.done():
                    await part
            if self._actor is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_S):
                        await self._actor.stage.drain()
        finally:
            self._models.service.stop()
            for part in parts[1:]:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if self._actor is not None:
                await self._actor.close()

    def stop(self) -> None:
        self._sense.stop()

    async def look(self) -> None:
        await self._sense.look()
        if self._ready:
            await self._models.look()
            if self._actor is not None:
                for table in self._models.policies.tables:
                    self._actor.gate.learn(table)
                self._actor.stage.wake()

    def report(self) -> Report:
        report = self._sense.report()
        thought = self._models.report()
        report.counters |= {f"think_{name}": count for name, count in thought.counters.items()}
        report.counters |= {"messages_dead": self._lane.dead, "commands": self._lane.commands}
        if self._ready and self._actor is not None:
            report.counters |= {f"act_{name}": count for name, count in self._actor.stage.counters.as_dict().items()}
        report.details |= thought.details
        report.latency_ms = self._lane.latency.summary()
        report.latency_counts = tuple(self._lane.latency.histogram.counts)
        report.trouble = ("" if self._ready else "loads its models") or report.trouble or thought.trouble
        return report
