"""Which samples lie in a range? For instant queries that ask for a range vector itself."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.selection import Samples, SeriesTable
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.labels.columns import METADATA_LABELS, clear_labels, label_order
from harch.sentinel.promql.evaluate.selection.points import Point, points_of
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector
from harch.sentinel.promql.syntax.nodes import RangeMode


def live_samples(ranges: RangeVector, context: Context) -> tuple[SeriesTable, Samples]:
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
    if any(isinstance(point.value, Histogram) for point in points):
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
    if isinstance(low, Histogram) or isinstance(high, Histogram):
        return before
    share = (moment_ms - before.time_ms) / (after.time_ms - before.time_ms)
    return Point(moment_ms, low + (high - low) * share)


def _samples(rows: list[list[Point]]) -> Samples:
    count = np.array([len(points) for points in rows], np.int64)
    flat = [point for points in rows for point in points]
    histograms: list[Histogram] = []
    histogram_at = np.full(len(flat), -1, np.int32)
    values = np.zeros(len(flat))
    for place, point in enumerate(flat):
        if isinstance(point.value, Histogram):
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
