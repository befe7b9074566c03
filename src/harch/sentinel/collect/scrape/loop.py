"""How are targets asked again and again? One task for each; the list of targets is renewed beside them."""

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

from harch.base.clock import Clock, epoch_ms
from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.answer import Answer, ended, scraped
from harch.sentinel.collect.scrape.config import ScrapeConfig, SentinelConfig, StaticConfig
from harch.sentinel.collect.scrape.discovery import REFRESH_S_MAX, discover, refresh_s
from harch.sentinel.collect.scrape.request import Asker
from harch.sentinel.collect.scrape.targets import Target, targets_of
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.metadata import Metadata
from harch.sentinel.model.selection import SeriesBatch

DISCOVER_EVERY_S = 30.0
_log = logging.getLogger("harch.sentinel.scrape")

NO_METADATA: Mapping[str, Metadata] = {}


class Store(Protocol):
    """Takes the samples of one scrape, and what the page said about its metrics if that is new."""

    async def __call__(
        self, batches: Sequence[SeriesBatch], metadata: Mapping[str, Metadata] = NO_METADATA, /
    ) -> None: ...


Discover = Callable[[], Awaitable[Sequence[StaticConfig]]]


@dataclass(slots=True)
class TargetHealth:
    """What is known of a target, for `/api/v1/targets` and for people."""

    target: Target
    interval_ms: int
    timeout_ms: int
    last_scrape_ms: int = 0
    took_s: float = 0.0
    failure: str = ""
    metadata: Mapping[str, Metadata] = field(default_factory=dict)  # HELP, TYPE and UNIT of its last page

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
        store: Store,
        discover: Discover | None = None,
    ) -> None:
        self._config = config
        self._job = job
        self._base = base
        self._clock = clock
        self._store = store
        self._discover = discover
        self._asker = Asker(config, job, base, self._now_ms)
        self._tasks: dict[tuple[str, str, Labels], asyncio.Task[None]] = {}
        self.marks_ends = True  # whether series of a target that is asked no more end with a stale marker
        self.health: dict[tuple[str, str, Labels], TargetHealth] = {}
        self._metadata: Mapping[str, Metadata] = NO_METADATA  # of the page that came last

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._renew()
                await self._clock.sleep(self._refresh_s())
        finally:
            await self._stop(list(self._tasks))
            await self._asker.close()

    def _now_ms(self) -> int:
        return epoch_ms(self._clock.now())

    async def _renew(self) -> None:
        try:
            targets = {target.key: target for target in targets_of(self._job, await self._groups())}
        except (HarchError, httpx.HTTPError, httpx.InvalidURL) as problem:
            _log.warning("targets of `%s` stay as they were: %s", self._job.job_name, problem)
            return
        await self._stop([key for key in self._tasks if key not in targets])
        for key, target in targets.items():
            if key not in self._tasks:
                self.health[key] = TargetHealth(
                    target, self._config.interval_ms(self._job), self._config.timeout_ms(self._job)
                )
                self._tasks[key] = asyncio.create_task(self._ask_again_and_again(target))

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

    async def _ask_again_and_again(self, target: Target) -> None:
        interval_ms = self._config.interval_ms(self._job)
        offset = int.from_bytes(hashlib.sha256(repr(target.key).encode()).digest()[:8]) % interval_ms
        seen: frozenset[Labels] = frozenset()
        try:
            while True:
                # Each target has its own place in the interval, so that not all of them are asked at once.
                await self._clock.sleep((interval_ms - (self._now_ms() - offset) % interval_ms) / 1000)
                answer = await self._asker.ask(target)
                found = scraped(self._job, target, answer, seen)
                seen = found.seen
                health = self.health[target.key]
                health.last_scrape_ms, health.took_s, health.failure = answer.at_ms, answer.took_s, found.failure
                await self._keep(found.batches, self._new_metadata(health, answer))
        except asyncio.CancelledError:
            if self.marks_ends:
                await asyncio.shield(self._keep(ended(target, seen, self._now_ms())))
            raise

    def _new_metadata(self, health: TargetHealth, answer: Answer) -> Mapping[str, Metadata]:
        """What the page says about its metrics, if the target did not say the same last time."""
        if answer.page is None or answer.page.metadata == health.metadata:
            return NO_METADATA
        # Targets of one job mostly show the same page: they share one copy of what it says.
        if answer.page.metadata != self._metadata:
            self._metadata = answer.page.metadata
        health.metadata = self._metadata
        return self._metadata

    async def _keep(self, batches: Sequence[SeriesBatch], metadata: Mapping[str, Metadata] = NO_METADATA) -> None:
        try:
            await self._store(batches, metadata)
        except HarchError as problem:
            _log.warning("samples of `%s` were not stored: %s", self._job.job_name, problem.message)
