"""What do the observations look like? Quantiles, fractions, mean and variance, estimated from buckets.

Within a bucket, observations are taken to be spread evenly: on a linear scale in custom buckets and the zero bucket,
on a logarithmic one in exponential buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.histograms.buckets import Bucket, all_buckets
from harch.sentinel.promql.histograms.summation import Total


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and what observations of NaN did to it: they are counted, but lie in no bucket."""

    value: float
    is_nan_result: bool = False  # the rank lies among the NaNs
    is_skewed: bool = False  # NaNs count as if above everything


def quantile(rank: float, histogram: Histogram) -> Estimate:
    """The value below which that fraction of observations lies."""
    if rank < 0:
        return Estimate(-math.inf)
    if rank > 1:
        return Estimate(math.inf)
    if histogram.count == 0 or math.isnan(rank):
        return Estimate(math.nan)
    # From the nearer end, so that rounding errors of the sum stay small; NaNs stand beyond the upper end.
    forward = math.isnan(histogram.sum) or rank < 0.5
    buckets = all_buckets(histogram)
    if not forward:
        buckets.reverse()
    wanted = (rank if forward else 1 - rank) * histogram.count
    seen, bucket = 0.0, Bucket(0.0, 0.0, 0.0, False, False)
    for bucket in buckets:
        seen += bucket.count
        if bucket.count and seen >= wanted:
            break
    else:
        # The last bucket is looked at even if it is empty; nothing reached the rank.
        bucket = next((populated for populated in reversed(buckets) if populated.count), bucket)
    if histogram.uses_custom_buckets:
        edge = _custom_edge(bucket)
        if edge is not None:
            return Estimate(edge)
        bucket = replace(bucket, lower=0.0) if bucket.lower == -math.inf else bucket
    else:
        bucket = biased(bucket, histogram)
    seen = min(seen, histogram.count)
    if seen < wanted:
        return Estimate(math.nan, is_nan_result=True) if math.isnan(histogram.sum) else Estimate(bucket.upper)
    if bucket.count == 0:
        return Estimate(math.nan)  # counted, but in no bucket
    into = wanted - (seen - bucket.count) if forward else seen - wanted
    return Estimate(_interpolated(bucket, into / bucket.count, histogram), is_skewed=_has_nans(histogram))


def _custom_edge(bucket: Bucket) -> float | None:
    """The answer where a bucket has no other end to interpolate to."""
    if bucket.lower == -math.inf and bucket.upper <= 0:
        return bucket.upper
    return bucket.lower if bucket.upper == math.inf and bucket.lower > -math.inf else None


def biased(bucket: Bucket, histogram: Histogram) -> Bucket:
    """The zero bucket lies on one side of zero only if all other buckets do."""
    if not bucket.lower <= 0 <= bucket.upper:
        return bucket
    if histogram.positive_counts and not histogram.negative_counts:
        return replace(bucket, lower=0.0)
    if histogram.negative_counts and not histogram.positive_counts:
        return replace(bucket, upper=0.0)
    return bucket


def _interpolated(bucket: Bucket, fraction: float, histogram: Histogram) -> float:
    if histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper:
        return bucket.lower + (bucket.upper - bucket.lower) * fraction
    low, high = math.log2(abs(bucket.lower)), math.log2(abs(bucket.upper))
    if bucket.lower > 0:
        return math.exp2(low + (high - low) * fraction)
    return -math.exp2(high + (low - high) * (1 - fraction))


def _has_nans(histogram: Histogram) -> bool:
    """A sum of NaN comes from NaNs, or from both infinities; only the former are missing in the buckets."""
    if not math.isnan(histogram.sum):
        return False
    return sum(bucket.count for bucket in all_buckets(histogram)) < histogram.count


def fraction(lower: float, upper: float, histogram: Histogram) -> Estimate:
    """The fraction of observations between two values; observations of NaN are in no fraction."""
    if histogram.count == 0 or math.isnan(lower) or math.isnan(upper):
        return Estimate(math.nan)
    skewed = _has_nans(histogram)
    if lower >= upper:
        return Estimate(0.0, is_skewed=skewed)
    share = rank_of(upper, histogram) - rank_of(lower, histogram)
    return Estimate(share / histogram.count, is_skewed=skewed)


def rank_of(value: float, histogram: Histogram) -> float:
    """How many observations lie below that value?"""
    rank = 0.0
    for bucket in all_buckets(histogram):
        known = _lower_known(bucket, histogram)
        if known.lower >= value:
            return min(rank, histogram.count)
        if known.upper > value:
            return min(rank + known.count * share_below(value, known, histogram), histogram.count)
        rank += known.count
    return rank if math.isnan(histogram.sum) else histogram.count


def _lower_known(bucket: Bucket, histogram: Histogram) -> Bucket:
    """A first custom bucket that reaches above zero is taken to begin there, as in classic histograms."""
    if not histogram.uses_custom_buckets:
        return biased(bucket, histogram)
    return replace(bucket, lower=0.0) if bucket.lower == -math.inf and bucket.upper >= 0 else bucket


def share_below(value: float, bucket: Bucket, histogram: Histogram) -> float:
    """The share of a bucket's observations below a value inside of it; a bucket without lower end lies below wholly."""
    if bucket.lower == -math.inf:
        return 1.0
    if histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper:
        return (value - bucket.lower) / (bucket.upper - bucket.lower)
    low, high, at = (math.log2(abs(bound)) for bound in (bucket.lower, bucket.upper, value))
    if value > 0:
        return (at - low) / (high - low)
    return 1 - (at - high) / (low - high)


def mean(histogram: Histogram) -> float:
    return histogram.sum / histogram.count if histogram.count else math.nan


def variance(histogram: Histogram) -> float:
    """Estimated from the middle of each bucket: arithmetic, geometric in exponential buckets, 0 in the zero bucket."""
    if histogram.count == 0:
        return math.nan
    centre = mean(histogram)
    total = Total()
    for bucket in all_buckets(histogram):
        if bucket.count:
            distance = _middle(bucket, histogram) - centre
            total.add(bucket.count * distance * distance)
    return total.value / histogram.count


def _middle(bucket: Bucket, histogram: Histogram) -> float:
    if histogram.uses_custom_buckets:
        return (bucket.lower + bucket.upper) / 2
    if bucket.lower <= 0 <= bucket.upper:
        return 0.0
    middle = math.sqrt(abs(bucket.lower)) * math.sqrt(abs(bucket.upper))
    return -middle if bucket.upper < 0 else middle


def deviation(histogram: Histogram) -> float:
    square = variance(histogram)
    return math.sqrt(square) if square >= 0 else math.nan
