"""What is the sum, the difference, the multiple of histograms?"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.histograms.buckets import indexed
from harch.sentinel.promql.histograms.layout import (
    at_schema,
    common_bounds,
    rebounded,
    with_buckets,
    with_zero_threshold,
)


class IncompatibleHistograms(HarchError):
    """Exponential and custom buckets have no bounds in common, so nothing can be computed from both."""

    def __init__(self) -> None:
        sentence = "histograms with exponential and with custom buckets cannot be combined"
        super().__init__("E0623", sentence, hint="select one kind, for example by a label")


@dataclass(frozen=True, slots=True)
class Combined:
    """A result, and what should be said beside it."""

    histogram: Histogram
    resets_collide: bool = False  # one side says that the counter was reset, the other that it was not
    bounds_reconciled: bool = False  # custom bounds differed and were cut down to the common ones


def add(left: Histogram, right: Histogram) -> Combined:
    return _combined(left, right, 1.0)


def subtract(left: Histogram, right: Histogram) -> Combined:
    """The difference with the hints joined as for a sum; PromQL's `-` makes a gauge of it (`as_gauge`)."""
    return _combined(left, right, -1.0)


def as_gauge(histogram: Histogram) -> Histogram:
    return replace(histogram, reset_hint=ResetHint.GAUGE)


def scaled(histogram: Histogram, factor: float) -> Histogram:
    """Every count and the sum times a factor; a negative factor makes a gauge of a counter."""
    return replace(
        histogram,
        count=histogram.count * factor,
        sum=histogram.sum * factor,
        zero_count=histogram.zero_count * factor,
        positive_counts=tuple(count * factor for count in histogram.positive_counts),
        negative_counts=tuple(count * factor for count in histogram.negative_counts),
        reset_hint=ResetHint.GAUGE if factor < 0 else histogram.reset_hint,
        is_integer=False,
    )


def divided(histogram: Histogram, divisor: float) -> Histogram:
    """Division by zero leaves infinities in count, sum and zero bucket, and no other buckets."""
    if divisor == 0:
        return replace(
            histogram,
            count=_over_zero(histogram.count, divisor),
            sum=_over_zero(histogram.sum, divisor),
            zero_count=_over_zero(histogram.zero_count, divisor),
            positive_spans=(),
            positive_counts=(),
            negative_spans=(),
            negative_counts=(),
            is_integer=False,
        )
    return replace(
        histogram,
        count=histogram.count / divisor,
        sum=histogram.sum / divisor,
        zero_count=histogram.zero_count / divisor,
        positive_counts=tuple(count / divisor for count in histogram.positive_counts),
        negative_counts=tuple(count / divisor for count in histogram.negative_counts),
        reset_hint=ResetHint.GAUGE if divisor < 0 else histogram.reset_hint,
        is_integer=False,
    )


def _over_zero(value: float, zero: float) -> float:
    if value == 0 or value != value:
        return math.nan
    return math.copysign(math.inf, value) * math.copysign(1.0, zero)


def joined_hint(left: ResetHint, right: ResetHint) -> ResetHint:
    """A gauge makes all a gauge; what is unknown, or contradicts itself, is unknown."""
    if left is right:
        return left
    if ResetHint.GAUGE in (left, right):
        return ResetHint.GAUGE
    return ResetHint.UNKNOWN


def _combined(left: Histogram, right: Histogram, sign: float) -> Combined:
    if left.uses_custom_buckets != right.uses_custom_buckets:
        raise IncompatibleHistograms
    collide = {left.reset_hint, right.reset_hint} == {ResetHint.RESET, ResetHint.NOT_RESET}
    reconciled = left.custom_bounds != right.custom_bounds
    if left.uses_custom_buckets:
        result = _combined_custom(left, right, sign) if reconciled else _combined_alike(left, right, sign)
    else:
        left, right = aligned(left, right)
        result = _combined_alike(left, right, sign)
    totals = replace(
        result,
        count=left.count + sign * right.count,
        sum=left.sum + sign * right.sum,
        zero_count=left.zero_count + sign * right.zero_count,
        reset_hint=joined_hint(left.reset_hint, right.reset_hint),
        is_integer=left.is_integer and right.is_integer,
    )
    return Combined(totals, collide, left.uses_custom_buckets and reconciled)


def aligned(left: Histogram, right: Histogram) -> tuple[Histogram, Histogram]:
    """Both at the lower of their resolutions and with the same zero bucket."""
    while left.zero_threshold != right.zero_threshold:
        threshold = max(left.zero_threshold, right.zero_threshold)
        left, right = with_zero_threshold(left, threshold), with_zero_threshold(right, threshold)
    schema = min(left.schema, right.schema)
    return at_schema(left, schema), at_schema(right, schema)


def _combined_alike(left: Histogram, right: Histogram, sign: float) -> Histogram:
    if left.positive_spans == right.positive_spans and left.negative_spans == right.negative_spans:
        return replace(
            left,
            positive_counts=_elementwise(left.positive_counts, right.positive_counts, sign),
            negative_counts=_elementwise(left.negative_counts, right.negative_counts, sign),
        )
    positive = _merged(
        indexed(left.positive_spans, left.positive_counts), indexed(right.positive_spans, right.positive_counts), sign
    )
    negative = _merged(
        indexed(left.negative_spans, left.negative_counts), indexed(right.negative_spans, right.negative_counts), sign
    )
    return with_buckets(left, positive, negative)


def _elementwise(left: tuple[float, ...], right: tuple[float, ...], sign: float) -> tuple[float, ...]:
    return tuple(map(operator.add if sign > 0 else operator.sub, left, right))


def _merged(left: Mapping[int, float], right: Mapping[int, float], sign: float) -> dict[int, float]:
    merged = dict(left)
    for index, count in right.items():
        merged[index] = merged.get(index, 0.0) + sign * count
    return merged


def _combined_custom(left: Histogram, right: Histogram, sign: float) -> Histogram:
    bounds = common_bounds(left.custom_bounds, right.custom_bounds)
    sides = [
        rebounded(indexed(side.positive_spans, side.positive_counts), side.custom_bounds, bounds)
        for side in (left, right)
    ]
    merged = {index: count for index, count in _merged(sides[0], sides[1], sign).items() if count != 0}
    return replace(with_buckets(left, merged, {}), custom_bounds=bounds)
