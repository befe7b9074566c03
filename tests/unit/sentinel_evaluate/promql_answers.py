"""Answers in a form that is easy to compare: labels without braces, values by time."""

from __future__ import annotations

from harch.sentinel.model.selection import Queryable
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import MatrixResult, QueryResult, ScalarResult, VectorResult

ENGINE = QueryEngine()


def at(query: str, time_ms: int, store: Queryable) -> dict[str, float]:
    """The vector of an instant query: values by labels."""
    value = ENGINE.instant(query, time_ms, store).value
    assert isinstance(value, VectorResult)
    return {shown(value.series.labels_of(row)): float(value.values[row]) for row in range(value.series.count)}


def number(query: str, time_ms: int, store: Queryable) -> float:
    value = ENGINE.instant(query, time_ms, store).value
    assert isinstance(value, ScalarResult)
    return value.value


def over(query: str, start_ms: int, end_ms: int, step_ms: int, store: Queryable) -> dict[str, dict[int, float]]:
    """The matrix of a range query: values by labels and time."""
    return matrix(ENGINE.range(query, start_ms, end_ms, step_ms, store))


def matrix(result: QueryResult) -> dict[str, dict[int, float]]:
    value = result.value
    assert isinstance(value, MatrixResult)
    found: dict[str, dict[int, float]] = {}
    for row in range(value.series.count):
        points = zip(value.times.tolist(), value.values[row].tolist(), value.present[row].tolist(), strict=True)
        found[shown(value.series.labels_of(row))] = {time: number for time, number, there in points if there}
    return found


def shown(labels: tuple[tuple[str, str], ...]) -> str:
    """`name a=1 b=2`."""
    pairs = dict(labels)
    name = pairs.pop("__name__", "")
    return " ".join([name, *(f"{key}={value}" for key, value in sorted(pairs.items()))]).strip()
