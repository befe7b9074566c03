"""How can the same observations be laid out differently? Fewer buckets, no empty ones, a wider zero bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harch.sentinel.model.histograms import Histogram, Span
from harch.sentinel.promql.histograms.buckets import (
    exponential_bound,
    indexed,
    negative_buckets,
    packed,
    positive_buckets,
)


def compacted(histogram: Histogram) -> Histogram:
    """Without empty buckets."""
    if 0 not in histogram.positive_counts and 0 not in histogram.negative_counts:
        return histogram
    positive = indexed(histogram.positive_spans, histogram.positive_counts)
    negative = indexed(histogram.negative_spans, histogram.negative_counts)
    return with_buckets(histogram, _populated(positive), _populated(negative))


def _populated(counts: Mapping[int, float]) -> dict[int, float]:
    return {index: count for index, count in counts.items() if count != 0}


def with_buckets(histogram: Histogram, positive: Mapping[int, float], negative: Mapping[int, float]) -> Histogram:
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


def at_schema(histogram: Histogram, schema: int) -> Histogram:
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


def with_zero_threshold(histogram: Histogram, threshold: float) -> Histogram:
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


def zero_count_at(histogram: Histogram, threshold: float) -> tuple[float, float]:
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


def same(left: Histogram, right: Histogram) -> bool:
    """Equal as data: NaN equals NaN, empty buckets and reset hints take no part."""
    return _content(compacted(left)) == _content(compacted(right))


def _content(histogram: Histogram) -> tuple[object, ...]:
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


def _absolute(spans: tuple[Span, ...], counts: tuple[float, ...]) -> tuple[tuple[int, object], ...]:
    return tuple((index, _comparable(count)) for index, count in indexed(spans, counts).items())


def _comparable(value: float) -> float | str:
    return "NaN" if value != value else value
