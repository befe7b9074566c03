"""Which samples does a selector mean at each step?

The newest within the lookback, or a value between two samples where it is `smoothed`; with resets of histograms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from harch.sentinel.model.histograms import STALE_BITS, NativeHistogram, ResetHint
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Codes, Floats, Ints, Samples, Selection
from harch.sentinel.promql.evaluate.annotations import SeriesAnnotator
from harch.sentinel.promql.evaluate.context import EvaluationContext, in_chunks, lent
from harch.sentinel.promql.evaluate.selection.selection_kernels import (
    latest_places,
    latest_values,
    rows_with_histograms,
    smoothed_values,
)
from harch.sentinel.promql.evaluate.values import (
    Bools,
    Cell,
    Objects,
    StepGrid,
    Vector,
    no_histograms,
    settled_histograms,
)
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms, scaled
from harch.sentinel.promql.histograms.counters import detect_reset
from harch.sentinel.promql.syntax.nodes import FunctionCall, RangeMode, Subquery, TextSpan, VectorSelector

NO_STARTS: Ints = np.zeros(0, np.int64)
NO_STARTS.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Point:
    """One sample as an object, for the slow ways."""

    time_ms: int
    value: float | NativeHistogram
    start_ms: int = 0


def lent_samples(samples: Samples) -> tuple[Ints, Ints, Ints, Floats]:
    """The four arrays that every kernel over samples begins with."""
    first, count = (lent(array.astype(np.int64, copy=False)) for array in (samples.first, samples.count))
    return first, count, lent(samples.timestamps), lent(samples.values)


def histogram_rows(samples: Samples) -> Bools:
    """Which series have histograms among their samples?"""
    count = len(samples.first)
    if samples.histogram_at is None:
        return np.zeros(count, np.bool_)
    found = np.zeros(count, np.bool_)
    codes: Codes = np.ascontiguousarray(samples.histogram_at, np.int32)
    first, counts = lent_samples(samples)[:2]
    rows_with_histograms(first, counts, lent(codes), found)
    return found


def points_of(samples: Samples, row: int, after_ms: int, until_ms: int) -> list[Point]:
    """The samples of one series later than `after_ms`, up to `until_ms`, without stale markers."""
    first = int(samples.first[row])
    times = samples.timestamps[first : first + int(samples.count[row])]
    begin = first + int(np.searchsorted(times, after_ms, side="right"))
    end = first + int(np.searchsorted(times, until_ms, side="right"))
    part = slice(begin, end)
    values = samples.values[part]
    stale = values.view(np.uint64) == np.uint64(STALE_BITS)
    starts = [0] * (end - begin) if samples.starts is None else samples.starts[part].tolist()
    places = [-1] * (end - begin) if samples.histogram_at is None else samples.histogram_at[part].tolist()
    rows = zip(samples.timestamps[part].tolist(), values.tolist(), places, starts, stale.tolist(), strict=True)
    return [
        Point(time, value if place < 0 else samples.histograms[place], start)
        for time, value, place, start, is_stale in rows
        if not is_stale
    ]


# What is a histogram between two samples?


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    time_ms: int
    histogram: NativeHistogram
    start_ms: int = 0


def interpolated(
    before: HistogramPoint, after: HistogramPoint, moment_ms: int, is_counter: bool, speaker: SeriesAnnotator
) -> NativeHistogram:
    """The histogram at a moment between two samples; a counter that was reset there started at 0."""
    if moment_ms == before.time_ms:
        return before.histogram
    if moment_ms == after.time_ms:
        return after.histogram
    share = (moment_ms - before.time_ms) / (after.time_ms - before.time_ms)
    if is_counter and detect_reset(after.histogram, before.histogram):
        return scaled(after.histogram, share)
    difference = scaled(speaker.subtracted(after.histogram, before.histogram), share)
    return speaker.added(difference, before.histogram)


# What is the value between two samples? Instant selectors that are `smoothed` look ahead as well as back.


def smoothed_vector(selection: Selection, moments: Ints, span: TextSpan, context: EvaluationContext) -> Vector:
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
        speaker = SeriesAnnotator(context.notes, "" if column is None else column.values[column.codes[row]], span)
        lookback = context.lookback_ms
        points = points_of(samples, row, int(moments[0]) - lookback, int(moments[-1]) + lookback)
        for step, moment in enumerate(moments.tolist()):
            low = bisect_right(points, moment - lookback, key=attrgetter("time_ms"))
            high = bisect_right(points, moment + lookback, key=attrgetter("time_ms"))
            cell = _smoothed(points[low:high], moment, speaker)
            present[row, step] = cell is not None
            values[row, step] = cell if isinstance(cell, float) else 0.0
            if cells is not None and isinstance(cell, NativeHistogram):
                cells[row, step] = cell
    histograms = None if cells is None else settled_histograms(cells)
    return Vector(series, values, present, np.zeros(series.count, np.bool_), histograms)


def _smoothed(points: list[Point], moment: int, speaker: SeriesAnnotator) -> Cell | None:
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


def _carried(histogram: NativeHistogram) -> NativeHistogram:
    """A histogram that stands in for later ones: its hint spoke of the sample before it."""
    return replace(histogram, reset_hint=ResetHint.UNKNOWN)


def _between(before: Point, after: Point, moment: int, speaker: SeriesAnnotator) -> NativeHistogram | None:
    if not isinstance(before.value, NativeHistogram) or not isinstance(after.value, NativeHistogram):
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


# Which histograms came after a reset? Found on the fly where only their counts and sums are asked for.
#
# Stores forget what they knew of resets. Upstream finds them again under `histogram_count`, `histogram_sum` and
# `histogram_avg`, and warns there of sums over samples that contradict each other; so does this.


_STATISTICS = frozenset({"histogram_count", "histogram_sum", "histogram_avg"})
_WHOLE = frozenset({"histogram_quantile", "histogram_fraction"})


def inside_call(call: FunctionCall, context: EvaluationContext) -> EvaluationContext:
    """The context for a function's arguments."""
    if call.function in _WHOLE:
        return replace(context, finds_resets=False, may_find_resets=False)
    if call.function in _STATISTICS and context.may_find_resets and not context.finds_resets:
        return replace(context, finds_resets=True)
    return context


