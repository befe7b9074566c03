"""What do functions over ranges give? Floats go through kernels; series with histograms take the slow way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Samples, SeriesTable
from harch.sentinel.promql.evaluate.context import EvaluationContext, in_chunks, lent, refuse
from harch.sentinel.promql.evaluate.label_columns import column_values, constant_column
from harch.sentinel.promql.evaluate.ranges import range_kernels as folds
from harch.sentinel.promql.evaluate.ranges.range_histograms import HistogramWindow, fold_with_histograms
from harch.sentinel.promql.evaluate.ranges.range_kernels import extended_rates, extrapolated_rates, instant_rates
from harch.sentinel.promql.evaluate.selection.instant_vectors import NO_STARTS, histogram_rows, lent_samples
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector
from harch.sentinel.promql.evaluate.values import (
    Bools,
    Floats,
    Ints,
    Scalar,
    StepGrid,
    Vector,
    no_histograms,
    settled_histograms,
)
from harch.sentinel.promql.syntax.nodes import FunctionCall, RangeMode

_RATES = {"rate": (True, True), "increase": (True, False), "delta": (False, False)}  # is a counter, is per second
_INSTANT_RATES = {"irate": True, "idelta": False}
_FOLDS = {
    "sum_over_time": folds.SUM,
    "avg_over_time": folds.MEAN,
    "min_over_time": folds.MIN,
    "max_over_time": folds.MAX,
    "count_over_time": folds.COUNT,
    "first_over_time": folds.FIRST,
    "last_over_time": folds.LAST,
    "stddev_over_time": folds.STDDEV,
    "stdvar_over_time": folds.STDVAR,
    "mad_over_time": folds.MEDIAN_DEVIATION,
    "quantile_over_time": folds.QUANTILE,
    "present_over_time": folds.PRESENT,
    "absent_over_time": folds.PRESENT,
    "changes": folds.CHANGES,
    "resets": folds.RESETS,
    "ts_of_first_over_time": folds.TIME_OF_FIRST,
    "ts_of_last_over_time": folds.TIME_OF_LAST,
    "ts_of_min_over_time": folds.TIME_OF_MIN,
    "ts_of_max_over_time": folds.TIME_OF_MAX,
    "deriv": folds.SLOPE,
    "predict_linear": folds.PREDICTION,
    "double_exponential_smoothing": folds.SMOOTHING,
}
_ALLOWED = {
    RangeMode.ANCHORED: ("changes", "delta", "increase", "rate", "resets"),
    RangeMode.SMOOTHED: ("delta", "increase", "rate"),
}
_SAMPLES_A_POINT = 64  # so many samples of a window take as long as another window
_KEEPS_NAME = frozenset({"first_over_time", "last_over_time"})  # like `offset`, they pass samples on
_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


def range_function(
    call: FunctionCall, ranges: RangeVector, parameters: list[Scalar], grid: StepGrid, context: EvaluationContext
) -> Vector:
    """A function with one range among its arguments; the others are scalars."""
    name = call.function
    if name not in _ALLOWED.get(ranges.mode, (name,)):
        allowed = ", ".join(_ALLOWED[ranges.mode])
        raise refuse(f"{ranges.mode.value} modifier can only be used with: {allowed} - not with {name}")
    _check_parameters(call, ranges, parameters, context)
    context.budget.reserve_points(ranges.series.count, grid.count)
    drops_name = ranges.drops_name if name in _KEEPS_NAME else np.ones(ranges.series.count, np.bool_)
    slow = np.flatnonzero(histogram_rows(ranges.samples))
    if not len(slow):
        values, present = _floats(call, ranges, parameters, grid, context)
        result = Vector(ranges.series, values, present, drops_name)
    else:
        result = _mixed(call, ranges, parameters, grid, context, slow, drops_name)
    if name in ("rate", "increase"):
        _warn_unless_counters(result, ranges, context)
    return result


def _mixed(
    call: FunctionCall,
    ranges: RangeVector,
    parameters: list[Scalar],
    grid: StepGrid,
    context: EvaluationContext,
    slow: Ints,
    drops_name: Bools,
) -> Vector:
    """Series with histograms one by one, the others together."""
    shape = (ranges.series.count, grid.count)
    values, present, cells = np.zeros(shape), np.zeros(shape, np.bool_), no_histograms(shape)
    fast = np.setdiff1d(np.arange(ranges.series.count), slow)
    if len(fast):
        values[fast], present[fast] = _floats(call, _rows(ranges, fast), parameters, grid, context)

    def fold_floats(window: HistogramWindow) -> float | None:
        """One window of floats through the same kernels as all others."""
        step = slice(window.step, window.step + 1)
        at_step = StepGrid.instant(int(grid.times[window.step]))
        given = [parameter[step] for parameter in parameters]
        found, is_there = _floats(call, _one_window(ranges, window), given, at_step, context)
        return float(found[0, 0]) if is_there[0, 0] else None

    for row in slow.tolist():
        context.budget.check()
        for step, cell in fold_with_histograms(call.function, ranges, row, fold_floats, context):
            present[row, step] = True
            if isinstance(cell, NativeHistogram):
                cells[row, step] = cell
            else:
                values[row, step] = cell
    return Vector(ranges.series, values, present, drops_name, settled_histograms(cells))


def _one_window(ranges: RangeVector, window: HistogramWindow) -> RangeVector:
    """A range of one series and one step, of the floats of a window."""
    floats = window.floats
    samples = Samples(
        np.zeros(1, np.int64),
        np.array([len(floats)], np.int64),
        np.array([point.time_ms for point in floats], np.int64),
        np.array([point.value for point in floats], np.float64),
        None if ranges.samples.starts is None else np.array([point.start_ms for point in floats], np.int64),
    )
    series = SeriesTable(1, {METRIC_NAME: constant_column(1, window.speaker.metric)})
    ends = np.array([window.end_ms], np.int64)
    return replace(ranges, series=series, samples=samples, drops_name=np.zeros(1, np.bool_), ends=ends)


def _rows(ranges: RangeVector, rows: Ints) -> RangeVector:
    samples = ranges.samples
    part = Samples(samples.first[rows], samples.count[rows], samples.timestamps, samples.values, samples.starts)
    return replace(ranges, series=ranges.series.take(rows), samples=part, drops_name=ranges.drops_name[rows])


def _floats(
    call: FunctionCall, ranges: RangeVector, parameters: list[Scalar], grid: StepGrid, context: EvaluationContext
) -> tuple[Floats, Bools]:
    count = ranges.series.count
    values, present = np.zeros((count, grid.count)), np.zeros((count, grid.count), np.bool_)
    arrays = lent_samples(ranges.samples)
    starts = NO_STARTS if ranges.samples.starts is None else lent(ranges.samples.starts)
    ends, range_ms, lookback = ranges.ends, ranges.range_ms, context.lookback_ms
    overlaps = np.zeros(count, np.bool_)
    name = call.function

    if name in _INSTANT_RATES:

        def run(start: int, end: int) -> None:
            instant_rates(*arrays, starts, ends, range_ms, _INSTANT_RATES[name], start, end, values, present)

    elif name in _RATES and ranges.mode is RangeMode.PLAIN:
        is_counter, is_rate = _RATES[name]

        def run(start: int, end: int) -> None:
            flags = (is_counter, is_rate)
            extrapolated_rates(*arrays, starts, ends, range_ms, *flags, start, end, values, present, overlaps)

    elif name in _RATES:
        is_smoothed = ranges.mode is RangeMode.SMOOTHED

        def run(start: int, end: int) -> None:
            flags = (*_RATES[name], is_smoothed)
            extended_rates(*arrays, ends, range_ms, lookback, *flags, start, end, values, present)

    else:
        anchor_ms = lookback if ranges.mode is RangeMode.ANCHORED else 0
        zeros = np.zeros(grid.count)
        given = [*parameters, zeros, zeros]
        times, fold = grid.times, _FOLDS[name]

        def run(start: int, end: int) -> None:
            windows = (ends, range_ms, anchor_ms, times)
            given_two = (given[0], given[1])
            folds.fold_windows(fold, *arrays, starts, *windows, *given_two, start, end, values, present)

    in_chunks(context.budget, count, _work(ranges, grid), run)
    for row in np.flatnonzero(overlaps)[:1].tolist():
        context.notes.overlapping_starts(
            column_values(ranges.series.take(np.array([row])), METRIC_NAME)[0], ranges.span
        )
    return values, present


def _work(ranges: RangeVector, grid: StepGrid) -> int:
    """How long a series keeps a kernel busy: by its windows, and by the samples in them if these are many."""
    counts = ranges.samples.count
    covered_ms = ranges.until_ms - ranges.before_ms
    window = float(counts.mean()) * ranges.range_ms / covered_ms if len(counts) and covered_ms else 0.0
    return grid.count * (1 + int(window) // _SAMPLES_A_POINT)


def _check_parameters(
    call: FunctionCall, ranges: RangeVector, parameters: list[Scalar], context: EvaluationContext
) -> None:
    if call.function == "quantile_over_time":
        for quantile in np.unique(parameters[0]).tolist():
            if not 0 <= quantile <= 1 and ranges.series.count:
                context.notes.invalid_quantile(quantile, call.arguments[0].span)
    if call.function == "double_exponential_smoothing" and ranges.series.count:
        for words, factors, letters in (("smoothing", parameters[0], "sf"), ("trend", parameters[1], "tf")):
            for factor in factors[~((factors > 0) & (factors < 1))].tolist()[:1]:
                raise refuse(f"invalid {words} factor. Expected: 0 < {letters} < 1, got: {factor:f}")


def _warn_unless_counters(result: Vector, ranges: RangeVector, context: EvaluationContext) -> None:
    """Rates of what is no counter are mostly mistakes, so names (or types) that say so are reported."""
    column = ranges.series.columns.get(METRIC_NAME)
    if column is None:
        return
    rows = result.has_float.any(axis=1)
    if not context.options.type_and_unit_labels:
        for code in np.unique(column.codes[rows]).tolist():
            metric = column.values[code]
            if metric and not metric.endswith(_COUNTER_SUFFIXES):
                context.notes.possible_non_counter(metric, ranges.span)
        return
    found = ranges.series.take(np.flatnonzero(rows))
    for metric, kind in dict.fromkeys(
        zip(column_values(found, METRIC_NAME), column_values(found, "__type__"), strict=True)
    ):
        if metric and kind not in ("counter", "histogram"):
            context.notes.possible_non_counter_type(metric, kind, ranges.span)
