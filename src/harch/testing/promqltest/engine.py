"""How is the engine of this process asked? Directly, over samples in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.selection import Queryable, Samples
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import EngineOptions
from harch.sentinel.promql.evaluate.results import (
    MatrixResult,
    QueryResult,
    SamplesResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from harch.testing.promqltest.commands import Grid, SeriesSamples
from harch.testing.promqltest.memory import MemoryStore
from harch.testing.promqltest.results import Answer, Point, QueryFailed, ResultSeries
from harch.testing.promqltest.server import timed


class Store(Queryable, Protocol):
    """What a target needs of a store: what queries ask of it, and a way in."""

    def append(self, labels: Labels, time_ms: int, value: float | Histogram, start_ms: int = 0) -> None: ...


class EngineTarget:
    """The engine with every experimental part on, over a store that `make_store` gives anew after each clear."""

    def __init__(
        self,
        make_store: Callable[[], Store] = MemoryStore,
        options: EngineOptions | None = None,
    ) -> None:
        self._make_store = make_store
        self._engine = Engine(options)
        self._store = make_store()

    def clear(self) -> None:
        self._store = self._make_store()

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None:
        for one in series:
            for time_ms, value, start_ms in timed(one, step_ms):
                self._store.append(one.labels, time_ms, value, start_ms)

    def query(self, text: str, grid: Grid) -> Answer:
        return ask(self._engine, text, grid, self._store)

    def close(self) -> None:
        self._store = self._make_store()


def ask(engine: Engine, text: str, grid: Grid, queryable: Queryable) -> Answer:
    """The engine's answer. Raises QueryFailed where it refuses."""
    try:
        if grid.is_instant:
            result = engine.instant(text, grid.start_ms, queryable)
        else:
            result = engine.range(text, grid.start_ms, grid.end_ms, grid.step_ms, queryable)
    except HarchError as refused:
        raise QueryFailed(refused.message) from refused
    return replace(_bare_answer(result), warnings=result.warnings, infos=result.infos)


def _bare_answer(result: QueryResult) -> Answer:
    match result.value:
        case ScalarResult(value=number):
            return Answer("scalar", value=number)
        case StringResult(value=text):
            return Answer("string", value=text)
        case VectorResult() as vector:
            rows = tuple(
                ResultSeries(vector.series.labels_of(row), ((vector.time_ms, _vector_point(vector, row)),))
                for row in range(vector.series.count)
            )
            return Answer("vector", rows)
        case MatrixResult() as matrix:
            return Answer("matrix", _matrix_series(matrix))
        case SamplesResult(series=series, samples=samples):
            raw = tuple(ResultSeries(series.labels_of(row), _samples(samples, row)) for row in range(series.count))
            return Answer("matrix", raw)


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
