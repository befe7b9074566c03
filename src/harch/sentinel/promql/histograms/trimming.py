"""What remains below or above a value? The operators `</` and `>/`.

Buckets beyond the cut go, the bucket that it falls into keeps its share, and the sum is estimated anew from the middle
of what each bucket kept. Where nothing is cut off, the histogram stays as it is, with its exact sum.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.histograms.buckets import (
    Bucket,
    negative_buckets,
    positive_buckets,
    zero_bucket,
)
from harch.sentinel.promql.histograms.layout import with_buckets
from harch.sentinel.promql.histograms.statistics import biased, share_below
from harch.sentinel.promql.histograms.summation import Total


def trim_above(histogram: Histogram, cut: float) -> Histogram:
    """`histogram </ cut`: observations up to the cut stay."""
    return _trimmed(histogram, cut, keep_lower=True)


def trim_below(histogram: Histogram, cut: float) -> Histogram:
    """`histogram >/ cut`: observations above the cut stay."""
    return _trimmed(histogram, cut, keep_lower=False)


def _trimmed(histogram: Histogram, cut: float, *, keep_lower: bool) -> Histogram:
    if cut == (math.inf if keep_lower else -math.inf):
        return histogram
    count, total = Total(), Total()
    is_cut = False

    def kept(bucket: Bucket) -> float:
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


def _kept(bucket: Bucket, histogram: Histogram, cut: float, *, keep_lower: bool) -> tuple[float, float]:
    """How much of a bucket stays, and around which value."""
    if histogram.uses_custom_buckets and math.inf in (-bucket.lower, bucket.upper):
        return _kept_of_open(bucket, cut, keep_lower=keep_lower)
    if not histogram.uses_custom_buckets:
        bucket = biased(_clear_of_zero(bucket, histogram), histogram)
    linear = histogram.uses_custom_buckets or bucket.lower <= 0 <= bucket.upper
    if bucket.upper <= cut if keep_lower else bucket.lower >= cut:
        return bucket.count, _middle(bucket.lower, bucket.upper, linear=linear)
    if not bucket.lower < cut < bucket.upper:  # beyond the cut, or the cut is NaN: nothing compares with it
        return 0.0, 0.0
    share = share_below(cut, bucket, histogram)
    if keep_lower:
        return bucket.count * share, _middle(bucket.lower, cut, linear=linear)
    return bucket.count * (1 - share), _middle(cut, bucket.upper, linear=linear)


def _clear_of_zero(bucket: Bucket, histogram: Histogram) -> Bucket:
    threshold = histogram.zero_threshold
    if 0 < bucket.lower < threshold:
        return replace(bucket, lower=threshold)
    return replace(bucket, upper=-threshold) if -threshold < bucket.upper < 0 else bucket


def _kept_of_open(bucket: Bucket, cut: float, *, keep_lower: bool) -> tuple[float, float]:
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


def _middle(lower: float, upper: float, *, linear: bool) -> float:
    if linear:
        return (lower + upper) / 2
    middle = math.sqrt(abs(lower)) * math.sqrt(abs(upper))
    return -middle if upper < 0 else middle
