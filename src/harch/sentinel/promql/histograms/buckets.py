"""Which buckets does a histogram have, where do they begin, and how can the layouts of two become one?"""

# harch: pure

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harch.sentinel.model.histograms import BucketSpan, NativeHistogram


@dataclass(frozen=True, slots=True)
class HistogramBucket:
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


def indexed(spans: tuple[BucketSpan, ...], counts: tuple[float, ...]) -> dict[int, float]:
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


def packed(counts: Mapping[int, float]) -> tuple[tuple[BucketSpan, ...], tuple[float, ...]]:
    """Spans and counts of these buckets; neighbours share a span."""
    ordered = sorted(counts)
    runs: list[tuple[int, int]] = []  # first index, length
    for index in ordered:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    ends = [0, *(first + length for first, length in runs)]
    spans = tuple(BucketSpan(first - end, length) for (first, length), end in zip(runs, ends, strict=False))
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


def positive_buckets(histogram: NativeHistogram) -> Iterator[HistogramBucket]:
    """Upwards from zero; for custom buckets, all of them."""
    for index, count in indexed(histogram.positive_spans, histogram.positive_counts).items():
        if histogram.uses_custom_buckets:
            lower = _custom_bound(index - 1, histogram.custom_bounds)
            upper = _custom_bound(index, histogram.custom_bounds)
            yield HistogramBucket(lower, upper, count, lower == -math.inf, True, index)
        else:
            lower = exponential_bound(index - 1, histogram.schema)
            yield HistogramBucket(lower, exponential_bound(index, histogram.schema), count, False, True, index)


def negative_buckets(histogram: NativeHistogram) -> Iterator[HistogramBucket]:
    """Downwards from zero."""
    for index, count in indexed(histogram.negative_spans, histogram.negative_counts).items():
        upper = -exponential_bound(index - 1, histogram.schema)
        yield HistogramBucket(-exponential_bound(index, histogram.schema), upper, count, True, False, index)


def zero_bucket(histogram: NativeHistogram) -> HistogramBucket:
    return HistogramBucket(-histogram.zero_threshold, histogram.zero_threshold, histogram.zero_count, True, True)


def all_buckets(histogram: NativeHistogram) -> list[HistogramBucket]:
    """Upwards over all of them; buckets that reach into the zero bucket end where it begins."""
    if histogram.uses_custom_buckets:
        return list(positive_buckets(histogram))
    threshold = histogram.zero_threshold
    found = [_clipped(bucket, threshold) for bucket in negative_buckets(histogram)][::-1]
    if histogram.zero_count > 0:
        found.append(zero_bucket(histogram))
    found.extend(_clipped(bucket, threshold) for bucket in positive_buckets(histogram))
    return found


def _clipped(bucket: HistogramBucket, threshold: float) -> HistogramBucket:
    if 0 < bucket.lower < threshold:
        return replace(bucket, lower=threshold)
    if -threshold < bucket.upper < 0:
        return replace(bucket, upper=-threshold)
    return bucket


def bucket_rows(histogram: NativeHistogram) -> list[tuple[int, float, float, float]]:
    """The populated buckets as the HTTP API lists them: kind of bounds, lower, upper, count.

    The kind says which bounds belong to the bucket: 0 the upper one, 1 the lower one, 2 none, 3 both.
    """
    kinds = {(False, True): 0, (True, False): 1, (False, False): 2, (True, True): 3}
    return [
        (kinds[bucket.lower_inclusive, bucket.upper_inclusive], bucket.lower, bucket.upper, bucket.count)
        for bucket in all_buckets(histogram)
        if bucket.count
    ]


# How can the same observations be laid out differently? Fewer buckets, no empty ones, a wider zero bucket.


def compacted(histogram: NativeHistogram) -> NativeHistogram:
    """Without empty buckets."""
    if 0 not in histogram.positive_counts and 0 not in histogram.negative_counts:
        return histogram
    positive = indexed(histogram.positive_spans, histogram.positive_counts)
    negative = indexed(histogram.negative_spans, histogram.negative_counts)
    return with_buckets(histogram, _populated(positive), _populated(negative))


def _populated(counts: Mapping[int, float]) -> dict[int, float]:
    return {index: count for index, count in counts.items() if count != 0}


