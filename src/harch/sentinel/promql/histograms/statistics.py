"""What do the observations look like, and what remains of them below or above a value?

Quantiles, fractions, means; the operators `</` and `>/`.
"""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.promql.histograms.arithmetic import Total
from harch.sentinel.promql.histograms.buckets import (
    HistogramBucket,
    all_buckets,
    negative_buckets,
    positive_buckets,
    with_buckets,
    zero_bucket,
)

# What do the observations look like? Quantiles, fractions, mean and variance, estimated from buckets.
#
# Within a bucket, observations are taken to be spread evenly: on a linear scale in custom buckets and the zero bucket,
# on a logarithmic one in exponential buckets.


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and what observations of NaN did to it: they are counted, but lie in no bucket."""

    value: float
    is_nan_result: bool = False  # the rank lies among the NaNs
    is_skewed: bool = False  # NaNs count as if above everything


def quantile(rank: float, histogram: NativeHistogram) -> Estimate:
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
    seen, bucket = 0.0, HistogramBucket(0.0, 0.0, 0.0, False, False)
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


def _custom_edge(bucket: HistogramBucket) -> float | None:
    """The answer where a bucket has no other end to interpolate to."""
    if bucket.lower == -math.inf and bucket.upper <= 0:
        return bucket.upper
    return bucket.lower if bucket.upper == math.inf and bucket.lower > -math.inf else None


def biased(bucket: HistogramBucket, histogram: NativeHistogram) -> HistogramBucket:
    """The zero bucket lies on one side of zero only if all other buckets do."""
    if not bucket.lower <= 0 <= bucket.upper:
        return bucket
    if histogram.positive_counts and not histogram.negative_counts:
        return replace(bucket, lower=0.0)
    if histogram.negative_counts and not histogram.positive_counts:
        return replace(bucket, upper=0.0)
    return bucket


def _interpolated(bucket: HistogramBucket, fraction: float, histogram: NativeHistogram) -> float:
    if histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper:
        return bucket.lower + (bucket.upper - bucket.lower) * fraction
    low, high = math.log2(abs(bucket.lower)), math.log2(abs(bucket.upper))
    if bucket.lower > 0:
        return math.exp2(low + (high - low) * fraction)
    return -math.exp2(high + (low - high) * (1 - fraction))


def _has_nans(histogram: NativeHistogram) -> bool:
    """A sum of NaN comes from NaNs, or from both infinities; only the former are missing in the buckets."""
    if not math.isnan(histogram.sum):
        return False
    return sum(bucket.count for bucket in all_buckets(histogram)) < histogram.count


def fraction(lower: float, upper: float, histogram: NativeHistogram) -> Estimate:
    """The fraction of observations between two values; observations of NaN are in no fraction."""
    if histogram.count == 0 or math.isnan(lower) or math.isnan(upper):
        return Estimate(math.nan)
    skewed = _has_nans(histogram)
    if lower >= upper:
        return Estimate(0.0, is_skewed=skewed)
    share = rank_of(upper, histogram) - rank_of(lower, histogram)
    return Estimate(share / histogram.count, is_skewed=skewed)


def rank_of(value: float, histogram: NativeHistogram) -> float:
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


def _lower_known(bucket: HistogramBucket, histogram: NativeHistogram) -> HistogramBucket:
    """A first custom bucket that reaches above zero is taken to begin there, as in classic histograms."""
    if not histogram.uses_custom_buckets:
        return biased(bucket, histogram)
    return replace(bucket, lower=0.0) if bucket.lower == -math.inf and bucket.upper >= 0 else bucket


def share_below(value: float, bucket: HistogramBucket, histogram: NativeHistogram) -> float:
    """The share of a bucket's observations below a value inside of it; a bucket without lower end lies below wholly."""
    if bucket.lower == -math.inf:
        return 1.0
    if histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper:
        return (value - bucket.lower) / (bucket.upper - bucket.lower)
    low, high, at = (math.log2(abs(bound)) for bound in (bucket.lower, bucket.upper, value))
    if value > 0:
        return (at - low) / (high - low)
    return 1 - (at - high) / (low - high)


def mean(histogram: NativeHistogram) -> float:
    return histogram.sum / histogram.count if histogram.count else math.nan


def variance(histogram: NativeHistogram) -> float:
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


def _middle(bucket: HistogramBucket, histogram: NativeHistogram) -> float:
    if histogram.uses_custom_buckets:
        return (bucket.lower + bucket.upper) / 2
    if bucket.lower <= 0 <= bucket.upper:
        return 0.0
    middle = math.sqrt(abs(bucket.lower)) * math.sqrt(abs(bucket.upper))
    return -middle if bucket.upper < 0 else middle


