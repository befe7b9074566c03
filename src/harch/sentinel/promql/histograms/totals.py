"""What is the sum, the average of many histograms? For sum, avg and their kin over time, with compensated summation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.histograms.arithmetic import Combined, IncompatibleHistograms, joined_hint
from harch.sentinel.promql.histograms.buckets import indexed
from harch.sentinel.promql.histograms.layout import (
    at_schema,
    common_bounds,
    rebounded,
    with_buckets,
    with_zero_threshold,
)
from harch.sentinel.promql.histograms.summation import compensated


def total_of(histograms: Sequence[Histogram]) -> Combined:
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


def average_of(histograms: Sequence[Histogram]) -> Combined:
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

    def __init__(self, alike: Sequence[Histogram]) -> None:
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

    def numbers(self, histogram: Histogram) -> list[float]:
        if self._is_uniform:
            totals = (histogram.count, histogram.sum, histogram.zero_count)
            return [*totals, *histogram.positive_counts, *histogram.negative_counts]
        positive, negative = _sides(histogram)
        row = [histogram.count, histogram.sum, histogram.zero_count]
        row.extend(positive.get(index, 0.0) for index in self._positive)
        row.extend(negative.get(index, 0.0) for index in self._negative)
        return row

    def histogram(self, numbers: list[float]) -> Histogram:
        count, total, zero = numbers[:3]
        split = 3 + len(self._positive)
        bare = replace(self._first, count=count, sum=total, zero_count=zero, reset_hint=self._hint, is_integer=False)
        return with_buckets(
            bare,
            dict(zip(self._positive, numbers[3:split], strict=True)),
            dict(zip(self._negative, numbers[split:], strict=True)),
        )


def _sides(histogram: Histogram) -> tuple[dict[int, float], dict[int, float]]:
    return (
        indexed(histogram.positive_spans, histogram.positive_counts),
        indexed(histogram.negative_spans, histogram.negative_counts),
    )


def _alike(histograms: Sequence[Histogram]) -> tuple[list[Histogram], bool]:
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


def _alike_custom(histograms: Sequence[Histogram]) -> tuple[list[Histogram], bool]:
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


def _collide(histograms: Sequence[Histogram]) -> bool:
    hints = {histogram.reset_hint for histogram in histograms}
    return ResetHint.RESET in hints and ResetHint.NOT_RESET in hints
