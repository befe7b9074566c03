"""What do functions over ranges give for series that hold histograms? Window by window, in Python."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from harch.sentinel.model.histograms import NativeHistogram, ResetHint
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.evaluate.annotations import AGGREGATION, SeriesAnnotator
from harch.sentinel.promql.evaluate.context import EvaluationContext
from harch.sentinel.promql.evaluate.selection.instant_vectors import HistogramPoint, Point, interpolated, points_of
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector
from harch.sentinel.promql.evaluate.uniform_histograms import uniform_rates
from harch.sentinel.promql.evaluate.values import Cell
from harch.sentinel.promql.histograms.arithmetic import (
    Combined,
    IncompatibleHistograms,
    as_gauge,
    average_of,
    divided,
    scaled,
    total_of,
)
from harch.sentinel.promql.histograms.buckets import compacted, same
from harch.sentinel.promql.histograms.counters import counter_increase, detect_reset, gauge_change, last_change
from harch.sentinel.promql.syntax.nodes import RangeMode


def extended_increase(
    points: Sequence[HistogramPoint],
    window: tuple[int, int],
    is_counter: bool,
    is_smoothed: bool,
    speaker: SeriesAnnotator,
) -> NativeHistogram | None:
    """The increase between the ends of an anchored or smoothed window; None if there is nothing to measure.

    Raises IncompatibleHistograms where samples do not fit together.
    """
    start_ms, end_ms = window
    last = len(points) - 1
    first = max(sum(point.time_ms <= start_ms for point in points[:last]) - 1, 0)
    if is_smoothed:
        last = sum(point.time_ms < end_ms for point in points[:last])
    if points[last].time_ms <= start_ms or (is_smoothed and points[first].time_ms > end_ms):
        return None
    used = points[first : last + 1]
    if len({point.histogram.uses_custom_buckets for point in used}) > 1:
        speaker.mixed_schemas()
        return None
    if is_counter and any(point.histogram.reset_hint is ResetHint.GAUGE for point in used):
        speaker.not_a_counter()
    left, right = points[first].histogram, points[last].histogram
    is_spanned = is_smoothed and points[first].time_ms < start_ms
    if is_spanned:
        left = interpolated(points[first], points[first + 1], start_ms, is_counter, speaker)
    if is_smoothed and last > 0 and points[last].time_ms > end_ms:
        right = interpolated(points[last - 1], points[last], end_ms, is_counter, speaker)
    if not is_counter and (left.reset_hint is not ResetHint.GAUGE or right.reset_hint is not ResetHint.GAUGE):
        speaker.not_a_gauge()
    result = speaker.subtracted(right, left)
    correction = _correction(used, left, right, is_spanned, speaker) if is_counter else None
    if correction is not None:
        result = speaker.added(result, correction)
    return compacted(as_gauge(result))


def _correction(
    points: Sequence[HistogramPoint],
    left: NativeHistogram,
    right: NativeHistogram,
    is_spanned: bool,
    speaker: SeriesAnnotator,
) -> NativeHistogram | None:
    """What resets between the ends took away. A reset that the left end was interpolated over is counted there."""
    begin, before = 1, left
    if is_spanned and detect_reset(points[1].histogram, points[0].histogram):
        begin, before = 2, points[1].histogram
    if begin > len(points) - 1:
        return None
    correction: NativeHistogram | None = None
    for histogram in (*(point.histogram for point in points[begin:-1]), right):
        if detect_reset(histogram, before):
            correction = before if correction is None else speaker.added(correction, before)
        before = histogram
    return correction


_THRESHOLD = 1.1  # as in rate_kernels
FloatsFold = Callable[["HistogramWindow"], float | None]  # what the kernels would give for the floats of a window


@dataclass(frozen=True, slots=True)
class HistogramWindow:
    """The samples of one series in one window, at least one, and what a function needs to know about it."""

    points: Sequence[Point]
    start_ms: int
    end_ms: int
    step: int
    speaker: SeriesAnnotator
    mode: RangeMode

    @property
    def floats(self) -> list[Point]:
        return [point for point in self.points if isinstance(point.value, float)]

    @property
    def histograms(self) -> list[HistogramPoint]:
        return [
            HistogramPoint(point.time_ms, point.value, point.start_ms)
            for point in self.points
            if isinstance(point.value, NativeHistogram)
        ]

    @property
    def is_mixed(self) -> bool:
        return len({isinstance(point.value, float) for point in self.points}) > 1

    @property
    def range_s(self) -> float:
        return (self.end_ms - self.start_ms) / 1000.0


def fold_with_histograms(
    name: str, ranges: RangeVector, row: int, fold_floats: FloatsFold, context: EvaluationContext
) -> Iterator[tuple[int, Cell]]:
    """The steps at which a series has a result, with the result."""
    column = ranges.series.columns.get(METRIC_NAME)
    metric = "" if column is None else column.values[column.codes[row]]
    speaker = SeriesAnnotator(context.notes, metric, ranges.span)
    before = 0 if ranges.mode is RangeMode.PLAIN else context.lookback_ms
    after = context.lookback_ms if ranges.mode is RangeMode.SMOOTHED else 0
    points = points_of(ranges.samples, row, ranges.before_ms - before, ranges.until_ms + after)
    if name in ("rate", "increase") and ranges.mode is RangeMode.PLAIN:
        plain = uniform_rates(points, ranges.ends, ranges.range_ms, is_rate=name == "rate")
        if plain is not None:
            yield from plain
            return
    for step, end_ms in enumerate(ranges.ends.tolist()):
        start_ms = end_ms - ranges.range_ms
        low = bisect_right(points, start_ms - before, key=attrgetter("time_ms"))
        high = bisect_right(points, end_ms + after, key=attrgetter("time_ms"))
        if low == high:
            continue
        window = HistogramWindow(points[low:high], start_ms, end_ms, step, speaker, ranges.mode)
        result = _result(name, window, fold_floats)
        if result is not None:
            yield step, result


def _result(name: str, window: HistogramWindow, fold_floats: FloatsFold) -> Cell | None:
    known = _FOLDS.get(name)
    if known is not None:
        return known(window, fold_floats)
    if window.floats and window.is_mixed:
        window.speaker.notes.ignored_in_mixed_range(window.speaker.metric, window.speaker.span)
    return fold_floats(window) if window.floats else None  # histograms alone are passed over without a word


def is_start_reset(before: Point, now: Point) -> bool:
    """The same question as `rate_kernels.is_start_reset`, of objects."""
    start = now.start_ms
    if start == 0 or start >= now.time_ms or start < before.time_ms:
        return False
    return start > before.time_ms or (before.start_ms != 0 and before.start_ms < before.time_ms)


def _rate(window: HistogramWindow, fold_floats: FloatsFold, is_counter: bool, is_rate: bool) -> Cell | None:
    if window.is_mixed:
        window.speaker.mixed_types()
        return None
    if window.floats:
        return fold_floats(window)
    try:
        if window.mode is not RangeMode.PLAIN:
            return _extended_rate(window, is_counter, is_rate)
        return _extrapolated_rate(window, is_counter, is_rate)
    except IncompatibleHistograms:
        window.speaker.mixed_schemas()
        return None


def _extrapolated_rate(window: HistogramWindow, is_counter: bool, is_rate: bool) -> NativeHistogram | None:
    points = window.histograms
    first, last = points[0], points[-1]
    result = _increase(window, points, is_counter) if len(points) > 1 else None
    if result is None and len(points) > 1:
        return None
    to_start = (first.time_ms - window.start_ms) / 1000.0
    to_end = (window.end_ms - last.time_ms) / 1000.0
    sampled = (last.time_ms - first.time_ms) / 1000.0
    spacing = sampled / (len(points) - 1) if len(points) > 1 else 0.0
    if is_counter and first.start_ms != 0 and window.start_ms < first.start_ms < first.time_ms:
        to_start = 0.0
        sampled = (last.time_ms - first.start_ms) / 1000.0
        result = first.histogram if result is None else window.speaker.added(result, first.histogram)
    elif result is None:
        return None
    else:
        if to_start >= spacing * _THRESHOLD:
            to_start = spacing / 2
        if is_counter and result.count > 0 and first.histogram.count >= 0:
            to_start = min(to_start, sampled * (first.histogram.count / result.count))
    if to_end >= spacing * _THRESHOLD:
        to_end = spacing / 2
    factor = (sampled + to_start + to_end) / sampled if sampled != 0 else 1.0
    return scaled(result, factor / window.range_s if is_rate else factor)


def _increase(window: HistogramWindow, points: Sequence[HistogramPoint], is_counter: bool) -> NativeHistogram | None:
    histograms = [point.histogram for point in points]
    if not is_counter:
        return window.speaker.changed(gauge_change(histograms))
    restarted = [False, *(is_start_reset(*pair) for pair in pairwise(window.points))]
    for before, now in pairwise(points):
        if now.start_ms != 0 and now.start_ms < before.time_ms and now.start_ms != before.start_ms:
            window.speaker.notes.overlapping_starts(window.speaker.metric, window.speaker.span)
            break
    return window.speaker.changed(counter_increase(histograms, restarted))


def _extended_rate(window: HistogramWindow, is_counter: bool, is_rate: bool) -> NativeHistogram | None:
    is_smoothed = window.mode is RangeMode.SMOOTHED
    ends = (window.start_ms, window.end_ms)
    result = extended_increase(window.histograms, ends, is_counter, is_smoothed, window.speaker)
    return divided(result, window.range_s) if result is not None and is_rate else result


def _instant_rate(window: HistogramWindow, fold_floats: FloatsFold, is_rate: bool) -> Cell | None:
    if len(window.points) < 2:
        return None
    before, last = window.points[-2:]
    if isinstance(before.value, float) and isinstance(last.value, float):
        return fold_floats(window)
    if isinstance(before.value, float) or isinstance(last.value, float):
        window.speaker.mixed_types()
        return None
    restarted = is_start_reset(before, last)
    change = last_change(before.value, last.value, is_counter=is_rate, restarted=restarted)
    result = window.speaker.changed(change)
    return divided(result, (last.time_ms - before.time_ms) / 1000.0) if result is not None and is_rate else result


def _combined(
    window: HistogramWindow, fold_floats: FloatsFold, combine: Callable[[list[NativeHistogram]], Combined]
) -> Cell | None:
    """Sums and averages: of floats or of histograms, never of both."""
    speaker = window.speaker
    if window.is_mixed:
        speaker.mixed_types()
        return None
    if window.floats:
        return fold_floats(window)
    try:
        result = combine([point.histogram for point in window.histograms])
    except IncompatibleHistograms:
        speaker.mixed_schemas()
        return None
    if result.resets_collide:
        speaker.notes.conflicting_resets(AGGREGATION, speaker.span)
    if result.bounds_reconciled:
        speaker.notes.reconciled_buckets(AGGREGATION, speaker.span)
    return result.histogram


def _anchored(window: HistogramWindow) -> Sequence[Point]:
    """The samples of the window, led by the last one before it if the range is anchored; none if only that is there."""
    if window.mode is RangeMode.PLAIN:
        return window.points
    before = sum(point.time_ms <= window.start_ms for point in window.points)
    return window.points[max(before - 1, 0) :] if before < len(window.points) else ()


def _changes(window: HistogramWindow, differs: Callable[[Point, Point], bool]) -> float | None:
    points = _anchored(window)
    return float(sum(differs(*pair) for pair in pairwise(points))) if points else None


def _is_change(before: Point, now: Point) -> bool:
    if isinstance(before.value, NativeHistogram) and isinstance(now.value, NativeHistogram):
        return not same(now.value, before.value)
    if isinstance(before.value, float) and isinstance(now.value, float):
        return now.value != before.value and not (now.value != now.value and before.value != before.value)
    return True


def _is_reset(before: Point, now: Point) -> bool:
    if isinstance(before.value, NativeHistogram) and isinstance(now.value, NativeHistogram):
        return is_start_reset(before, now) or detect_reset(now.value, before.value)
    if isinstance(before.value, float) and isinstance(now.value, float):
        return is_start_reset(before, now) or now.value < before.value
    return True


_FOLDS: dict[str, Callable[[HistogramWindow, FloatsFold], Cell | None]] = {
    "rate": lambda window, floats: _rate(window, floats, True, True),
    "increase": lambda window, floats: _rate(window, floats, True, False),
    "delta": lambda window, floats: _rate(window, floats, False, False),
    "irate": lambda window, floats: _instant_rate(window, floats, True),
    "idelta": lambda window, floats: _instant_rate(window, floats, False),
    "sum_over_time": lambda window, floats: _combined(window, floats, total_of),
    "avg_over_time": lambda window, floats: _combined(window, floats, average_of),
    "changes": lambda window, _: _changes(window, _is_change),
    "resets": lambda window, _: _changes(window, _is_reset),
    "count_over_time": lambda window, _: float(len(window.points)),
    "present_over_time": lambda window, _: 1.0,
    "absent_over_time": lambda window, _: 1.0,
    "first_over_time": lambda window, _: window.points[0].value,
    "last_over_time": lambda window, _: window.points[-1].value,
    "ts_of_first_over_time": lambda window, _: window.points[0].time_ms / 1000.0,
    "ts_of_last_over_time": lambda window, _: window.points[-1].time_ms / 1000.0,
}
