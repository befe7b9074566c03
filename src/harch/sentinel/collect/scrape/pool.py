"""Which jobs run? Those that the files name; files that changed change only what they name differently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from harch.base.clock import Clock
from harch.sentinel.collect.scrape.config import ScrapeConfig, SentinelConfig
from harch.sentinel.collect.scrape.loop import ScrapeJob, Store, TargetHealth

Configs = Sequence[tuple[SentinelConfig, Path]]


class ScrapePool:
    """All scrape jobs of one process."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock, self._store = clock, store
        self._running: dict[bytes, tuple[ScrapeJob, asyncio.Task[None]]] = {}

    def health(self) -> list[TargetHealth]:
        return [one for job, _ in self._running.values() for one in job.health.values()]

    async def apply(self, configs: Configs) -> None:
        """These jobs from now on. Jobs that stay as they were are not disturbed."""
        wanted: dict[bytes, Callable[[], ScrapeJob]] = {}
        for config, base in configs:
            for job in config.scrape_configs:
                key = _name(config, job, base)
                wanted[key] = lambda config=config, job=job, base=base: ScrapeJob(  # type: ignore[misc]
                    config, job, base, self._clock, self._store
                )
        for key in [key for key in self._running if key not in wanted]:
            await self._stop(key)
        for key, make in wanted.items():
            if key not in self._running:
                made = make()
                self._running[key] = (made, asyncio.create_task(made.run()))

    async def close(self) -> None:
        """The end of the process is not the end of what it asked: no series is marked as ended, so that nothing that
        is asked again after a restart looks as if it had been away."""
        for job, _ in self._running.values():
            job.marks_ends = False
        for key in list(self._running):
            await self._stop(key)

    async def _stop(self, key: bytes) -> None:
        _, task = self._running.pop(key)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _name(config: SentinelConfig, job: ScrapeConfig, base: Path) -> bytes:
    """The same for jobs that ask the same in the same way."""
    return msgspec.json.encode((job, config.interval_ms(job), config.timeout_ms(job), str(base)))
