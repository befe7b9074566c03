"""What of many native histograms that share one layout?

Rows of one matrix instead of objects: sums, rates and quantiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram, ResetHint
from harch.sentinel.promql.evaluate.selection.instant_vectors import Point
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints, Objects, is_filled
from harch.sentinel.promql.histograms.buckets import all_buckets, compacted
from harch.sentinel.promql.histograms.statistics import biased

COUNT, SUM, ZERO, BUCKETS = 0, 1, 2, 3  # columns; from the last one on, positive buckets and then negative ones


def layout_of(histogram: NativeHistogram) -> tuple[object, ...]:
    """Equal layouts have the same buckets, so their counts can be added number by number."""
    return (
        histogram.schema,
        histogram.zero_threshold,
        histogram.positive_spans,
        histogram.negative_spans,
        histogram.custom_bounds,
    )


def row_of(histogram: NativeHistogram) -> tuple[float, ...]:
    head = (histogram.count, histogram.sum, histogram.zero_count)
    return (*head, *histogram.positive_counts, *histogram.negative_counts)


def histogram_of(row: list[float], pattern: NativeHistogram, hint: ResetHint) -> NativeHistogram:
    """A histogram of these numbers in the layout of another.

    Empty buckets stay, so that results go on sharing a layout; they go at the end of the query. A side without any
    observations goes at once, because it matters whether a histogram has negative buckets at all.
    """
    split = BUCKETS + len(pattern.positive_counts)
    positive, negative = tuple(row[BUCKETS:split]), tuple(row[split:])
    histogram = NativeHistogram(
        row[COUNT],
        row[SUM],
        pattern.schema,
        pattern.zero_threshold,
        row[ZERO],
        pattern.positive_spans,
        positive,
        pattern.negative_spans,
        negative,
        pattern.custom_bounds,
        hint,
    )
    is_bare = (positive and not any(positive)) or (negative and not any(negative))
    return compacted(histogram) if is_bare else histogram


# What is the sum of a group of native histograms at every step? As matrices, if all of them share one layout.


def uniform_totals(cells: Objects, *, is_mean: bool) -> dict[int, NativeHistogram] | None:
    """The sum (or mean) at each step that has some; None if layouts or reset hints differ, or numbers are not finite.

    `cells` holds the histograms of a group, a row for each series, None where there is none.
    """
    there = is_filled(cells)
    members: list[NativeHistogram] = cells[there].tolist()
    if not members:
        return {}
    pattern = max(members, key=lambda each: len(each.positive_counts) + len(each.negative_counts))
    layout, hint, width = layout_of(pattern), pattern.reset_hint, len(row_of(pattern))
    empty = (*layout[:2], (), (), layout[4])  # what an idle series has: the same resolution and no buckets
    if any(each.reset_hint is not hint or layout_of(each) not in (layout, empty) for each in members):
        return None
    numbers = np.zeros((*cells.shape, width))
    numbers[there] = [_padded(row_of(each), width) for each in members]
    totals = _summed(numbers)
    if not np.isfinite(totals).all():
        return None
    counts = there.sum(axis=0)
    if is_mean:
        totals /= np.maximum(counts, 1)[:, np.newaxis]
    return {step: histogram_of(totals[step].tolist(), pattern, hint) for step in np.flatnonzero(counts).tolist()}


def _padded(row: tuple[float, ...], width: int) -> tuple[float, ...]:
    return row if len(row) == width else (*row, *(0.0,) * (width - len(row)))


def _summed(numbers: Floats) -> Floats:
    """Neumaier's sum over the first axis: small numbers survive beside large ones."""
    total, lost = np.zeros(numbers.shape[1:]), np.zeros(numbers.shape[1:])
    with np.errstate(all="ignore"):
        for values in numbers:
            new = total + values
            lost += np.where(np.abs(total) >= np.abs(values), (total - new) + values, (values - new) + total)
            total = new
    return total + lost


# How fast do counters count that never change their layout? Whole series of native histograms as one matrix.
#
# Most series of histograms keep their buckets for hours. Their rates are differences of rows; only the results become
# objects again. Whatever is unusual (other layouts, gauges, start times, NaN) is left to the slow way.


_THRESHOLD = 1.1  # as in rate_kernels


def uniform_rates(
    points: Sequence[Point], ends: Ints, range_ms: int, *, is_rate: bool
) -> Iterator[tuple[int, NativeHistogram]] | None:
    """The steps with a rate, and the rate; None if the series is not as plain as this way needs it."""
    histograms = [point.value for point in points if isinstance(point.value, NativeHistogram) and not point.start_ms]
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


