"""What do histograms say? Counts, sums, means, spreads, quantiles and shares, of native and classic ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.float_text import open_metrics
from harch.sentinel.promql.evaluate.functions.classic_histograms import (
    Buckets,
    classic_buckets,
    fractions_of,
    quantiles_of,
)
from harch.sentinel.promql.evaluate.functions.uniform_quantiles import uniform_quantiles
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.labels.columns import column_of, column_values, stacked, with_column
from harch.sentinel.promql.evaluate.labels.merging import counts_by_group, merge_equal_series
from harch.sentinel.promql.evaluate.labels.signatures import signatures_of
from harch.sentinel.promql.evaluate.values import Bools, Floats, Scalar, Vector, empty_vector
from harch.sentinel.promql.histograms.statistics import Estimate, deviation, fraction, mean, quantile, variance
from harch.sentinel.promql.syntax.nodes import Call, VectorMatching, unwrap

_NUMBERS: dict[str, Callable[[Histogram], float]] = {
    "histogram_count": lambda histogram: histogram.count,
    "histogram_sum": lambda histogram: histogram.sum,
    "histogram_avg": mean,
    "histogram_stddev": deviation,
    "histogram_stdvar": variance,
}
NUMBER_FUNCTIONS = frozenset(_NUMBERS)
_NAN_RESULT = "input to histogram_quantile has NaN observations, result is NaN"
_NAN_SKEW = "input to histogram_quantile has NaN observations, result is skewed higher"
_NAN_FRACTION = "input to histogram_fraction has NaN observations, which are excluded from all fractions"


def number_of(name: str, vector: Vector, context: Context) -> Vector:
    """One number of every native histogram; floats are left out."""
    there = vector.is_histogram
    values = np.zeros(vector.values.shape)
    if there is None or vector.histograms is None:
        return Vector(vector.series, values, np.zeros(values.shape, np.bool_), np.ones(vector.count, np.bool_))
    for row, step in context.budget.watched(zip(*np.nonzero(there), strict=True)):
        values[row, step] = _NUMBERS[name](vector.histograms[row, step])
    return Vector(vector.series, values, there, np.ones(vector.count, np.bool_))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Classic and native histograms of one vector; where both stand for the same series, neither counts."""

    classic: Buckets
    classic_passes: Bools
    native: Vector
    native_passes: Bools


def _inputs(call: Call, place: int, vector: Vector, context: Context) -> _Inputs:
    span = unwrap(call.arguments[place]).span
    classic = classic_buckets(vector, span, context)
    native = vector.is_histogram
    is_native = np.zeros(vector.present.shape, np.bool_) if native is None else native
    passes = np.ones((classic.count, vector.steps), np.bool_)
    if native is None or not classic.count:
        return _Inputs(classic, passes, vector, is_native)
    matching = VectorMatching(labels=tuple(dict.fromkeys([*vector.series.columns, *classic.series.columns])), on=True)
    found = signatures_of(classic.series, vector.series, matching)
    owner = np.repeat(np.arange(classic.count), np.diff(classic.limits))
    has_classic = counts_by_group(found.left[owner], found.count, classic.present[classic.order]) > 0
    has_native = counts_by_group(found.right, found.count, is_native) > 0
    conflicts = has_classic & has_native
    rows = np.flatnonzero((is_native & conflicts[found.right]).any(axis=1))
    for metric in dict.fromkeys(column_values(vector.series.take(rows), METRIC_NAME)):
        context.notes.mixed_classic_and_native(metric, span)
    return _Inputs(classic, ~conflicts[found.left], vector, is_native & ~conflicts[found.right])


def quantile_vector(call: Call, quantiles: Scalar, vector: Vector, grid: Grid, context: Context) -> Vector:
    """`histogram_quantile`."""
    _check_quantiles(call, 0, quantiles, context)
    inputs = _inputs(call, 1, vector, context)
    return merge_equal_series(_quantile_rows(call, 1, quantiles, inputs, grid, context))


