"""How much did a histogram grow between the ends of an `anchored` or `smoothed` window?"""

from __future__ import annotations

from collections.abc import Sequence

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.evaluate.selection.interpolation import HistogramPoint, interpolated
from harch.sentinel.promql.evaluate.speaker import Speaker
from harch.sentinel.promql.histograms.arithmetic import as_gauge
from harch.sentinel.promql.histograms.layout import compacted
from harch.sentinel.promql.histograms.resets import detect_reset


def extended_increase(
    points: Sequence[HistogramPoint],
    window: tuple[int, int],
    is_counter: bool,
    is_smoothed: bool,
    speaker: Speaker,
) -> Histogram | None:
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
    points: Sequence[HistogramPoint], left: Histogram, right: Histogram, is_spanned: bool, speaker: Speaker
) -> Histogram | None:
    """What resets between the ends took away. A reset that the left end was interpolated over is counted there."""
    begin, before = 1, left
    if is_spanned and detect_reset(points[1].histogram, points[0].histogram):
        begin, before = 2, points[1].histogram
    if begin > len(points) - 1:
        return None
    correction: Histogram | None = None
    for histogram in (*(point.histogram for point in points[begin:-1]), right):
        if detect_reset(histogram, before):
            correction = before if correction is None else speaker.added(correction, before)
        before = histogram
    return correction
