"""Laws of histograms: observations counted one by one are the oracle for everything computed from buckets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.sentinel.model.histograms import CUSTOM_BUCKETS_SCHEMA, NativeHistogram
from harch.sentinel.promql.histograms.arithmetic import add, average_of, scaled, subtract, total_of
from harch.sentinel.promql.histograms.buckets import (
    all_buckets,
    at_schema,
    compacted,
    exponential_bound,
    same,
    with_buckets,
    with_zero_threshold,
)
from harch.sentinel.promql.histograms.counters import detect_reset
from harch.sentinel.promql.histograms.notation import read_histogram, write_histogram
from harch.sentinel.promql.histograms.statistics import fraction, quantile, trim_above, trim_below

THRESHOLD = 2.0**-10
VALUES = st.lists(st.floats(-64, 64, allow_nan=False), max_size=30)
SCHEMAS = st.integers(-2, 4)


def observed(values: list[float], schema: int) -> NativeHistogram:
    """A histogram of these observations, each put into its bucket by looking at all bounds."""
    sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
    zero = 0
    for value in values:
        if abs(value) <= THRESHOLD:
            zero += 1
            continue
        index = -400
        while exponential_bound(index, schema) < abs(value):
            index += 1
        side = sides[value < 0]
        side[index] = side.get(index, 0.0) + 1
    bare = NativeHistogram(float(len(values)), math.fsum(values), schema, THRESHOLD, float(zero))
    return with_buckets(bare, *sides)


def alike(left: NativeHistogram, right: NativeHistogram) -> bool:
    """Equal but for rounding in the sum of observations."""
    close = left.sum == pytest.approx(right.sum, rel=1e-9, abs=1e-9)
    return close and same(at_sum(left), at_sum(right))


def at_sum(histogram: NativeHistogram) -> NativeHistogram:
    return replace(histogram, sum=0.0)


@given(VALUES, VALUES, SCHEMAS, SCHEMAS)
def test_the_sum_of_histograms_is_the_histogram_of_all(
    left: list[float], right: list[float], one: int, other: int
) -> None:
    coarser = min(one, other)
    both = add(observed(left, one), observed(right, other)).histogram
    assert alike(both, observed(left + right, coarser))
    assert alike(subtract(both, observed(right, coarser)).histogram, observed(left, coarser))


@given(st.lists(VALUES, min_size=1, max_size=5), SCHEMAS)
def test_totals_and_averages_agree_with_adding_one_by_one(many: list[list[float]], schema: int) -> None:
    histograms = [observed(values, schema) for values in many]
    total = total_of(histograms).histogram
    assert alike(total, observed([value for values in many for value in values], schema))
    average = average_of(histograms).histogram
    back = scaled(average, len(many))
    assert back.count == pytest.approx(total.count)
    assert back.sum == pytest.approx(total.sum, abs=1e-9)


@given(VALUES, SCHEMAS, SCHEMAS)
def test_a_coarser_schema_is_as_if_observed_so(values: list[float], schema: int, target: int) -> None:
    if target <= schema:
        assert alike(at_schema(observed(values, schema), target), observed(values, target))


@given(VALUES, SCHEMAS, st.floats(0.001, 100))
def test_a_wider_zero_bucket_loses_nothing(values: list[float], schema: int, threshold: float) -> None:
    before = observed(values, schema)
    wider = with_zero_threshold(before, threshold)
    assert wider.zero_threshold >= threshold
    assert sum(bucket.count for bucket in all_buckets(wider)) == len(values)
    inside = sum(abs(value) <= wider.zero_threshold for value in values)
    assert wider.zero_count == inside


@given(VALUES, VALUES, SCHEMAS)
def test_growing_is_no_reset_and_shrinking_is_one(values: list[float], more: list[float], schema: int) -> None:
    before, after = observed(values, schema), observed(values + more, schema)
    assert not detect_reset(after, before)
    if more:
        assert detect_reset(before, after)


@given(VALUES, SCHEMAS, st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_its_rank(values: list[float], schema: int, rank: float) -> None:
    histogram = observed(values, schema)
    if not values:
        assert math.isnan(quantile(rank, histogram).value)
        return
    value = quantile(rank, histogram).value
    buckets = [bucket for bucket in all_buckets(histogram) if bucket.count]
    assert min(bucket.lower for bucket in buckets) <= value <= max(bucket.upper for bucket in buckets)
    assert fraction(-math.inf, value, histogram).value == pytest.approx(rank, abs=1e-6) or any(
        bucket.lower == value or bucket.upper == value for bucket in all_buckets(histogram)
    )


@given(VALUES, SCHEMAS, st.floats(-70, 70), st.floats(-70, 70))
def test_fractions_grow_and_trims_split(values: list[float], schema: int, one: float, other: float) -> None:
    histogram = observed(values, schema)
    low, high = sorted((one, other))
    below, above = trim_above(histogram, low), trim_below(histogram, low)
    assert below.count + above.count == pytest.approx(histogram.count)
    if values:
        inner = fraction(low, high, histogram).value
        assert -1e-9 <= inner <= 1 + 1e-9
        assert below.count == pytest.approx(fraction(-math.inf, low, histogram).value * histogram.count, abs=1e-6)


@given(VALUES, SCHEMAS)
def test_the_written_form_reads_the_same(values: list[float], schema: int) -> None:
    histogram = observed(values, schema)
    assert same(read_histogram(write_histogram(histogram)).histogram, compacted(histogram))


BOUNDS = st.lists(st.integers(-8, 8), unique=True, max_size=8).map(
    lambda found: tuple(float(bound) for bound in sorted(found))
)


def observed_custom(values: list[float], bounds: tuple[float, ...]) -> NativeHistogram:
    counts: dict[int, float] = {}
    for value in values:
        index = sum(bound < value for bound in bounds)
        counts[index] = counts.get(index, 0.0) + 1
    bare = NativeHistogram(float(len(values)), math.fsum(values), CUSTOM_BUCKETS_SCHEMA, custom_bounds=bounds)
    return with_buckets(bare, counts, {})


@given(VALUES, VALUES, BOUNDS, BOUNDS)
def test_custom_buckets_add_up_over_the_bounds_that_both_have(
    left: list[float], right: list[float], one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    common = tuple(bound for bound in one if bound in other)
    both = add(observed_custom(left, one), observed_custom(right, other))
    assert both.bounds_reconciled is (one != other)
    assert alike(both.histogram, observed_custom(left + right, common))
    assert alike(total_of([observed_custom(left, one), observed_custom(right, other)]).histogram, both.histogram)


@given(VALUES, VALUES, BOUNDS, BOUNDS)
def test_custom_buckets_that_grow_are_no_reset_whatever_their_bounds(
    values: list[float], more: list[float], one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    assert not detect_reset(observed_custom(values + more, one), observed_custom(values, other))


@given(VALUES, BOUNDS, st.floats(-9, 9))
def test_custom_trims_never_invent_observations(values: list[float], bounds: tuple[float, ...], cut: float) -> None:
    histogram = observed_custom(values, bounds)
    below, above = trim_above(histogram, cut), trim_below(histogram, cut)
    assert below.count + above.count <= histogram.count + 1e-9
    for part in (below, above):
        assert all(bucket.count >= 0 for bucket in all_buckets(part))
        assert part.custom_bounds == bounds
