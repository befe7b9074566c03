"""What is the sum, the difference, the average of histograms? Of two, and of many with compensated summation."""

# harch: pure

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import NativeHistogram, ResetHint
from harch.sentinel.promql.histograms.buckets import (
    at_schema,
    common_bounds,
    indexed,
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

    histogram: NativeHistogram
    resets_collide: bool = False  # one side says that the counter was reset, the other that it was not
    bounds_reconciled: bool = False  # custom bounds differed and were cut down to the common ones


def add(left: NativeHistogram, right: NativeHistogram) -> Combined:
    return _combined(left, right, 1.0)


def subtract(left: NativeHistogram, right: NativeHistogram) -> Combined:
    """The difference with the hints joined as for a sum; PromQL's `-` makes a gauge of it (`as_gauge`)."""
    return _combined(left, right, -1.0)


def as_gauge(histogram: NativeHistogram) -> NativeHistogram:
    return replace(histogram, reset_hint=ResetHint.GAUGE)


def scaled(histogram: NativeHistogram, factor: float) -> NativeHistogram:
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


def divided(histogram: NativeHistogram, divisor: float) -> NativeHistogram:
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


def _combined(left: NativeHistogram, right: NativeHistogram, sign: float) -> Combined:
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


def aligned(left: NativeHistogram, right: NativeHistogram) -> tuple[NativeHistogram, NativeHistogram]:
    """Both at the lower of their resolutions and with the same zero bucket."""
    while left.zero_threshold != right.zero_threshold:
        threshold = max(left.zero_threshold, right.zero_threshold)
        left, right = with_zero_threshold(left, threshold), with_zero_threshold(right, threshold)
    schema = min(left.schema, right.schema)
    return at_schema(left, schema), at_schema(right, schema)


def _combined_alike(left: NativeHistogram, right: NativeHistogram, sign: float) -> NativeHistogram:
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


def _combined_custom(left: NativeHistogram, right: NativeHistogram, sign: float) -> NativeHistogram:
    bounds = common_bounds(left.custom_bounds, right.custom_bounds)
    sides = [
        rebounded(indexed(side.positive_spans, side.positive_counts), side.custom_bounds, bounds)
        for side in (left, right)
    ]
    merged = {index: count for index, count in _merged(sides[0], sides[1], sign).items() if count != 0}
    return replace(with_buckets(left, merged, {}), custom_bounds=bounds)


# How are many numbers added without losing the small ones? Neumaier's variant of Kahan's summation.


def compensated(value: float, total: float, lost: float) -> tuple[float, float]:
    """The new total and what rounding has lost so far; their sum is the better result."""
    new = total + value
    if math.isinf(new):
        return new, 0.0
    if abs(total) >= abs(value):
        return new, lost + ((total - new) + value)
    return new, lost + ((value - new) + total)


class Total:
    """A running sum."""

    __slots__ = ("_lost", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._lost = 0.0

    def add(self, value: float) -> None:
        self._total, self._lost = compensated(value, self._total, self._lost)

    @property
    def value(self) -> float:
        return self._total + self._lost


# What is the sum, the average of many histograms? For sum, avg and their kin over time, with compensated summation.


def total_of(histograms: Sequence[NativeHistogram]) -> Combined:
    """The sum of at least one histogram. Raises IncompatibleHistograms for a mix of exponential and custom buckets."""
    if len(histograms) == 1:
        return Combined(histograms[0])
    alike, reconciled = _alike(histograms)
    layout = _Layout(alike)
    totals, lost = layout.numbers(alike[0]), [0.0] * layout.width
    for histogram in alike[1:]:
        totals, lost = _added(layout.numbers(histogram), totals, lost)
    summed = layout.histogram([total + rest for total, rest in zip(totals, lost, strict=True)])
    return Combined(summed, _collide(histograms), reconciled)


def average_of(histograms: Sequence[NativeHistogram]) -> Combined:
    """The mean of at least one histogram; from where the sum overflows, computed step by step instead."""
    if len(histograms) == 1:
        return Combined(histograms[0])
    alike, reconciled = _alike(histograms)
    layout = _Layout(alike)
    means = layout.histogram(_means([layout.numbers(histogram) for histogram in alike]))
    return Combined(means, _collide(histograms), reconciled)


def _means(rows: Sequence[list[float]]) -> list[float]:
    values, lost = rows[0], [0.0] * len(rows[0])
    overflows = False
    for place, row in enumerate(rows[1:], start=2):
        if not overflows:
            totals, rest = _added(row, values, lost)
            if not any(map(math.isinf, totals)):
                values, lost = totals, rest
                continue
            overflows = True
            values, lost = [value / (place - 1) for value in values], [rest / (place - 1) for rest in lost]
        kept = (place - 1) / place
        share = [number / place for number in row]
        values, lost = _added(share, [kept * value for value in values], [kept * rest for rest in lost])
    divisor = 1.0 if overflows else float(len(rows))
    return [value / divisor + rest / divisor for value, rest in zip(values, lost, strict=True)]


def _added(row: list[float], totals: list[float], lost: list[float]) -> tuple[list[float], list[float]]:
    pairs = [compensated(*numbers) for numbers in zip(row, totals, lost, strict=True)]
    return [total for total, _ in pairs], [rest for _, rest in pairs]


class _Layout:
    """Histograms of one layout as rows of numbers: count, sum, zero bucket, then every bucket that any of them has."""

    def __init__(self, alike: Sequence[NativeHistogram]) -> None:
        self._first = first = alike[0]
        self._is_uniform = all(
            histogram.positive_spans == first.positive_spans and histogram.negative_spans == first.negative_spans
            for histogram in alike
        )
        self._hint = reduce(joined_hint, (histogram.reset_hint for histogram in alike))
        sides = [_sides(histogram) for histogram in (alike[:1] if self._is_uniform else alike)]
        self._positive = sorted(set().union(*(positive for positive, _ in sides)))
        self._negative = sorted(set().union(*(negative for _, negative in sides)))

    @property
    def width(self) -> int:
        return 3 + len(self._positive) + len(self._negative)

    def numbers(self, histogram: NativeHistogram) -> list[float]:
        if self._is_uniform:
            totals = (histogram.count, histogram.sum, histogram.zero_count)
            return [*totals, *histogram.positive_counts, *histogram.negative_counts]
        positive, negative = _sides(histogram)
        row = [histogram.count, histogram.sum, histogram.zero_count]
        row.extend(positive.get(index, 0.0) for index in self._positive)
        row.extend(negative.get(index, 0.0) for index in self._negative)
        return row

    def histogram(self, numbers: list[float]) -> NativeHistogram:
        count, total, zero = numbers[:3]
        split = 3 + len(self._positive)
        bare = replace(self._first, count=count, sum=total, zero_count=zero, reset_hint=self._hint, is_integer=False)
        return with_buckets(
            bare,
            dict(zip(self._positive, numbers[3:split], strict=True)),
            dict(zip(self._negative, numbers[split:], strict=True)),
        )


def _sides(histogram: NativeHistogram) -> tuple[dict[int, float], dict[int, float]]:
    return (
        indexed(histogram.positive_spans, histogram.positive_counts),
        indexed(histogram.negative_spans, histogram.negative_counts),
    )


def _alike(histograms: Sequence[NativeHistogram]) -> tuple[list[NativeHistogram], bool]:
    """All of them in one layout that each can be brought to, and whether custom bounds had to be dropped for it."""
    first = histograms[0]
    if any(histogram.uses_custom_buckets != first.uses_custom_buckets for histogram in histograms):
        raise IncompatibleHistograms
    if first.uses_custom_buckets:
        return _alike_custom(histograms)
    changed = list(histograms)
    threshold = max(histogram.zero_threshold for histogram in changed)
    while any(histogram.zero_threshold != threshold for histogram in changed):
        changed = [with_zero_threshold(histogram, threshold) for histogram in changed]
        threshold = max(histogram.zero_threshold for histogram in changed)
    schema = min(histogram.schema for histogram in changed)
    return [at_schema(histogram, schema) for histogram in changed], False


def _alike_custom(histograms: Sequence[NativeHistogram]) -> tuple[list[NativeHistogram], bool]:
    bounds = histograms[0].custom_bounds
    reconciled = False
    for histogram in histograms[1:]:
        reconciled = reconciled or histogram.custom_bounds != bounds
        bounds = common_bounds(bounds, histogram.custom_bounds)
    if not reconciled:
        return list(histograms), False
    changed = []
    for histogram in histograms:
        counts = indexed(histogram.positive_spans, histogram.positive_counts)
        merged = rebounded(counts, histogram.custom_bounds, bounds)
        changed.append(replace(with_buckets(histogram, merged, {}), custom_bounds=bounds))
    return changed, True


def _collide(histograms: Sequence[NativeHistogram]) -> bool:
    hints = {histogram.reset_hint for histogram in histograms}
    return ResetHint.RESET in hints and ResetHint.NOT_RESET in hints
