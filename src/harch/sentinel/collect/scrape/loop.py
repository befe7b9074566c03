"""How are targets scraped again and again?

One task for each; files that changed change only the jobs that they name differently.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
import msgspec

from harch.base.clock import Clock, epoch_ms
from harch.base.errors import HarchError
from harch.sentinel.collect.exposition import PageCache
from harch.sentinel.collect.scrape.client import ScrapeAnswer, ScrapeClient, ended, scraped
from harch.sentinel.collect.scrape.config import ScrapeConfig, SentinelConfig, StaticConfig
from harch.sentinel.collect.scrape.targets import REFRESH_S_MAX, ScrapeTarget, discover, refresh_s, targets_of
from harch.sentinel.model.labels import Labels, MetricMetadata
from harch.sentinel.model.selection import SeriesBatch

DISCOVER_EVERY_S = 30.0
_log = logging.getLogger("harch.sentinel.scrape")

NO_METADATA: Mapping[str, MetricMetadata] = {}


class SampleSink(Protocol):
    """Takes the samples of one scrape, and what the page said about its metrics if that is new."""

    async def __call__(
        self, batches: Sequence[SeriesBatch], metadata: Mapping[str, MetricMetadata] = NO_METADATA, /
    ) -> None: ...


Discover = Callable[[], Awaitable[Sequence[StaticConfig]]]


@dataclass(slots=True)
class TargetHealth:
    """What is known of a target, for `/api/v1/targets` and for people."""

    target: ScrapeTarget
    interval_ms: int
    timeout_ms: int
    last_scrape_ms: int = 0
    took_s: float = 0.0
    failure: str = ""
    metadata: Mapping[str, MetricMetadata] = field(default_factory=dict)  # HELP, TYPE and UNIT of its last page

    @property
    def health(self) -> str:
        if not self.last_scrape_ms:
            return "unknown"
        return "down" if self.failure else "up"


class ScrapeJob:
    """The targets of one job. `discover` brings targets that no file names, e.g. the agents of a hub."""

    def __init__(
        self,
        config: SentinelConfig,
        job: ScrapeConfig,
        base: Path,
        clock: Clock,
        store: SampleSink,
        discover: Discover | None = None,
    ) -> None:
        self._config = config
        self._job = job
        self._base = base
        self._clock = clock
        self._store = store
        self._discover = discover
        self._client = ScrapeClient(config, job, base, self._now_ms)
        self._tasks: dict[tuple[str, str, Labels], asyncio.Task[None]] = {}
        self.marks_ends = True  # whether series of a target that is asked no more end with a stale marker
        self.health: dict[tuple[str, str, Labels], TargetHealth] = {}
        self._metadata: Mapping[str, MetricMetadata] = NO_METADATA  # of the page that came last

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._renew()
                await self._clock.sleep(self._refresh_s())
        finally:
            await self._stop(list(self._tasks))
            await self._client.close()

    def _now_ms(self) -> int:
        return epoch_ms(self._clock.now())

    async def _renew(self) -> None:
        try:
            targets = {target.key: target for target in targets_of(self._job, await self._groups())}
        except (HarchError, httpx.HTTPError, httpx.InvalidURL) as problem:
            _log.warning("keeping the previous targets of `%s`: %s", self._job.job_name, problem)
            return
        await self._stop([key for key in self._tasks if key not in targets])
        for key, target in targets.items():
            if key not in self._tasks:
                self.health[key] = TargetHealth(
                    target, self._config.interval_ms(self._job), self._config.timeout_ms(self._job)
                )
                self._tasks[key] = asyncio.create_task(self._scrape_repeatedly(target))

    async def _stop(self, keys: Sequence[tuple[str, str, Labels]]) -> None:
        for key in keys:
            task = self._tasks.pop(key)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.health.pop(key, None)

    async def _groups(self) -> list[StaticConfig]:
        groups = await discover(self._job, self._base)
        if self._discover is not None:
            groups.extend(await self._discover())
        return groups

    def _refresh_s(self) -> float:
        return min(refresh_s(self._job), DISCOVER_EVERY_S if self._discover is not None else REFRESH_S_MAX)

    async def _scrape_repeatedly(self, target: ScrapeTarget) -> None:
        interval_ms = self._config.interval_ms(self._job)
        offset = int.from_bytes(hashlib.sha256(repr(target.key).encode()).digest()[:8]) % interval_ms
        seen: frozenset[Labels] = frozenset()
        series, labelled = PageCache[str](), PageCache[Labels]()
        try:
            while True:
                # Each target has its own place in the interval, so that not all of them are asked at once.
                await self._clock.sleep((interval_ms - (self._now_ms() - offset) % interval_ms) / 1000)
                answer = await self._client.fetch(target, series)
                found = scraped(self._job, target, answer, seen, labelled)
                seen = found.seen
                health = self.health[target.key]
                health.last_scrape_ms, health.took_s, health.failure = answer.at_ms, answer.took_s, found.failure
                await self._keep(found.batches, self._new_metadata(health, answer))
        except asyncio.CancelledError:
            if self.marks_ends:
                await asyncio.shield(self._keep(ended(target, seen, self._now_ms())))
            raise

    def _new_metadata(self, health: TargetHealth, answer: ScrapeAnswer) -> Mapping[str, MetricMetadata]:
        """What the page says about its metrics, if the target did not say the same last time."""
        if answer.page is None or answer.page.metadata == health.metadata:
            return NO_METADATA
        # Targets of one job mostly show the same page: they share one copy of what it says.
        if answer.page.metadata != self._metadata:
            self._metadata = answer.page.metadata
        health.metadata = self._metadata
        return self._metadata

    async def _keep(self, batches: Sequence[SeriesBatch], metadata: Mapping[str, MetricMetadata] = NO_METADATA) -> None:
        try:
            await self._store(batches, metadata)
        except HarchError as problem:
            _log.warning("could not store samples of `%s`: %s", self._job.job_name, problem.message)


# Which jobs run? Those that the files name; files that changed change only what they name differently.


Configs = Sequence[tuple[SentinelConfig, Path]]


class ScrapePool:
    """All scrape jobs of one process."""

    def __init__(self, clock: Clock, store: SampleSink) -> None:
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
