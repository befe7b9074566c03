"""Which buckets does a histogram have, and where do they begin and end?"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harch.sentinel.model.histograms import Histogram, Span


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket with its bounds; `count` may be negative after a subtraction."""

    lower: float
    upper: float
    count: float
    lower_inclusive: bool
    upper_inclusive: bool
    index: int = 0

    def __str__(self) -> str:
        opening, closing = "[" if self.lower_inclusive else "(", "]" if self.upper_inclusive else ")"
        return f"{opening}{short(self.lower)},{short(self.upper)}{closing}:{short(self.count)}"


def short(value: float) -> str:
    """A number in its shortest form, with an exponent where that is shorter, as histograms are shown."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e21:
        return str(int(value)) if value or math.copysign(1, value) > 0 else "-0"
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark and 1e-4 <= abs(value) < 1e21:
        return mantissa
    if not mark:
        for digits in range(17):
            mantissa, mark, exponent = f"{value:.{digits}e}".partition("e")
            if float(f"{mantissa}e{exponent}") == value:
                break
    sign = "-" if exponent.startswith("-") else "+"
    return f"{mantissa.removesuffix('.0')}e{sign}{exponent.lstrip('+-').zfill(2)}"


def indexed(spans: tuple[Span, ...], counts: tuple[float, ...]) -> dict[int, float]:
    """Counts by bucket index, in the order of the indexes. Counts beyond the spans are not looked at."""
    found: dict[int, float] = {}
    index = place = 0
    for span in spans:
        index += span.offset
        for count in counts[place : place + span.length]:
            found[index] = count
            index += 1
        place += span.length
    return found


def packed(counts: Mapping[int, float]) -> tuple[tuple[Span, ...], tuple[float, ...]]:
    """Spans and counts of these buckets; neighbours share a span."""
    ordered = sorted(counts)
    runs: list[tuple[int, int]] = []  # first index, length
    for index in ordered:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    ends = [0, *(first + length for first, length in runs)]
    spans = tuple(Span(first - end, length) for (first, length), end in zip(runs, ends, strict=False))
    return spans, tuple(counts[index] for index in ordered)


def exponential_bound(index: int, schema: int) -> float:
    """The upper bound of a bucket of an exponential schema; exact at powers of two."""
    if schema < 0:
        fraction, exponent = 1.0, index << -schema
    else:
        fraction, exponent = 2.0 ** ((index & ((1 << schema) - 1)) / (1 << schema)), index >> schema
    if exponent == 1024 and fraction == 1.0:
        return sys.float_info.max  # the last finite bucket; the one beyond holds the infinities
    try:
        return math.ldexp(fraction, max(exponent, -5000))
    except OverflowError:
        return math.inf


def _custom_bound(index: int, bounds: tuple[float, ...]) -> float:
    if index < 0:
        return -math.inf
    return bounds[index] if index < len(bounds) else math.inf


def positive_buckets(histogram: Histogram) -> Iterator[Bucket]:
    """Upwards from zero; for custom buckets, all of them."""
    for index, count in indexed(histogram.positive_spans, histogram.positive_counts).items():
        if histogram.uses_custom_buckets:
            lower = _custom_bound(index - 1, histogram.custom_bounds)
            upper = _custom_bound(index, histogram.custom_bounds)
            yield Bucket(lower, upper, count, lower == -math.inf, True, index)
        else:
            lower = exponential_bound(index - 1, histogram.schema)
            yield Bucket(lower, exponential_bound(index, histogram.schema), count, False, True, index)


def negative_buckets(histogram: Histogram) -> Iterator[Bucket]:
    """Downwards from zero."""
    for index, count in indexed(histogram.negative_spans, histogram.negative_counts).items():
        upper = -exponential_bound(index - 1, histogram.schema)
        yield Bucket(-exponential_bound(index, histogram.schema), upper, count, True, False, index)


def zero_bucket(histogram: Histogram) -> Bucket:
    return Bucket(-histogram.zero_threshold, histogram.zero_threshold, histogram.zero_count, True, True)


def all_buckets(histogram: Histogram) -> list[Bucket]:
    """Upwards over all of them; buckets that reach into the zero bucket end where it begins."""
    if histogram.uses_custom_buckets:
        return list(positive_buckets(histogram))
    threshold = histogram.zero_threshold
    found = [_clipped(bucket, threshold) for bucket in negative_buckets(histogram)][::-1]
    if histogram.zero_count > 0:
        found.append(zero_bucket(histogram))
    found.extend(_clipped(bucket, threshold) for bucket in positive_buckets(histogram))
    return found


def _clipped(bucket: Bucket, threshold: float) -> Bucket:
    if 0 < bucket.lower < threshold:
        return replace(bucket, lower=threshold)
    if -threshold < bucket.upper < 0:
        return replace(bucket, upper=-threshold)
    return bucket


def bucket_rows(histogram: Histogram) -> list[tuple[int, float, float, float]]:
    """The populated buckets as the HTTP API lists them: kind of bounds, lower, upper, count.

    The kind says which bounds belong to the bucket: 0 the upper one, 1 the lower one, 2 none, 3 both.
    """
    kinds = {(False, True): 0, (True, False): 1, (False, False): 2, (True, True): 3}
    return [
        (kinds[bucket.lower_inclusive, bucket.upper_inclusive], bucket.lower, bucket.upper, bucket.count)
        for bucket in all_buckets(histogram)
        if bucket.count
    ]
