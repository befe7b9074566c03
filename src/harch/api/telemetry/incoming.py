"""What comes into SENTINEL beside samples? Logs and spans, without secrets; and what it says itself, beside a hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from harch.api.own_logs import keep_sentinel_logs
from harch.api.telemetry.log_writes import HUB, LogWrites
from harch.api.telemetry.ports import LogTenants, SpanTenants
from harch.api.telemetry.redaction_figures import RedactionFigures
from harch.api.telemetry.routing import Route
from harch.api.telemetry.trace_writes import TraceWrites
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.collect.redaction.rule import Rule
from harch.sentinel.collect.scrape.config import SentinelConfig
from harch.sentinel.model.labels import labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.own_logs.shipper import Shipper

_log = logging.getLogger("harch.sentinel")


class Archive(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""


class Incoming:
    """The writing side of logs and spans. `hub_id` is empty for a SENTINEL that runs alone."""

    def __init__(self, archive: Archive, rules: Sequence[Rule], hub_id: str, clock: Clock) -> None:
        self._hub_id, self._clock = hub_id, clock
        redactor = Redactor(rules)
        self._logs = LogWrites(archive, redactor, hub_id=hub_id)
        self._traces = TraceWrites(archive, redactor)
        self._figures = RedactionFigures(redactor, clock)
        self._shipper: Shipper | None = None

    def routes(self) -> list[Route]:
        return [*self._logs.routes(), *self._traces.routes(), *self._figures.routes()]

    async def run(self, keep: Callable[[Sequence[SeriesBatch]], Awaitable[None]]) -> None:
        """Counts of redaction become series, until cancelled."""
        while True:
            try:
                await keep(self._figures.series())
            except (HarchError, OSError) as problem:
                _log.warning("counts of redaction are not kept now: %s", problem)
            await self._clock.sleep(RedactionFigures.EVERY_S)

    def keep_own_lines(self, data: Path) -> None:
        """Beside a hub, what this process logs is kept as well."""
        if self._hub_id:
            self._shipper = keep_sentinel_logs(data, self._logs, labels({HUB: self._hub_id}))

    async def close(self) -> None:
        if self._shipper is not None:
            await asyncio.to_thread(self._shipper.close)


def hub_of(configs: Sequence[tuple[SentinelConfig, Path]]) -> str:
    """The hub that the configuration of a hub's own SENTINEL names."""
    named = (config.global_.external_labels.get(HUB, "") for config, _ in configs)
    return next((hub for hub in named if hub), "")
