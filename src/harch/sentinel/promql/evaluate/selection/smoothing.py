"""What is the value between two samples? Instant selectors that are `smoothed` look ahead as well as back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from operator import attrgetter

import numpy as np

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Ints, Selection
from harch.sentinel.promql.evaluate.chunks import in_chunks
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.selection.interpolation import HistogramPoint, interpolated
from harch.sentinel.promql.evaluate.selection.points import Point, histogram_rows, lent_samples, points_of
from harch.sentinel.promql.evaluate.selection.selection_kernels import smoothed_values
from harch.sentinel.promql.evaluate.speaker import Speaker
from harch.sentinel.promql.evaluate.values import Cell, Vector, no_histograms, settled_histograms
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms
from harch.sentinel.promql.syntax.nodes import Span


def smoothed_vector(selection: Selection, moments: Ints, span: Span, context: Context) -> Vector:
    """Every series on the line between its samples, at every moment."""
    series, samples = selection.series, selection.samples
    values, present = np.zeros((series.count, len(moments))), np.zeros((series.count, len(moments)), np.bool_)
    arrays = lent_samples(samples)

    def run(start: int, end: int) -> None:
        smoothed_values(*arrays, moments, context.lookback_ms, start, end, values, present)

    in_chunks(context.budget, series.count, len(moments), run)
    slow = np.flatnonzero(histogram_rows(samples)).tolist()
    cells = no_histograms(values.shape) if slow else None
    for row in slow:
        context.budget.check()
        column = series.columns.get(METRIC_NAME)
        speaker = Speaker(context.notes, "" if column is None else column.values[column.codes[row]], span)
        lookback = context.lookback_ms
        points = points_of(samples, row, int(moments[0]) - lookback, int(moments[-1]) + lookback)
        for step, moment in enumerate(moments.tolist()):
            low = bisect_right(points, moment - lookback, key=attrgetter("time_ms"))
            high = bisect_right(points, moment + lookback, key=attrgetter("time_ms"))
            cell = _smoothed(points[low:high], moment, speaker)
            present[row, step] = cell is not None
            values[row, step] = cell if isinstance(cell, float) else 0.0
            if cells is not None and isinstance(cell, Histogram):
                cells[row, step] = cell
    histograms = None if cells is None else settled_histograms(cells)
    return Vector(series, values, present, np.zeros(series.count, np.bool_), histograms)


def _smoothed(points: list[Point], moment: int, speaker: Speaker) -> Cell | None:
    if len({isinstance(point.value, float) for point in points}) > 1:
        speaker.mixed_types()
        return None
    after = bisect_left(points, moment, key=attrgetter("time_ms"))
    if after < len(points) and points[after].time_ms == moment:
        return points[after].value
    if after == 0:
        return None
    before, value = points[after - 1], points[after - 1].value
    if isinstance(value, float):
        if after == len(points):
            return value
        step = points[after].value
        share = (moment - before.time_ms) / (points[after].time_ms - before.time_ms)
        return value + (step - value) * share if isinstance(step, float) else None
    if after == len(points):
        return _carried(value)
    return _between(before, points[after], moment, speaker)


def _carried(histogram: Histogram) -> Histogram:
    """A histogram that stands in for later ones: its hint spoke of the sample before it."""
    return replace(histogram, reset_hint=ResetHint.UNKNOWN)


def _between(before: Point, after: Point, moment: int, speaker: Speaker) -> Histogram | None:
    if not isinstance(before.value, Histogram) or not isinstance(after.value, Histogram):
        return None
    if before.value.uses_custom_buckets != after.value.uses_custom_buckets:
        speaker.mixed_schemas()
        return None
    is_counter = before.value.reset_hint is not ResetHint.GAUGE or after.value.reset_hint is not ResetHint.GAUGE
    ends = HistogramPoint(before.time_ms, before.value), HistogramPoint(after.time_ms, after.value)
    try:
        return interpolated(*ends, moment, is_counter, speaker)
    except IncompatibleHistograms:
        speaker.mixed_schemas()
        return None
