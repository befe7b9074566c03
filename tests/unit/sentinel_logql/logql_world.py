"""A handful of lines in memory, and questions to them."""

from __future__ import annotations

from collections.abc import Sequence

from harch.sentinel.logql.evaluate.context import LogqlOptions, LogQueryLimits, LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import LineWindow, LogEntry
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LineOrder, LogBatch, LogReadable
from harch.sentinel.promql.evaluate.values import MatrixResult, ScalarResult, VectorResult
from harch.testing.telemetry_stores import MemoryLogs

S = 1_000_000_000
T0_S = 1_700_000_000
T0 = T0_S * S

Line = tuple[int, str] | tuple[int, str, dict[str, str]]


def store_of(*streams: tuple[dict[str, str], Sequence[Line]]) -> MemoryLogs:
    """Streams of (labels, lines); a line is (seconds after T0, text) and may have metadata."""
    store = MemoryLogs()
    for named, lines in streams:
        metadata = [labels(line[2]) if len(line) > 2 else () for line in lines]
        times = [T0 + line[0] * S for line in lines]
        store.append([LogBatch(labels(named), times, [line[1] for line in lines], metadata)])
    return store


def entries(
    store: LogReadable,
    query: str,
    *,
    limit: int = 100,
    order: LineOrder = LineOrder.OLDEST_FIRST,
    interval_s: int = 0,
    limits: LogQueryLimits | None = None,
) -> list[LogEntry]:
    engine = LogqlEngine(LogqlOptions(limits or LogQueryLimits()))
    tree = engine.tree(query)
    assert isinstance(tree, LogQuery)
    window = LineWindow(T0, T0 + 3600 * S, order, limit, interval_s * S)
    value = engine.lines(tree, window, store, T0, LogQueryOptions()).value
    assert isinstance(value, list)
    return value


def bodies(store: LogReadable, query: str) -> list[str]:
    return [entry.text for entry in entries(store, query)]


def found_labels(store: LogReadable, query: str) -> list[dict[str, str]]:
    return [dict(entry.labels) for entry in entries(store, query)]


def at(
    store: LogReadable, query: str, after_s: int = 60, limits: LogQueryLimits | None = None
) -> dict[Labels, float] | float:
    """The value of a query for numbers, so many seconds after T0."""
    engine = LogqlEngine(LogqlOptions(limits or LogQueryLimits()))
    value = engine.instant(engine.tree(query), (T0_S + after_s) * 1000, store, T0, LogQueryOptions()).value
    if isinstance(value, ScalarResult):
        return value.value
    assert isinstance(value, VectorResult)
    return {value.series.labels_of(place): float(value.values[place]) for place in range(value.series.count)}


def over(store: LogReadable, query: str, steps: int, step_s: int) -> dict[Labels, list[float | None]]:
    """Its values at T0 and every step after it."""
    engine = LogqlEngine()
    end_ms = (T0_S + (steps - 1) * step_s) * 1000
    value = engine.range(engine.tree(query), T0_S * 1000, end_ms, step_s * 1000, store, T0, LogQueryOptions()).value
    assert isinstance(value, MatrixResult)
    return {
        value.series.labels_of(row): [
            float(value.values[row, step]) if value.present[row, step] else None for step in range(steps)
        ]
        for row in range(value.series.count)
    }
