"""Quantiles of many native histograms at once are those of each alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.model.histograms import CUSTOM_BUCKETS_SCHEMA, BucketSpan, NativeHistogram
from harch.sentinel.promql.evaluate.uniform_histograms import uniform_quantiles
from harch.sentinel.promql.histograms.statistics import quantile

_count = st.one_of(st.just(0.0), st.integers(1, 50).map(float), st.floats(0.01, 5.0))


@st.composite
def same_layout(draw: st.DrawFn) -> list[NativeHistogram]:
    """Histograms of one layout; counts and totals need not agree, as after scaling or with lost buckets."""
    positive, negative = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    schema, first = draw(st.integers(-2, 4)), draw(st.integers(-3, 3))
    threshold = draw(st.sampled_from([0.0, 0.001, 0.7]))
    found = []
    for _ in range(draw(st.integers(8, 12))):
        ups, downs = (tuple(draw(_count) for _ in range(size)) for size in (positive, negative))
        zero = draw(_count) if threshold else 0.0
        total = sum(ups) + sum(downs) + zero + draw(st.sampled_from([0.0, 0.0, 3.0]))
        found.append(
            NativeHistogram(
                total,
                draw(st.sampled_from([1.0, -7.5, math.nan])),
                schema,
                threshold,
                zero,
                (BucketSpan(first, positive),) if positive else (),
                ups,
                (BucketSpan(first, negative),) if negative else (),
                downs,
            )
        )
    return found


@settings(max_examples=200, deadline=None)
@given(histograms=same_layout(), ranks=st.lists(st.floats(-0.1, 1.1), min_size=12, max_size=12))
def test_what_is_computed_together_is_what_each_would_give(
    histograms: list[NativeHistogram], ranks: list[float]
) -> None:
    given_ranks = np.array(ranks[: len(histograms)])
    values, done = uniform_quantiles(histograms, given_ranks)
    for place, histogram in enumerate(histograms):
        if done[place]:
            alone = quantile(float(given_ranks[place]), histogram)
            assert values[place] == pytest.approx(alone.value, rel=1e-9, nan_ok=True)
            assert not alone.is_nan_result
            assert not alone.is_skewed


def test_plain_histograms_are_done_and_odd_ones_are_not() -> None:
    plain = [
        NativeHistogram(float(n), 1.0, positive_spans=(BucketSpan(0, 1),), positive_counts=(float(n),))
        for n in range(1, 11)
    ]
    custom = [NativeHistogram(1.0, 1.0, CUSTOM_BUCKETS_SCHEMA, custom_bounds=(1.0,))] * 10
    odd = [NativeHistogram(1.0, math.nan, positive_spans=(BucketSpan(0, 1),), positive_counts=(1.0,))]
    _, done = uniform_quantiles([*plain, *custom, *odd], np.full(21, 0.5))
    assert done.tolist() == [True] * 10 + [False] * 11
    assert not uniform_quantiles(plain[:3], np.full(3, 0.5))[1].any()