def deviation(histogram: NativeHistogram) -> float:
    square = variance(histogram)
    return math.sqrt(square) if square >= 0 else math.nan


# What remains below or above a value? The operators `</` and `>/`.
#
# Buckets beyond the cut go, the bucket that it falls into keeps its share, and the sum is estimated anew from the
# middle
# of what each bucket kept. Where nothing is cut off, the histogram stays as it is, with its exact sum.


def trim_above(histogram: NativeHistogram, cut: float) -> NativeHistogram:
    """`histogram </ cut`: observations up to the cut stay."""
    return _trimmed(histogram, cut, keep_lower=True)


def trim_below(histogram: NativeHistogram, cut: float) -> NativeHistogram:
    """`histogram >/ cut`: observations above the cut stay."""
    return _trimmed(histogram, cut, keep_lower=False)


def _trimmed(histogram: NativeHistogram, cut: float, *, keep_lower: bool) -> NativeHistogram:
    if cut == (math.inf if keep_lower else -math.inf):
        return histogram
    count, total = Total(), Total()
    is_cut = False

    def kept(bucket: HistogramBucket) -> float:
        nonlocal is_cut
        rest, middle = _kept(bucket, histogram, cut, keep_lower=keep_lower)
        is_cut = is_cut or rest != bucket.count
        count.add(rest)
        if rest:
            total.add(rest * middle)
        return rest

    positive = {bucket.index: kept(bucket) for bucket in positive_buckets(histogram)}
    negative = {bucket.index: kept(bucket) for bucket in negative_buckets(histogram)}
    zero = kept(zero_bucket(histogram)) if histogram.zero_count else 0.0
    if not is_cut:
        return histogram
    bare = replace(histogram, count=count.value, sum=total.value, zero_count=zero, is_integer=False)
    populated = ({index: rest for index, rest in side.items() if rest} for side in (positive, negative))
    return with_buckets(bare, *populated)


def _kept(bucket: HistogramBucket, histogram: NativeHistogram, cut: float, *, keep_lower: bool) -> tuple[float, float]:
    """How much of a bucket stays, and around which value."""
    if histogram.uses_custom_buckets and math.inf in (-bucket.lower, bucket.upper):
        return _kept_of_open(bucket, cut, keep_lower=keep_lower)
    if not histogram.uses_custom_buckets:
        bucket = biased(_clear_of_zero(bucket, histogram), histogram)
    linear = histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper
    if bucket.upper <= cut if keep_lower else bucket.lower >= cut:
        return bucket.count, _trimmed_middle(bucket.lower, bucket.upper, linear=linear)
    if not bucket.lower < cut < bucket.upper:  # beyond the cut, or the cut is NaN: nothing compares with it
        return 0.0, 0.0
    share = share_below(cut, bucket, histogram)
    if keep_lower:
        return bucket.count * share, _trimmed_middle(bucket.lower, cut, linear=linear)
    return bucket.count * (1 - share), _trimmed_middle(cut, bucket.upper, linear=linear)


def _clear_of_zero(bucket: HistogramBucket, histogram: NativeHistogram) -> HistogramBucket:
    threshold = histogram.zero_threshold
    if 0 < bucket.lower < threshold:
        return replace(bucket, lower=threshold)
    return replace(bucket, upper=-threshold) if -threshold < bucket.upper < 0 else bucket


def _kept_of_open(bucket: HistogramBucket, cut: float, *, keep_lower: bool) -> tuple[float, float]:
    """Buckets without end: nobody knows where in them observations lie, so they stay or go as a whole.

    The first one, if it reaches above zero, is taken to begin at zero, as in classic histograms.
    """
    if math.isnan(cut) or (bucket.lower == -math.inf and bucket.upper == math.inf):
        return 0.0, 0.0
    if bucket.upper == math.inf:
        return (0.0, 0.0) if keep_lower or cut == math.inf else (bucket.count, max(cut, bucket.lower))
    if bucket.upper <= 0:
        if not keep_lower or cut == -math.inf:
            return 0.0, 0.0
        return bucket.count, min(cut, bucket.upper)
    if cut >= bucket.upper:
        return (bucket.count, bucket.upper / 2) if keep_lower else (0.0, 0.0)
    if cut < 0:
        return 0.0, 0.0
    share = cut / bucket.upper
    if keep_lower:
        return bucket.count * share, cut / 2
    return bucket.count * (1 - share), (cut + bucket.upper) / 2


def _trimmed_middle(lower: float, upper: float, *, linear: bool) -> float:
    if linear:
        return (lower + upper) / 2
    middle = math.sqrt(abs(lower)) * math.sqrt(abs(upper))
    return -middle if upper < 0 else middle
