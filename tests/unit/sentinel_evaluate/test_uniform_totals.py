"""Sums and means of native histograms that share a layout are those of the histograms added one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.histograms import BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.promql.evaluate.uniform_histograms import uniform_totals
from harch.sentinel.promql.histograms.arithmetic import average_of, total_of
from harch.sentinel.promql.histograms.buckets import indexed

_count = st.sampled_from([0.0, 0.25, 1.0, 3.0, 1e15])


def alike(counts: list[float]) -> NativeHistogram:
    return NativeHistogram(
        sum(counts),
        2.5 * sum(counts),
        schema=1,
        zero_threshold=0.01,
        positive_spans=(BucketSpan(0, 2), BucketSpan(1, 1)),
        positive_counts=tuple(counts[:3]),
        negative_spans=(BucketSpan(2, 1),),
        negative_counts=tuple(counts[3:]),
        reset_hint=ResetHint.GAUGE,
    )


IDLE = NativeHistogram(0.0, 0.0, schema=1, zero_threshold=0.01, reset_hint=ResetHint.GAUGE)
_cell = st.one_of(st.none(), st.just(IDLE), st.lists(_count, min_size=4, max_size=4).map(alike))


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.lists(_cell, min_size=3, max_size=3), min_size=1, max_size=6))
@pytest.mark.parametrize("is_mean", [False, True])
def test_together_is_as_one_by_one(is_mean: bool, rows: list[list[NativeHistogram | None]]) -> None:
    cells = np.empty((len(rows), 3), dtype=np.object_)
    cells[:] = rows
    totals = uniform_totals(cells, is_mean=is_mean)
    assert totals is not None
    for step in range(3):
        members = [row[step] for row in rows if row[step] is not None]
        assert (step in totals) is bool(members)
        if members:
            wanted = (average_of if is_mean else total_of)([each for each in members if each]).histogram
            got = totals[step]
            assert got.reset_hint is ResetHint.GAUGE
            assert (got.count, got.sum) == pytest.approx((wanted.count, wanted.sum))
            for ours, theirs in zip(buckets(got), buckets(wanted), strict=True):
                for index in ours.keys() | theirs.keys():
                    assert ours.get(index, 0.0) == pytest.approx(theirs.get(index, 0.0))


def buckets(histogram: NativeHistogram) -> tuple[dict[int, float], dict[int, float]]:
    return (
        indexed(histogram.positive_spans, histogram.positive_counts),
        indexed(histogram.negative_spans, histogram.negative_counts),
    )


@pytest.mark.parametrize(
    "odd",
    [
        replace(IDLE, schema=0),
        replace(IDLE, zero_threshold=0.5),
        replace(IDLE, reset_hint=ResetHint.RESET),
        replace(IDLE, sum=float("nan")),
    ],
)
def test_what_does_not_fit_is_left_to_the_slow_way(odd: NativeHistogram) -> None:
    cells = np.empty((2, 1), dtype=np.object_)
    cells[:, 0] = [alike([1.0, 2.0, 3.0, 4.0]), odd]
    assert uniform_totals(cells, is_mean=False) is None