def _corrections(histograms: list[NativeHistogram], rows: Floats) -> Floats:
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
    pattern: NativeHistogram, rows: Floats, corrections: Floats, times: Ints, ends: Ints, range_ms: int, is_rate: bool
) -> Iterator[tuple[int, NativeHistogram]]:
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


# Where do quantiles lie in many native histograms of the same layout? One matrix of buckets instead of objects.
#
# The rules are those of `histograms.statistics.quantile`; what is unusual (custom buckets, NaN) is left to it.


_WORTH_IT = 8  # histograms of one layout; fewer are quicker one by one


def uniform_quantiles(histograms: Sequence[NativeHistogram], ranks: Floats) -> tuple[Floats, Bools]:
    """The quantile of each histogram at its rank, and which of them were plain enough to be computed here."""
    values, done = np.zeros(len(histograms)), np.zeros(len(histograms), np.bool_)
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, histogram in enumerate(histograms):
        if not histogram.uses_custom_buckets and 0 <= ranks[place] <= 1 and 0 < histogram.count < np.inf:
            key = (histogram.schema, histogram.zero_threshold, histogram.positive_spans, histogram.negative_spans)
            members[key].append(place)
    for places in members.values():
        if len(places) >= _WORTH_IT:
            at = np.array(places)
            alike = [histograms[place] for place in places]
            found, known = _of_one_layout(alike, ranks[at])
            values[at], done[at] = found, known
    return values, done


def _of_one_layout(histograms: list[NativeHistogram], ranks: Floats) -> tuple[Floats, Bools]:
    rows = np.array([_upwards(histogram) for histogram in histograms])
    totals = np.array([histogram.count for histogram in histograms])
    sums = np.array([histogram.sum for histogram in histograms])
    known = np.isfinite(rows).all(axis=1) & rows.any(axis=1) & ~np.isnan(sums)
    lowers, uppers = _bounds(histograms[0])
    is_forward = ranks < 0.5
    results = np.where(
        is_forward,
        _from_one_end(rows, totals, ranks * totals, lowers, uppers, is_forward=True),
        _from_one_end(rows[:, ::-1], totals, (1 - ranks) * totals, lowers[::-1], uppers[::-1], is_forward=False),
    )
    return results, known


def _upwards(histogram: NativeHistogram) -> tuple[float, ...]:
    """The counts of all buckets from the lowest to the highest."""
    return (*reversed(histogram.negative_counts), histogram.zero_count, *histogram.positive_counts)


def _bounds(pattern: NativeHistogram) -> tuple[Floats, Floats]:
    """The bounds of these buckets; the zero bucket lies on one side if all others do."""
    ones = replace(
        pattern,
        zero_count=1.0,
        positive_counts=(1.0,) * len(pattern.positive_counts),
        negative_counts=(1.0,) * len(pattern.negative_counts),
    )
    buckets = [biased(bucket, pattern) for bucket in all_buckets(ones)]
    return np.array([bucket.lower for bucket in buckets]), np.array([bucket.upper for bucket in buckets])


def _from_one_end(
    rows: Floats, totals: Floats, wanted: Floats, lowers: Floats, uppers: Floats, *, is_forward: bool
) -> Floats:
    """Counts from the nearer end until the rank is reached, then goes on inside of that bucket."""
    seen_up_to = np.cumsum(rows, axis=1)
    populated = rows != 0
    reached = populated & (seen_up_to >= wanted[:, np.newaxis])
    is_reached = reached.any(axis=1)
    last = rows.shape[1] - 1 - populated[:, ::-1].argmax(axis=1)
    at = np.where(is_reached, reached.argmax(axis=1), last)
    row = np.arange(len(rows))
    inside = rows[row, at]
    seen = np.minimum(np.where(is_reached, seen_up_to[row, at], seen_up_to[:, -1]), totals)
    lower, upper = lowers[at], uppers[at]
    with np.errstate(all="ignore"):
        share = (wanted - (seen - inside) if is_forward else seen - wanted) / inside
        linear = lower + (upper - lower) * share
        low, high = np.log2(np.abs(lower)), np.log2(np.abs(upper))
        curved = np.where(lower > 0, np.exp2(low + (high - low) * share), -np.exp2(high + (low - high) * (1 - share)))
    result = np.where((lower <= 0) & (upper >= 0), linear, curved)
    result = np.where(inside == 0, np.nan, result)
    return np.where(seen < wanted, upper, result)
