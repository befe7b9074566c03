"""How does the engine of this process answer?

Directly, over samples in memory, or over SENTINEL's own store, its head or its blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.selection import Queryable, Samples, SeriesBatch
from harch.sentinel.promql.evaluate.context import EngineOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import (
    MatrixResult,
    QueryResult,
    SamplesResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from harch.sentinel.promql.memory_store import MemoryStore
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.blocks.tenant import TenantBlocks
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.limits import TenantLimits
from harch.testing.promqltest.commands import (
    EvaluationGrid,
    EvaluationResult,
    Point,
    QueryFailed,
    ResultSeries,
    SeriesSamples,
)
from harch.testing.promqltest.server import timed


class SampleStore(Queryable, Protocol):
    """What a target needs of a store: what queries ask of it, and a way in."""

    def append(self, labels: Labels, time_ms: int, value: float | NativeHistogram, start_ms: int = 0) -> None: ...


class EngineTarget:
    """The engine with every experimental part on, over a store that `make_store` gives anew after each clear."""

    def __init__(
        self,
        make_store: Callable[[], SampleStore] = MemoryStore,
        options: EngineOptions | None = None,
    ) -> None:
        self._make_store = make_store
        self._engine = QueryEngine(options)
        self._store = make_store()

    def clear(self) -> None:
        self._store = self._make_store()

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None:
        for one in series:
            for time_ms, value, start_ms in timed(one, step_ms):
                self._store.append(one.labels, time_ms, value, start_ms)

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        return evaluate_query(self._engine, text, grid, self._store)

    def close(self) -> None:
        self._store = self._make_store()


def evaluate_query(engine: QueryEngine, text: str, grid: EvaluationGrid, queryable: Queryable) -> EvaluationResult:
    """The engine's answer. Raises QueryFailed where it refuses."""
    try:
        if grid.is_instant:
            result = engine.instant(text, grid.start_ms, queryable)
        else:
            result = engine.range(text, grid.start_ms, grid.end_ms, grid.step_ms, queryable)
    except HarchError as refused:
        raise QueryFailed(refused.message) from refused
    return replace(_bare_answer(result), warnings=result.warnings, infos=result.infos)


def _bare_answer(result: QueryResult) -> EvaluationResult:
    match result.value:
        case ScalarResult(value=number):
            return EvaluationResult("scalar", value=number)
        case StringResult(value=text):
            return EvaluationResult("string", value=text)
        case VectorResult() as vector:
            rows = tuple(
                ResultSeries(vector.series.labels_of(row), ((vector.time_ms, _vector_point(vector, row)),))
                for row in range(vector.series.count)
            )
            return EvaluationResult("vector", rows)
        case MatrixResult() as matrix:
            return EvaluationResult("matrix", _matrix_series(matrix))
        case SamplesResult(series=series, samples=samples):
            raw = tuple(ResultSeries(series.labels_of(row), _samples(samples, row)) for row in range(series.count))
            return EvaluationResult("matrix", raw)


def _vector_point(vector: VectorResult, row: int) -> Point:
    histogram = None if vector.histograms is None else vector.histograms[row]
    return float(vector.values[row]) if histogram is None else histogram


def _matrix_series(matrix: MatrixResult) -> tuple[ResultSeries, ...]:
    found = []
    for row in range(matrix.series.count):
        points: list[tuple[int, Point]] = []
        for step, time_ms in enumerate(matrix.times.tolist()):
            if not matrix.present[row, step]:
                continue
            histogram = None if matrix.histograms is None else matrix.histograms[row, step]
            points.append((time_ms, float(matrix.values[row, step]) if histogram is None else histogram))
        found.append(ResultSeries(matrix.series.labels_of(row), tuple(points)))
    return tuple(found)


def _samples(samples: Samples, row: int) -> tuple[tuple[int, Point], ...]:
    first = int(samples.first[row])
    points: list[tuple[int, Point]] = []
    for place in range(first, first + int(samples.count[row])):
        at = -1 if samples.histogram_at is None else int(samples.histogram_at[place])
        value: Point = float(samples.values[place]) if at < 0 else samples.histograms[at]
        points.append((int(samples.timestamps[place]), value))
    return tuple(points)


# How does the real store answer? The engine of this process over SENTINEL's own store, its head or its blocks.


class StoreTarget:
    """A database a `clear`, in folders of its own below `folder`; with `in_blocks`, every load is written to blocks."""

    def __init__(self, folder: Path, *, in_blocks: bool = False) -> None:
        self._folder = folder
        self._in_blocks = in_blocks
        self._engine = QueryEngine()
        self._numbers = itertools.count(1)
        self._database = self._opened()

    def clear(self) -> None:
        self._database.close()
        self._database = self._opened()

    def _opened(self) -> TenantDatabase:
        folder = self._folder / str(next(self._numbers))
        blocks = TenantBlocks.open(folder / "blocks", BlockPolicy())
        return TenantDatabase(folder, blocks, SystemClock(), limits=TenantLimits(out_of_order_ms=None))

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

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        return evaluate_query(self._engine, text, grid, self._database)

    def close(self) -> None:
        self._database.close()
