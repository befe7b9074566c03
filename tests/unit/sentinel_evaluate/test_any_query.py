"""Whatever is asked: an answer or a refusal, and an instant is the same alone and as a step of a range."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from query_strategies import vectors

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE, BucketSpan, NativeHistogram
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import MatrixResult, VectorResult
from harch.sentinel.promql.memory_store import MemoryStore

ENGINE = QueryEngine()
MOMENT = 60_000
Found = dict[Labels, float | NativeHistogram]


def world() -> MemoryStore:
    """Gauges, counters with resets, histograms, and series that change from one to the other; gaps and stale ends."""
    chance = random.Random(8)
    store = MemoryStore()
    for place, (a, b) in enumerate((a, b) for a in ("x", "y", "") for b in ("y", "z")):
        level = 0.0
        for time in range(0, 120_000, 10_000):
            if chance.random() < 0.15:
                continue
            level = level + chance.randint(0, 9) if chance.random() > 0.1 else 0.0
            histogram = NativeHistogram(
                level,
                2 * level,
                schema=place % 2,
                positive_spans=(BucketSpan(place % 3, 2),),
                positive_counts=(level, 0.0),
            )
            store.append(labels({"__name__": "c_total", "a": a, "b": b, "le": str(place)}), time, level)
            store.append(labels({"__name__": "h", "a": a, "b": b}), time, histogram)
            odd = chance.choice([math.nan, math.inf, STALE, -0.0, 5.0])
            store.append(labels({"__name__": "m", "a": a, "b": b}), time, odd)
            store.append(labels({"__name__": "mix", "a": a, "b": b}), time, histogram if level > 12 else level)
    return store


STORE = world()


def asked_alone(query: str) -> Found:
    value = ENGINE.instant(query, MOMENT, STORE).value
    assert isinstance(value, VectorResult)
    found: Found = {}
    for row in range(value.series.count):
        histogram = None if value.histograms is None else value.histograms[row]
        found[value.series.labels_of(row)] = float(value.values[row]) if histogram is None else histogram
    assert len(found) == value.series.count, "no two series have the same labels"
    return found


def asked_as_a_step(query: str) -> Found:
    value = ENGINE.range(query, MOMENT - 30_000, MOMENT + 15_000, 15_000, STORE).value
    assert isinstance(value, MatrixResult)
    found: Found = {}
    for row in range(value.series.count):
        if value.present[row, 2]:
            histogram = None if value.histograms is None else value.histograms[row, 2]
            found[value.series.labels_of(row)] = float(value.values[row, 2]) if histogram is None else histogram
    return found


@settings(max_examples=250, deadline=None)
@given(query=vectors())
def test_an_instant_is_a_step_of_a_range(query: str) -> None:
    try:
        whole = asked_as_a_step(query)
    except HarchError:
        return  # another step may be what cannot be answered
    alone = asked_alone(query)
    assert alone.keys() == whole.keys()
    for series, value in alone.items():
        other = whole[series]
        assert isinstance(value, NativeHistogram) == isinstance(other, NativeHistogram)
        if isinstance(value, float):
            assert other == pytest.approx(value, rel=1e-9, nan_ok=True)
        elif isinstance(other, NativeHistogram):
            assert other.count == pytest.approx(value.count, rel=1e-9, nan_ok=True)
            assert other.positive_counts == pytest.approx(value.positive_counts, rel=1e-9, nan_ok=True)
