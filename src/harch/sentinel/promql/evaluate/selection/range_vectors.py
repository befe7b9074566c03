"""Which samples does a range mean?

Windows of selectors and subqueries, and the samples themselves for instant queries that want a range vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram, ResetHint
from harch.sentinel.model.selection import Ints, Samples, SeriesTable
from harch.sentinel.promql.evaluate.context import EvaluationContext, refuse
from harch.sentinel.promql.evaluate.label_columns import METADATA_LABELS, clear_labels, label_order
from harch.sentinel.promql.evaluate.selection.instant_vectors import Point, inside_subquery, moments_of, points_of, read
from harch.sentinel.promql.evaluate.values import Bools, StepGrid, Value, Vector
from harch.sentinel.promql.syntax.nodes import Expr, MatrixSelector, RangeMode, Subquery, TextSpan

Evaluate = Callable[[Expr, StepGrid, EvaluationContext], Value]


@dataclass(frozen=True, slots=True)
class RangeVector:
    """Series with samples, and for every step the window `(end - range, end]` of those that count."""

    series: SeriesTable
    samples: Samples
    drops_name: Bools
    ends: Ints
    range_ms: int
    mode: RangeMode
    span: TextSpan

    @property
    def before_ms(self) -> int:
        """Samples at or before this time are in no window."""
        return int(self.ends[0]) - self.range_ms

    @property
    def until_ms(self) -> int:
        return int(self.ends[-1])


def selected_range(node: MatrixSelector, grid: StepGrid, context: EvaluationContext) -> RangeVector:
    """The range of a selector. `anchored` and `smoothed` need samples around it, too."""
    ends = moments_of(node.selector, grid)
    mode = node.selector.range_mode
    before = 0 if mode is RangeMode.PLAIN else context.lookback_ms
    after = context.lookback_ms if mode is RangeMode.SMOOTHED else 0
    start_ms = int(ends[0]) - node.range_ms - before + 1
    selection = read(node.selector, start_ms, int(ends[-1]) + after, context)
    if not context.options.start_timestamps and selection.samples.starts is not None:
        selection = replace(selection, samples=replace(selection.samples, starts=None))
    drops_name = np.zeros(selection.series.count, np.bool_)
    return RangeVector(selection.series, selection.samples, drops_name, ends, node.range_ms, mode, node.span)


def subquery_range(node: Subquery, grid: StepGrid, context: EvaluationContext, evaluate: Evaluate) -> RangeVector:
    """The range of a subquery: its expression at multiples of its step, each value a sample."""
    ends = moments_of(node, grid)
    inner = subquery_grid(int(ends[0]) - node.range_ms, int(ends[-1]), node, context)
    context.budget.check_steps(inner.count)
    vector = evaluate(node.expr, inner, inside_subquery(context)) if inner.count else None
    if vector is None or isinstance(vector, str):
        return _without_series(node, ends)
    if not isinstance(vector, Vector):  # a scalar is one series without labels
        values = vector[np.newaxis, :]
        vector = Vector(SeriesTable(1, {}), values, np.ones(values.shape, np.bool_), np.zeros(1, np.bool_))
    samples = _samples_of(vector, inner.times)
    return RangeVector(vector.series, samples, vector.drops_name, ends, node.range_ms, RangeMode.PLAIN, node.span)


def subquery_grid(after_ms: int, until_ms: int, node: Subquery, context: EvaluationContext) -> StepGrid:
    """The first multiple of the step after the range's open left end, and all that follow."""
    step_ms = node.step_ms or context.options.subquery_step_ms
    start_ms = -(-after_ms // step_ms) * step_ms if after_ms < 0 else after_ms // step_ms * step_ms  # towards 0
    if start_ms <= after_ms:
        start_ms += step_ms
    return StepGrid.between(start_ms, until_ms, step_ms)


def _without_series(node: Subquery, ends: Ints) -> RangeVector:
    none = np.zeros(0, np.int64)
    samples = Samples(none, none, none, np.zeros(0))
    return RangeVector(
        SeriesTable(0, {}), samples, np.zeros(0, np.bool_), ends, node.range_ms, RangeMode.PLAIN, node.span
    )


def _samples_of(vector: Vector, times: Ints) -> Samples:
    """The places that are filled, row after row, as samples. Start times do not pass through expressions."""
    count = vector.present.sum(axis=1, dtype=np.int64)
    first = np.cumsum(count) - count
    timestamps = np.broadcast_to(times, vector.present.shape)[vector.present]
    values = vector.values[vector.present]
    if vector.histograms is None:
        return Samples(first, count, timestamps, values)
    cells = vector.histograms[vector.present]
    histograms: list[NativeHistogram] = []
    histogram_at = np.full(len(cells), -1, np.int32)
    for place, cell in enumerate(cells):
        if cell is not None:
            histogram_at[place] = len(histograms)
            histograms.append(_without_known_resets(cell))
    return Samples(first, count, timestamps, values, histogram_at=histogram_at, histograms=histograms)


def _without_known_resets(histogram: NativeHistogram) -> NativeHistogram:
    """Between steps samples may be missing or repeated, so what the hint says of the one before is no longer true."""
    if histogram.reset_hint in (ResetHint.RESET, ResetHint.NOT_RESET):
        return replace(histogram, reset_hint=ResetHint.UNKNOWN)
    return histogram


# Which samples lie in a range? For instant queries that ask for a range vector itself.


def live_samples(ranges: RangeVector, context: EvaluationContext) -> tuple[SeriesTable, Samples]:
    """The series with samples in the range, sorted by labels, and these samples without stale markers."""
    lookback_ms = context.lookback_ms
    before_ms = 0 if ranges.mode is RangeMode.PLAIN else lookback_ms
    after_ms = lookback_ms if ranges.mode is RangeMode.SMOOTHED else 0
    labels = clear_labels(ranges.series, METADATA_LABELS, ranges.drops_name)
    rows: list[int] = []
    points: list[list[Point]] = []
    for row in label_order(labels).tolist():
        context.budget.check()
        found = points_of(ranges.samples, row, ranges.before_ms - before_ms, ranges.until_ms + after_ms)
        if ranges.mode is not RangeMode.PLAIN:
            found = _with_ends(found, ranges)
        if found:
            rows.append(row)
            points.append(found)
    return labels.take(np.array(rows, np.int64)), _samples(points)


def _with_ends(points: list[Point], ranges: RangeVector) -> list[Point]:
    """`anchored` and `smoothed` ranges have a sample at each end: the one before it, or one on the line between two."""
    start_ms, end_ms = ranges.before_ms, ranges.until_ms
    if any(isinstance(point.value, NativeHistogram) for point in points):
        raise refuse(f"{ranges.mode.value} modifier is not supported with histograms outside of functions")
    last = len(points) - 1
    first = max(sum(point.time_ms <= start_ms for point in points[: max(last, 0)]) - 1, 0)
    is_smoothed = ranges.mode is RangeMode.SMOOTHED
    if is_smoothed:
        last = sum(point.time_ms < end_ms for point in points[: max(last, 0)])
    if not points or points[last].time_ms <= start_ms:
        return []
    left, right = points[first], points[last]
    if is_smoothed and left.time_ms < start_ms:
        left = _on_the_line(left, points[first + 1], start_ms)
    if is_smoothed and right.time_ms > end_ms and last > 0:
        right = _on_the_line(points[last - 1], right, end_ms)
    inner = [point for point in points[first : last + 1] if start_ms < point.time_ms < end_ms]
    return [Point(start_ms, left.value), *inner, Point(end_ms, right.value)]


def _on_the_line(before: Point, after: Point, moment_ms: int) -> Point:
    low, high = before.value, after.value
    if isinstance(low, NativeHistogram) or isinstance(high, NativeHistogram):
        return before
    share = (moment_ms - before.time_ms) / (after.time_ms - before.time_ms)
    return Point(moment_ms, low + (high - low) * share)


def _samples(rows: list[list[Point]]) -> Samples:
    count = np.array([len(points) for points in rows], np.int64)
    flat = [point for points in rows for point in points]
    histograms: list[NativeHistogram] = []
    histogram_at = np.full(len(flat), -1, np.int32)
    values = np.zeros(len(flat))
    for place, point in enumerate(flat):
        if isinstance(point.value, NativeHistogram):
            histogram_at[place] = len(histograms)
            histograms.append(point.value)
            values[place] = point.value.sum
        else:
            values[place] = point.value
    return Samples(
        np.cumsum(count) - count,
        count,
        np.array([point.time_ms for point in flat], np.int64),
        values,
        np.array([point.start_ms for point in flat], np.int64),
        histogram_at if histograms else None,
        histograms,
    )