def with_buckets(
    histogram: NativeHistogram, positive: Mapping[int, float], negative: Mapping[int, float]
) -> NativeHistogram:
    positive_spans, positive_counts = packed(positive)
    negative_spans, negative_counts = packed(negative)
    return replace(
        histogram,
        positive_spans=positive_spans,
        positive_counts=positive_counts,
        negative_spans=negative_spans,
        negative_counts=negative_counts,
    )


def coarser(counts: Mapping[int, float], schema: int, target: int) -> dict[int, float]:
    """Buckets of an exponential schema, merged to those of a lower one."""
    shift = schema - target
    merged: dict[int, float] = {}
    for index, count in counts.items():
        wider = ((index - 1) >> shift) + 1
        merged[wider] = merged.get(wider, 0.0) + count
    return merged


def at_schema(histogram: NativeHistogram, schema: int) -> NativeHistogram:
    """The histogram at an equal or lower resolution. Custom buckets have none; they stay as they are."""
    if histogram.uses_custom_buckets or schema >= histogram.schema:
        return histogram
    positive = coarser(indexed(histogram.positive_spans, histogram.positive_counts), histogram.schema, schema)
    negative = coarser(indexed(histogram.negative_spans, histogram.negative_counts), histogram.schema, schema)
    return replace(with_buckets(histogram, positive, negative), schema=schema)


def common_bounds(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    """The bounds that both have; buckets between them are merged."""
    known = set(right)
    return tuple(bound for bound in left if bound in known)


def rebounded(counts: Mapping[int, float], bounds: tuple[float, ...], target: tuple[float, ...]) -> dict[int, float]:
    """Custom buckets, merged to those of `target`, which must be some of their bounds."""
    merged: dict[int, float] = {}
    place = 0
    for index, count in counts.items():
        if index >= len(bounds):
            place = len(target)
        while place < len(target) and target[place] < bounds[index]:
            place += 1
        merged[place] = merged.get(place, 0.0) + count
    return merged


def with_zero_threshold(histogram: NativeHistogram, threshold: float) -> NativeHistogram:
    """The histogram with a zero bucket at least that wide; wider if a populated bucket would be cut."""
    if threshold <= histogram.zero_threshold:
        return histogram
    count, threshold = zero_count_at(histogram, threshold)
    schema = histogram.schema
    positive = indexed(histogram.positive_spans, histogram.positive_counts)
    negative = indexed(histogram.negative_spans, histogram.negative_counts)
    narrowed = with_buckets(histogram, _beyond(positive, schema, threshold), _beyond(negative, schema, threshold))
    return replace(narrowed, zero_threshold=threshold, zero_count=count)


def _beyond(counts: Mapping[int, float], schema: int, threshold: float) -> dict[int, float]:
    return {index: count for index, count in counts.items() if exponential_bound(index - 1, schema) >= threshold}


def zero_count_at(histogram: NativeHistogram, threshold: float) -> tuple[float, float]:
    """What the zero bucket would hold at a wider threshold, and that threshold, moved to the end of a cut bucket."""
    while True:
        count, moved = histogram.zero_count, threshold
        for bucket in positive_buckets(histogram):
            if bucket.lower >= moved:
                break
            count += bucket.count
            if bucket.upper > moved and bucket.count != 0:
                moved = bucket.upper
        for bucket in negative_buckets(histogram):
            if -bucket.upper >= moved:
                break
            count += bucket.count
            if -bucket.lower > moved and bucket.count != 0:
                moved = -bucket.lower
        if moved == threshold:
            return count, threshold
        threshold = moved


def same(left: NativeHistogram, right: NativeHistogram) -> bool:
    """Equal as data: NaN equals NaN, empty buckets and reset hints take no part."""
    return _content(compacted(left)) == _content(compacted(right))


def _content(histogram: NativeHistogram) -> tuple[object, ...]:
    return (
        histogram.schema,
        _comparable(histogram.count),
        _comparable(histogram.sum),
        histogram.zero_threshold,
        _comparable(histogram.zero_count),
        _absolute(histogram.positive_spans, histogram.positive_counts),
        _absolute(histogram.negative_spans, histogram.negative_counts),
        histogram.custom_bounds,
    )


def _absolute(spans: tuple[BucketSpan, ...], counts: tuple[float, ...]) -> tuple[tuple[int, object], ...]:
    return tuple((index, _comparable(count)) for index, count in indexed(spans, counts).items())


def _comparable(value: float) -> float | str:
    return "NaN" if value != value else value
