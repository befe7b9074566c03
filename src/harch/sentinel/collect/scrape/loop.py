"""How are targets asked again and again? One task for each; the list of targets is renewed beside them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from harch.base.clock import Clock, epoch_ms
from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.answer import ended, scraped
from harch.sentinel.collect.scrape.config import ScrapeConfig, SentinelConfig, StaticConfig, refresh_intervals
from harch.sentinel.collect.scrape.request import Asker
from harch.sentinel.collect.scrape.targets import Target, groups_in_files, read_groups, targets_of
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.selection import SeriesBatch

DISCOVERY_BYTES_MAX = 16 * 1024 * 1024
_log = logging.getLogger("harch.sentinel.scrape")

Store = Callable[[Sequence[SeriesBatch]], Awaitable[None]]
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
        self.health: dict[tuple[str, str, Labels], TargetHealth] = {}

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
        job = self._job
        groups = [*job.static_configs]
        for files in job.file_sd_configs:
            groups.extend(await asyncio.to_thread(groups_in_files, files.files, self._base))
        for source in job.http_sd_configs:
            groups.extend(read_groups(await _told_by(source.url)))
        if self._discover is not None:
            groups.extend(await self._discover())
        return groups

    def _refresh_s(self) -> float:
        job = self._job
        told = [parse_duration_ms(text) for text in refresh_intervals(job)]
        if self._discover is not None:
            told.append(30_000)
        return max(1.0, min(told) / 1000) if told else 3600.0

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
                await self._keep(found.batches)
        except asyncio.CancelledError:
            await asyncio.shield(self._keep(ended(target, seen, self._now_ms())))
            raise

    async def _keep(self, batches: Sequence[SeriesBatch]) -> None:
        try:
            await self._store(batches)
        except HarchError as problem:
            _log.warning("samples of `%s` were not stored: %s", self._job.job_name, problem.message)


async def _told_by(url: str) -> str:
    """What an address says about targets, read no further than its limit."""
    async with (
        httpx.AsyncClient(timeout=10, trust_env=False) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > DISCOVERY_BYTES_MAX:
                raise HarchError("E0674", f"{url} answers more than {DISCOVERY_BYTES_MAX} bytes")
    return body.decode("utf-8", "replace")
