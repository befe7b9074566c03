"""Rates of histograms that keep their layout: the fast way gives what the slow way does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.histograms import BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.model.labels import labels
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.ranges import range_histograms
from harch.sentinel.promql.evaluate.values import MatrixResult
from harch.sentinel.promql.memory_store import MemoryStore

SERIES = labels({"__name__": "took_seconds"})
_increments = st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=2, max_size=12)


def histograms(increments: list[list[int]], resets: list[bool]) -> list[NativeHistogram]:
    """A counter of four buckets that grows, and begins anew where it is told to."""
    levels = [0, 0, 0, 0]
    found = []
    for grown, is_reset in itertools.zip_longest(increments, resets[: len(increments)], fillvalue=False):
        levels = [(0 if is_reset else level) + more for level, more in zip(levels, grown, strict=True)]
        counts = tuple(map(float, levels))
        found.append(
            NativeHistogram(
                sum(counts),
                sum(counts) * 1.5,
                schema=2,
                zero_threshold=0.001,
                positive_spans=(BucketSpan(1, 2), BucketSpan(3, 2)),
                positive_counts=counts,
            )
        )
    return found


def rates(query: str, points: list[NativeHistogram], spacing_ms: int) -> list[tuple[int, NativeHistogram]]:
    store = MemoryStore()
    for place, histogram in enumerate(points):
        store.append(SERIES, place * spacing_ms, histogram)
    value = QueryEngine().range(query, 0, 120_000, 10_000, store).value
    assert isinstance(value, MatrixResult)
    if not value.series.count or value.histograms is None:
        return []
    return [
        (time, value.histograms[0, step]) for step, time in enumerate(value.times.tolist()) if value.present[0, step]
    ]


@settings(max_examples=60, deadline=None)
@given(
    increments=_increments,
    resets=st.lists(st.booleans(), max_size=12),
    spacing_s=st.sampled_from([5, 10, 13]),
    range_s=st.integers(8, 60),
)
@pytest.mark.parametrize("name", ["rate", "increase"])
def test_both_ways_agree(
    name: str, increments: list[list[int]], resets: list[bool], spacing_s: int, range_s: int
) -> None:
    points = histograms(increments, resets)
    query = f"{name}(took_seconds[{range_s}s])"
    fast = rates(query, points, spacing_s * 1000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(range_histograms, "uniform_rates", _never)
        slow = rates(query, points, spacing_s * 1000)
    assert [time for time, _ in fast] == [time for time, _ in slow]
    for (_, ours), (_, theirs) in zip(fast, slow, strict=True):
        assert ours.reset_hint is theirs.reset_hint is ResetHint.GAUGE
        assert ours.count == pytest.approx(theirs.count)
        assert ours.sum == pytest.approx(theirs.sum)
        assert ours.positive_spans == theirs.positive_spans
        assert ours.positive_counts == pytest.approx(theirs.positive_counts)


def _never(*_: object, **__: object) -> None:
    return None


def _gauge(histogram: NativeHistogram) -> NativeHistogram:
    return NativeHistogram(histogram.count, histogram.sum, reset_hint=ResetHint.GAUGE)


def _coarser(histogram: NativeHistogram) -> NativeHistogram:
    return NativeHistogram(histogram.count, histogram.sum, schema=1)


@pytest.mark.parametrize("odd", [_gauge, _coarser])
def test_what_is_unusual_takes_the_slow_way(odd: Callable[[NativeHistogram], NativeHistogram]) -> None:
    """One sample of another kind is enough; a gauge among counters must be reported."""
    points = histograms([[1, 1, 1, 1]] * 6, [])
    points[3] = odd(points[3])
    store = MemoryStore()
    for place, histogram in enumerate(points):
        store.append(SERIES, place * 10_000, histogram)
    result = QueryEngine().instant("rate(took_seconds[1m])", 50_000, store)
    assert bool(result.warnings) is (odd is _gauge)
