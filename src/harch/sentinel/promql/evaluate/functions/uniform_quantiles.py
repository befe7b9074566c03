"""Where do quantiles lie in many native histograms of the same layout? One matrix of buckets instead of objects.

The rules are those of `histograms.statistics.quantile`; what is unusual (custom buckets, NaN) is left to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.evaluate.values import Bools, Floats
from harch.sentinel.promql.histograms.buckets import all_buckets
from harch.sentinel.promql.histograms.statistics import biased

_WORTH_IT = 8  # histograms of one layout; fewer are quicker one by one


def uniform_quantiles(histograms: Sequence[Histogram], ranks: Floats) -> tuple[Floats, Bools]:
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


def _of_one_layout(histograms: list[Histogram], ranks: Floats) -> tuple[Floats, Bools]:
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


def _upwards(histogram: Histogram) -> tuple[float, ...]:
    """The counts of all buckets from the lowest to the highest."""
    return (*reversed(histogram.negative_counts), histogram.zero_count, *histogram.positive_counts)


def _bounds(pattern: Histogram) -> tuple[Floats, Floats]:
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
