"""How has a histogram changed over a window, and has its counter begun anew?

What rate, increase, delta, irate and idelta are made of.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import lt

from harch.sentinel.model.histograms import NativeHistogram, ResetHint
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms, add, as_gauge, subtract
from harch.sentinel.promql.histograms.buckets import (
    at_schema,
    common_bounds,
    compacted,
    indexed,
    rebounded,
    with_zero_threshold,
)


def detect_reset(current: NativeHistogram, previous: NativeHistogram) -> bool:
    """Hints decide where they know. A finer resolution or a narrower zero bucket can only come with a reset, too."""
    if current.reset_hint is ResetHint.RESET:
        return True
    if current.reset_hint is ResetHint.NOT_RESET:
        return False
    return fell(current, previous)


def fell(current: NativeHistogram, previous: NativeHistogram) -> bool:
    """As `detect_reset`, but by the counts alone."""
    if current.count < previous.count or current.uses_custom_buckets != previous.uses_custom_buckets:
        return True
    if _same_layout(current, previous):
        # Nearly all samples of a series: compared without a step of Python per bucket.
        return (
            current.zero_count < previous.zero_count
            or any(map(lt, current.positive_counts, previous.positive_counts))
            or any(map(lt, current.negative_counts, previous.negative_counts))
        )
    if current.uses_custom_buckets:
        return _custom_fell(current, previous)
    if current.schema > previous.schema or current.zero_threshold < previous.zero_threshold:
        return True
    widened = with_zero_threshold(previous, current.zero_threshold)
    if widened.zero_threshold != current.zero_threshold or current.zero_count < widened.zero_count:
        return True
    before = at_schema(widened, current.schema)
    return _any_fell(
        indexed(current.positive_spans, current.positive_counts), indexed(before.positive_spans, before.positive_counts)
    ) or _any_fell(
        indexed(current.negative_spans, current.negative_counts), indexed(before.negative_spans, before.negative_counts)
    )


def _same_layout(current: NativeHistogram, previous: NativeHistogram) -> bool:
    return (
        current.schema == previous.schema
        and current.zero_threshold == previous.zero_threshold
        and current.positive_spans == previous.positive_spans
        and current.negative_spans == previous.negative_spans
        and current.custom_bounds == previous.custom_bounds
    )


def _any_fell(current: Mapping[int, float], previous: Mapping[int, float]) -> bool:
    for index, count in previous.items():
        known = current.get(index)
        if (known is None and count != 0) or (known is not None and known < count):
            return True
    return False


def _custom_fell(current: NativeHistogram, previous: NativeHistogram) -> bool:
    now = indexed(current.positive_spans, current.positive_counts)
    then = indexed(previous.positive_spans, previous.positive_counts)
    if current.custom_bounds != previous.custom_bounds:
        bounds = common_bounds(current.custom_bounds, previous.custom_bounds)
        now, then = rebounded(now, current.custom_bounds, bounds), rebounded(then, previous.custom_bounds, bounds)
    return _any_fell(now, then)


def with_hint_after(current: NativeHistogram, previous: NativeHistogram | None) -> NativeHistogram:
    """The hint a store keeps: gauges stay gauges, a counter that went on in the same layout says so, else unknown.

    Prometheus forgets on disk that it saw a reset and finds it again by the counts; so does this.
    """
    if current.reset_hint is ResetHint.GAUGE or current.is_stale:
        return current
    went_on = (
        previous is not None
        and not previous.is_stale
        and previous.reset_hint is not ResetHint.GAUGE
        and current.reset_hint is not ResetHint.RESET
        and current.schema == previous.schema
        and current.zero_threshold == previous.zero_threshold
        and current.custom_bounds == previous.custom_bounds
        and not fell(current, previous)
    )
    return replace(current, reset_hint=ResetHint.NOT_RESET if went_on else ResetHint.UNKNOWN)


# How has a histogram changed over a window? What rate, increase, delta, irate and idelta are made of.


class HistogramWarning(Enum):
    """What should be said beside a result."""

    NOT_A_COUNTER = "not a counter"
    NOT_A_GAUGE = "not a gauge"
    MIXED_BUCKETS = "mix of exponential and custom buckets"
    RECONCILED_IN_SUBTRACTION = "custom bounds reconciled in a subtraction"
    RECONCILED_IN_ADDITION = "custom bounds reconciled in an addition"


@dataclass(frozen=True, slots=True)
class HistogramChange:
    """The difference over a window, not yet extrapolated; None where the histograms do not fit together."""

    histogram: NativeHistogram | None
    findings: frozenset[HistogramWarning] = frozenset()


_MIXED = HistogramChange(None, frozenset({HistogramWarning.MIXED_BUCKETS}))


def counter_increase(histograms: Sequence[NativeHistogram], restarted: Sequence[bool] = ()) -> HistogramChange:
    """By how much did a counter grow over at least two samples, resets made good?

    `restarted[i]` says that sample i counts from a later start than the one before, whatever its counts say.
    """
    findings: set[HistogramWarning] = set()
    if any(histogram.reset_hint is ResetHint.GAUGE for histogram in histograms):
        findings.add(HistogramWarning.NOT_A_COUNTER)
    resets = [False] + [
        bool(restarted and restarted[place]) or detect_reset(histograms[place], histograms[place - 1])
        for place in range(1, len(histograms))
    ]
    # What the counter had before a reset right after the first sample is not part of the window, nor is its layout.
    skipped = resets[1]
    relevant = histograms[1:] if skipped else histograms
    if any(histogram.uses_custom_buckets != relevant[-1].uses_custom_buckets for histogram in relevant):
        return _MIXED
    schema = min(histogram.schema for histogram in relevant)
    result = at_schema(histograms[-1], schema)
    if not skipped:
        difference = subtract(result, histograms[0])
        result = difference.histogram
        if difference.bounds_reconciled:
            findings.add(HistogramWarning.RECONCILED_IN_SUBTRACTION)
    for place in range(2 if skipped else 1, len(histograms)):
        if resets[place]:
            corrected = add(result, histograms[place - 1])
            result = corrected.histogram
            if corrected.bounds_reconciled:
                findings.add(HistogramWarning.RECONCILED_IN_ADDITION)
    return HistogramChange(as_gauge(compacted(result)), frozenset(findings))


def gauge_change(histograms: Sequence[NativeHistogram]) -> HistogramChange:
    """By how much did a gauge change from the first to the last sample?"""
    first, last = histograms[0], histograms[-1]
    return _difference(first, last, is_counter=False)


def last_change(
    previous: NativeHistogram, last: NativeHistogram, *, is_counter: bool, restarted: bool = False
) -> HistogramChange:
    """The change between two neighbours: a counter that was reset has grown by all that it has now."""
    if is_counter and (restarted or detect_reset(last, previous)):
        return HistogramChange(as_gauge(compacted(last)), _kind_findings(previous, last, is_counter=True))
    return _difference(previous, last, is_counter=is_counter)


def _difference(first: NativeHistogram, last: NativeHistogram, *, is_counter: bool) -> HistogramChange:
    findings = _kind_findings(first, last, is_counter=is_counter)
    try:
        difference = subtract(last, first)
    except IncompatibleHistograms:
        return HistogramChange(None, findings | {HistogramWarning.MIXED_BUCKETS})
    if difference.bounds_reconciled:
        findings |= {HistogramWarning.RECONCILED_IN_SUBTRACTION}
    return HistogramChange(as_gauge(compacted(difference.histogram)), findings)


def _kind_findings(first: NativeHistogram, last: NativeHistogram, *, is_counter: bool) -> frozenset[HistogramWarning]:
    gauges = [histogram.reset_hint is ResetHint.GAUGE for histogram in (first, last)]
    if is_counter:
        return frozenset({HistogramWarning.NOT_A_COUNTER} if any(gauges) else ())
    return frozenset(() if all(gauges) else {HistogramWarning.NOT_A_GAUGE})
