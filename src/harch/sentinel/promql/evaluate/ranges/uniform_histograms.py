"""How fast do counters count that never change their layout? Whole series of native histograms as one matrix.

Most series of histograms keep their buckets for hours. Their rates are differences of rows; only the results become
objects again. Whatever is unusual (other layouts, gauges, start times, NaN) is left to the slow way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.evaluate.histogram_rows import COUNT, SUM, histogram_of, layout_of, row_of
from harch.sentinel.promql.evaluate.selection.points import Point
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints

_THRESHOLD = 1.1  # as in rate_kernels


def uniform_rates(
    points: Sequence[Point], ends: Ints, range_ms: int, *, is_rate: bool
) -> Iterator[tuple[int, Histogram]] | None:
    """The steps with a rate, and the rate; None if the series is not as plain as this way needs it."""
    histograms = [point.value for point in points if isinstance(point.value, Histogram) and not point.start_ms]
    if len(histograms) < len(points) or len(points) < 2:
        return None
    layout = layout_of(histograms[0])
    is_plain = (each.reset_hint is not ResetHint.GAUGE and layout_of(each) == layout for each in histograms)
    if not all(is_plain):
        return None
    rows = np.array([row_of(each) for each in histograms])
    if not np.isfinite(rows).all():
        return None
    times = np.array([point.time_ms for point in points], np.int64)
    return _rates(histograms[0], rows, _corrections(histograms, rows), times, ends, range_ms, is_rate)


def _corrections(histograms: list[Histogram], rows: Floats) -> Floats:
    """What all resets up to each sample took away; a count that fell is one, unless the hint knows better."""
    fell = rows[1:] < rows[:-1]
    fell[:, SUM] = False
    resets: Bools = np.logical_or.reduce(fell, axis=1)
    for place, histogram in enumerate(histograms[1:]):
        if histogram.reset_hint is not ResetHint.UNKNOWN:
            resets[place] = histogram.reset_hint is ResetHint.RESET
    lost = np.zeros(rows.shape)
    lost[1:][resets] = rows[:-1][resets]
    return np.cumsum(lost, axis=0)


def _rates(
    pattern: Histogram, rows: Floats, corrections: Floats, times: Ints, ends: Ints, range_ms: int, is_rate: bool
) -> Iterator[tuple[int, Histogram]]:
    low = np.searchsorted(times, ends - range_ms, side="right")
    last = np.searchsorted(times, ends, side="right") - 1
    steps = np.flatnonzero(last > low)
    low, last, at = low[steps], last[steps], ends[steps]
    results = rows[last] - rows[low] + (corrections[last] - corrections[low])
    oldest, newest = times[low], times[last]
    to_start, to_end = (oldest - (at - range_ms)) / 1000.0, (at - newest) / 1000.0
    sampled = (newest - oldest) / 1000.0
    spacing = sampled / (last - low)
    to_start = np.where(to_start >= spacing * _THRESHOLD, spacing / 2, to_start)
    with np.errstate(all="ignore"):
        to_zero = sampled * (rows[low, COUNT] / results[:, COUNT])
    has_zero = (results[:, COUNT] > 0) & (rows[low, COUNT] >= 0)
    to_start = np.where(has_zero & (to_zero < to_start), to_zero, to_start)
    to_end = np.where(to_end >= spacing * _THRESHOLD, spacing / 2, to_end)
    factor = (sampled + to_start + to_end) / sampled
    results *= (factor / (range_ms / 1000.0) if is_rate else factor)[:, np.newaxis]
    for step, row in zip(steps.tolist(), results.tolist(), strict=True):
        yield step, histogram_of(row, pattern, ResetHint.GAUGE)
