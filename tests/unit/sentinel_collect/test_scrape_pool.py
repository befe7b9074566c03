"""What a target leaves that is asked no more: a stale marker where somebody took it off the list, and nothing where the
process ends, because it is asked again after the restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harch.sentinel.collect.exposition import read_page
from harch.sentinel.collect.scrape import loop
from harch.sentinel.collect.scrape.client import ScrapeAnswer
from harch.sentinel.collect.scrape.config import parse_config
from harch.sentinel.collect.scrape.loop import ScrapePool
from harch.sentinel.model.histograms import stale_mask
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import SeriesBatch
from harch.testing.clock import SimClock

CONFIG = """
scrape_configs:
- job_name: pages
  scrape_interval: 1s
  static_configs: [{targets: ["a:1"]}]
"""


class Asker:
    """Always gets the same page."""

    def __init__(self, config: object, job: object, base: Path, now_ms: Any) -> None:
        self._now_ms = now_ms

    async def fetch(self, target: object, known: object) -> ScrapeAnswer:
        return ScrapeAnswer(self._now_ms(), 0.1, read_page("hits 1\n", self._now_ms()))

    async def close(self) -> None: ...


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "ScrapeClient", Asker)
        self.clock = SimClock()
        self.kept: dict[str, list[float]] = {}
        self.pool = ScrapePool(self.clock, self._keep)

    async def _keep(self, batches: Sequence[SeriesBatch], _metadata: object = None, /) -> None:
        for batch in batches:
            self.kept.setdefault(dict(batch.labels)[METRIC_NAME], []).extend(batch.values)  # type: ignore[arg-type]

    async def run(self) -> None:
        await self.pool.apply([(parse_config(CONFIG, "test"), Path())])
        await self.clock.advance(3)

    def is_ended(self, name: str) -> bool:
        return bool(stale_mask(np.array(self.kept[name][-1:]))[0])


async def test_the_end_of_the_process_marks_no_series_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.run()
    await world.pool.close()
    assert not world.is_ended("up")
    assert not world.is_ended("hits")


async def test_a_target_that_is_taken_off_the_list_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.run()
    await world.pool.apply([])
    assert world.is_ended("up")
    assert world.is_ended("hits")
