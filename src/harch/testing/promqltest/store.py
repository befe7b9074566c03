"""How does the real store answer? The engine of this process over SENTINEL's own store, its head or its blocks."""

from __future__ import annotations

import itertools
from pathlib import Path

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.store.blocks.policy import BlockPolicy
from harch.sentinel.store.blocks.tenant import Blocks
from harch.sentinel.store.database import Database
from harch.sentinel.store.limits import Limits
from harch.testing.promqltest.commands import Grid, SeriesSamples
from harch.testing.promqltest.engine import ask
from harch.testing.promqltest.results import Answer
from harch.testing.promqltest.server import timed


class StoreTarget:
    """A database a `clear`, in folders of its own below `folder`; with `in_blocks`, every load is written to blocks."""

    def __init__(self, folder: Path, *, in_blocks: bool = False) -> None:
        self._folder = folder
        self._in_blocks = in_blocks
        self._engine = Engine()
        self._numbers = itertools.count(1)
        self._database = self._opened()

    def clear(self) -> None:
        self._database.close()
        self._database = self._opened()

    def _opened(self) -> Database:
        folder = self._folder / str(next(self._numbers))
        blocks = Blocks.open(folder / "blocks", BlockPolicy())
        return Database(folder, blocks, SystemClock(), limits=Limits(out_of_order_ms=None))

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None:
        batches = []
        for one in series:
            samples = timed(one, step_ms)
            if samples:
                times, values, starts = zip(*samples, strict=True)
                batches.append(SeriesBatch(one.labels, times, values, starts if any(starts) else ()))
        receipt = self._database.append(batches)
        if receipt.refused:
            raise HarchError("E0620", f"the store refused samples: {receipt.refused}")
        if self._in_blocks:
            self._database.flush()

    def query(self, text: str, grid: Grid) -> Answer:
        return ask(self._engine, text, grid, self._database)

    def close(self) -> None:
        self._database.close()