def quantile_vectors(
    call: Call, vector: Vector, label: str, quantiles: list[Scalar], grid: Grid, context: Context
) -> Vector:
    """`histogram_quantiles`: several at once, told apart by a label."""
    inputs = _inputs(call, 0, vector, context)
    context.budget.reserve_points((inputs.classic.count + vector.count) * len(quantiles), grid.count)
    parts: list[Vector] = []
    for place, given in enumerate(quantiles):
        _check_quantiles(call, place + 2, given, context)
        rows = _quantile_rows(call, 0, given, inputs, grid, context)
        for number in np.unique(given).tolist() if not np.isnan(given).any() else [float("nan")]:
            here = rows.only_where(np.broadcast_to((given == number) | np.isnan(given), rows.present.shape))
            column = column_of([open_metrics(number)] * rows.count)
            parts.append(Vector(with_column(here.series, label, column), here.values, here.present, here.drops_name))
    return merge_equal_series(_stacked_floats(parts)) if parts else empty_vector(grid.count)


def fraction_vector(
    call: Call, lowers: Scalar, highers: Scalar, vector: Vector, grid: Grid, context: Context
) -> Vector:
    """`histogram_fraction`."""
    inputs = _inputs(call, 2, vector, context)
    values, filled = fractions_of(inputs.classic, lowers, highers, grid, context)

    def estimate(histogram: Histogram, step: int) -> Estimate:
        return fraction(float(lowers[step]), float(highers[step]), histogram)

    native = _native_rows(call, 2, inputs, estimate, (_NAN_FRACTION, _NAN_FRACTION), context)
    return merge_equal_series(_stacked_floats([native, _classic_rows(inputs, values, filled)]))


def _check_quantiles(call: Call, place: int, quantiles: Scalar, context: Context) -> None:
    for number in np.unique(quantiles).tolist():
        if not 0 <= number <= 1:
            context.notes.invalid_quantile(number, unwrap(call.arguments[place]).span)


def _quantile_rows(call: Call, place: int, quantiles: Scalar, inputs: _Inputs, grid: Grid, context: Context) -> Vector:
    span = unwrap(call.arguments[place]).span
    values, filled = quantiles_of(inputs.classic, quantiles, span, grid, context)

    def estimate(histogram: Histogram, step: int) -> Estimate:
        return quantile(float(quantiles[step]), histogram)

    native = _native_rows(call, place, inputs, estimate, (_NAN_RESULT, _NAN_SKEW), context, quantiles)
    return _stacked_floats([native, _classic_rows(inputs, values, filled)])


def _native_rows(
    call: Call,
    place: int,
    inputs: _Inputs,
    estimate: Callable[[Histogram, int], Estimate],
    words: tuple[str, str],
    context: Context,
    ranks: Scalar | None = None,
) -> Vector:
    """One number of every native histogram; `ranks` tells that it is a quantile, which many of one layout share."""
    rows = np.flatnonzero(inputs.native_passes.any(axis=1))
    vector, present = inputs.native.take(rows), inputs.native_passes[rows]
    values = np.zeros(present.shape)
    if vector.histograms is not None:
        metrics = column_values(vector.series, METRIC_NAME)
        span = unwrap(call.arguments[place]).span
        left = present
        if ranks is not None:
            done = np.zeros(present.shape, np.bool_)
            given = np.broadcast_to(ranks, present.shape)[present]
            values[present], done[present] = uniform_quantiles(vector.histograms[present].tolist(), given)
            left = present & ~done
        for row, step in context.budget.watched(zip(*np.nonzero(left), strict=True)):
            result = estimate(vector.histograms[row, step], int(step))
            values[row, step] = result.value
            if result.is_nan_result or result.is_skewed:
                context.notes.nan_in_histogram(words[0 if result.is_nan_result else 1], metrics[row], span)
    return Vector(vector.series, values, present, np.ones(len(rows), np.bool_))


def _classic_rows(inputs: _Inputs, values: Floats, filled: Bools) -> Vector:
    present = filled & inputs.classic_passes
    return Vector(inputs.classic.series, values, present, np.ones(inputs.classic.count, np.bool_))


def _stacked_floats(parts: list[Vector]) -> Vector:
    kept = [part for part in parts if part.count] or parts[-1:]
    series = kept[0].series
    for part in kept[1:]:
        series = stacked(series, part.series)
    return Vector(
        series,
        np.concatenate([part.values for part in kept]),
        np.concatenate([part.present for part in kept]),
        np.concatenate([part.drops_name for part in kept]),
    )
