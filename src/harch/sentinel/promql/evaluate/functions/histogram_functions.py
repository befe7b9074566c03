"""What do histograms say?

Counts, sums, means, spreads, quantiles and shares, of native ones and of classic ones whose buckets are series that
differ in `le` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.evaluate.annotations import ForcedMonotonicity, open_metrics
from harch.sentinel.promql.evaluate.context import EvaluationContext, in_chunks
from harch.sentinel.promql.evaluate.functions.bucket_kernels import (
    BUCKET_MAX,
    BUCKET_MIN,
    DIFFERENCE_MAX,
    FIRST_STEP,
    LAST_STEP,
    SAMPLES,
    classic_fractions,
    classic_quantiles,
)
from harch.sentinel.promql.evaluate.label_columns import (
    column_of,
    column_values,
    counts_by_group,
    drop_columns,
    group_without_labels,
    merge_equal_series,
    signatures_of,
    stacked,
    with_column,
)
from harch.sentinel.promql.evaluate.uniform_histograms import uniform_quantiles
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints, Scalar, StepGrid, Vector, empty_vector
from harch.sentinel.promql.histograms.statistics import Estimate, deviation, fraction, mean, quantile, variance
from harch.sentinel.promql.syntax.nodes import FunctionCall, TextSpan, VectorMatching, unwrap


@dataclass(frozen=True, slots=True)
class ClassicBuckets:
    """Classic histograms: group g has the rows `order[limits[g]:limits[g + 1]]`, by upper bound."""

    series: SeriesTable  # of the groups, without `le`
    order: Ints
    uppers: Floats
    limits: Ints
    values: Floats
    present: Bools

    @property
    def count(self) -> int:
        return len(self.limits) - 1


def classic_buckets(vector: Vector, span: TextSpan, context: EvaluationContext) -> ClassicBuckets:
    """The buckets among the floats; series without a usable bound are reported and left out."""
    column = vector.series.columns.get(BUCKET_LABEL)
    codes = np.zeros(vector.count, np.int32) if column is None else column.codes
    used, inverse = np.unique(codes, return_inverse=True)
    strings = ["" if column is None else column.values[code] for code in used.tolist()]
    parsed = [bound_of(text) for text in strings]
    floats = np.ascontiguousarray(vector.has_float)
    has_floats = floats.any(axis=1)
    usable = np.array([bound is not None for bound in parsed], np.bool_)[inverse] & has_floats
    _report_bad(vector, [strings[at] for at in inverse], has_floats & ~usable, span, context)
    rows = np.flatnonzero(usable)
    bounds = np.array([math.nan if bound is None else bound for bound in parsed])[inverse][rows]
    series = vector.series.take(rows)
    groups = group_without_labels(series, (BUCKET_LABEL,))
    order = np.lexsort((bounds, groups.of_row))
    limits = np.searchsorted(groups.of_row[order], np.arange(groups.count + 1)).astype(np.int64)
    labels = drop_columns(series.take(groups.first), (BUCKET_LABEL,))
    values = np.ascontiguousarray(vector.values)
    return ClassicBuckets(labels, rows[order].astype(np.int64), bounds[order], limits, values, floats)


def bound_of(text: str) -> float | None:
    """The upper bound that `le` names; None if it is no number."""
    if not text or text != text.strip() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _report_bad(vector: Vector, strings: list[str], bad: Bools, span: TextSpan, context: EvaluationContext) -> None:
    rows = np.flatnonzero(bad).tolist()
    if rows:
        metrics = column_values(vector.series, METRIC_NAME)
        for metric, text in dict.fromkeys((metrics[row], strings[row]) for row in rows):
            context.notes.bad_bucket_label(metric, text, span)


def quantiles_of(
    buckets: ClassicBuckets, quantiles: Scalar, span: TextSpan, grid: StepGrid, context: EvaluationContext
) -> tuple[Floats, Bools]:
    """One quantile of every classic histogram at every step; says where buckets had to be mended."""
    shape = (buckets.count, grid.count)
    out, filled = np.empty(shape), np.empty(shape, np.bool_)
    mended = np.zeros((buckets.count, 6))
    mended[:, BUCKET_MIN], mended[:, BUCKET_MAX] = np.inf, -np.inf
    given = np.ascontiguousarray(quantiles)
    matrices = (buckets.values, buckets.present, buckets.order, buckets.uppers, buckets.limits)

    def run(start: int, end: int) -> None:
        classic_quantiles(given, *matrices, start, end, out, filled, mended)

    in_chunks(context.budget, buckets.count, _work(buckets, grid), run)
    for group in np.flatnonzero(mended[:, SAMPLES]).tolist():
        note, times = mended[group], grid.times
        detail = ForcedMonotonicity(
            samples=int(note[SAMPLES]),
            first_ms=int(times[int(note[FIRST_STEP])]),
            last_ms=int(times[int(note[LAST_STEP])]),
            bucket_min=float(note[BUCKET_MIN]),
            bucket_max=float(note[BUCKET_MAX]),
            difference_max=float(note[DIFFERENCE_MAX]),
        )
        metric = column_values(buckets.series.take(np.array([group])), METRIC_NAME)[0]
        context.notes.forced_monotonicity(metric, detail, span)
    return out, filled


def fractions_of(
    buckets: ClassicBuckets, lowers: Scalar, highers: Scalar, grid: StepGrid, context: EvaluationContext
) -> tuple[Floats, Bools]:
    """The share of observations between two values, of every classic histogram at every step."""
    shape = (buckets.count, grid.count)
    out, filled = np.empty(shape), np.empty(shape, np.bool_)
    low, high = np.ascontiguousarray(lowers), np.ascontiguousarray(highers)
    matrices = (buckets.values, buckets.present, buckets.order, buckets.uppers, buckets.limits)

    def run(start: int, end: int) -> None:
        classic_fractions(low, high, *matrices, start, end, out, filled)

    in_chunks(context.budget, buckets.count, _work(buckets, grid), run)
    return out, filled


def _work(buckets: ClassicBuckets, grid: StepGrid) -> int:
    return len(buckets.order) // max(buckets.count, 1) * grid.count


# What do histograms say? Counts, sums, means, spreads, quantiles and shares, of native and classic ones.


_NUMBERS: dict[str, Callable[[NativeHistogram], float]] = {
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


def number_of(name: str, vector: Vector, context: EvaluationContext) -> Vector:
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

    classic: ClassicBuckets
    classic_passes: Bools
    native: Vector
    native_passes: Bools


def _inputs(call: FunctionCall, place: int, vector: Vector, context: EvaluationContext) -> _Inputs:
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


def quantile_vector(
    call: FunctionCall, quantiles: Scalar, vector: Vector, grid: StepGrid, context: EvaluationContext
) -> Vector:
    """`histogram_quantile`."""
    _check_quantiles(call, 0, quantiles, context)
    inputs = _inputs(call, 1, vector, context)
    return merge_equal_series(_quantile_rows(call, 1, quantiles, inputs, grid, context))


def quantile_vectors(
    call: FunctionCall, vector: Vector, label: str, quantiles: list[Scalar], grid: StepGrid, context: EvaluationContext
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
    call: FunctionCall, lowers: Scalar, highers: Scalar, vector: Vector, grid: StepGrid, context: EvaluationContext
) -> Vector:
    """`histogram_fraction`."""
    inputs = _inputs(call, 2, vector, context)
    values, filled = fractions_of(inputs.classic, lowers, highers, grid, context)

    def estimate(histogram: NativeHistogram, step: int) -> Estimate:
        return fraction(float(lowers[step]), float(highers[step]), histogram)

    native = _native_rows(call, 2, inputs, estimate, (_NAN_FRACTION, _NAN_FRACTION), context)
    return merge_equal_series(_stacked_floats([native, _classic_rows(inputs, values, filled)]))


def _check_quantiles(call: FunctionCall, place: int, quantiles: Scalar, context: EvaluationContext) -> None:
    for number in np.unique(quantiles).tolist():
        if not 0 <= number <= 1:
            context.notes.invalid_quantile(number, unwrap(call.arguments[place]).span)


def _quantile_rows(
    call: FunctionCall, place: int, quantiles: Scalar, inputs: _Inputs, grid: StepGrid, context: EvaluationContext
) -> Vector:
    span = unwrap(call.arguments[place]).span
    values, filled = quantiles_of(inputs.classic, quantiles, span, grid, context)

    def estimate(histogram: NativeHistogram, step: int) -> Estimate:
        return quantile(float(quantiles[step]), histogram)

    native = _native_rows(call, place, inputs, estimate, (_NAN_RESULT, _NAN_SKEW), context, quantiles)
    return _stacked_floats([native, _classic_rows(inputs, values, filled)])


def _native_rows(
    call: FunctionCall,
    place: int,
    inputs: _Inputs,
    estimate: Callable[[NativeHistogram, int], Estimate],
    words: tuple[str, str],
    context: EvaluationContext,
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