def inside_subquery(context: EvaluationContext) -> EvaluationContext:
    """Steps of a subquery are no neighbours, so nothing is found between them."""
    return replace(context, finds_resets=False, may_find_resets=False) if context.may_find_resets else context


def with_found_resets(selection: Selection, context: EvaluationContext) -> Selection:
    """The selection with hints filled in, if this part of the query asks for it."""
    samples = selection.samples
    if not context.finds_resets or samples.histogram_at is None:
        return selection
    histograms = list(samples.histograms)
    for row in range(len(samples.first)):
        _fill_row(samples, row, histograms)
    return replace(selection, samples=replace(samples, histograms=histograms))


def _fill_row(samples: Samples, row: int, histograms: list[NativeHistogram]) -> None:
    if samples.histogram_at is None:
        return
    begin = int(samples.first[row])
    before: NativeHistogram | None = None
    for place in samples.histogram_at[begin : begin + int(samples.count[row])].tolist():
        if place < 0 or histograms[place].is_stale:
            continue
        now = histograms[place]
        if before is not None and now.reset_hint is ResetHint.UNKNOWN:
            hint = ResetHint.RESET if detect_reset(now, before) else ResetHint.NOT_RESET
            histograms[place] = replace(now, reset_hint=hint)
        before = now


# Which samples does a selector mean at each step? Reads the store and finds the latest of each series.


def moments_of(node: VectorSelector | Subquery, grid: StepGrid) -> Ints:
    """The times that a selector looks at, one a step: `offset` moves them, `@` makes them all the same."""
    times = grid.times if node.at_ms is None else np.full(grid.count, node.at_ms, np.int64)
    return times - node.offset_ms


def read(node: VectorSelector, start_ms: int, end_ms: int, context: EvaluationContext) -> Selection:
    """The series of a selector with their samples between two times, both included."""
    context.budget.check()
    from_ms = start_ms - context.lookback_ms if context.finds_resets else start_ms  # the sample before tells of a reset
    selection = context.queryable.select(node.matchers, from_ms, end_ms, limit=context.budget.samples_left)
    context.budget.count_samples(int(selection.samples.count.sum()))
    return with_found_resets(selection, context)


def instant_vector(node: VectorSelector, grid: StepGrid, context: EvaluationContext) -> Vector:
    """The value of every series at every step: its latest sample, unless it is stale or too old."""
    moments = moments_of(node, grid)
    is_smoothed = node.range_mode is RangeMode.SMOOTHED
    reach = context.lookback_ms if is_smoothed else 0
    selection = read(node, int(moments[0]) - context.lookback_ms + 1, int(moments[-1]) + reach, context)
    context.budget.reserve_points(selection.series.count, grid.count)
    if is_smoothed:
        return smoothed_vector(selection, moments, node.span, context)
    if selection.samples.histogram_at is not None:
        return vector_at(selection, places_at(selection.samples, moments, context))
    values = np.empty((selection.series.count, grid.count))
    present = np.empty(values.shape, np.bool_)
    arrays = lent_samples(selection.samples)

    def run(start: int, end: int) -> None:
        latest_values(*arrays, moments, context.lookback_ms, start, end, values, present)

    in_chunks(context.budget, selection.series.count, grid.count, run)
    return Vector(selection.series, values, present, np.zeros(selection.series.count, np.bool_))


def places_at(samples: Samples, moments: Ints, context: EvaluationContext) -> Ints:
    """The place of the sample that counts at each moment, -1 where none does."""
    places = np.empty((len(samples.first), len(moments)), np.int64)
    arrays = lent_samples(samples)

    def run(start: int, end: int) -> None:
        latest_places(*arrays, moments, context.lookback_ms, start, end, places)

    in_chunks(context.budget, len(samples.first), len(moments), run)
    return places


def vector_at(selection: Selection, places: Ints) -> Vector:
    """The samples at these places, floats and histograms."""
    samples = selection.samples
    present = places >= 0
    at = np.where(present, places, 0)
    values = samples.values[at] if len(samples.values) else np.zeros(places.shape)
    return Vector(
        selection.series,
        np.where(present, values, 0.0),
        present,
        np.zeros(selection.series.count, np.bool_),
        _histograms_at(samples, at, present),
    )


def _histograms_at(samples: Samples, at: Ints, present: Bools) -> Objects | None:
    if samples.histogram_at is None or not len(samples.histogram_at):
        return None
    which = np.where(present, samples.histogram_at[at], -1)
    cells = no_histograms(which.shape)
    for row, step in zip(*np.nonzero(which >= 0), strict=True):
        cells[row, step] = samples.histograms[which[row, step]]
    return settled_histograms(cells)
