"""How has a histogram changed over a window? What rate, increase, delta, irate and idelta are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms, add, as_gauge, subtract
from harch.sentinel.promql.histograms.layout import at_schema, compacted
from harch.sentinel.promql.histograms.resets import detect_reset


class Finding(Enum):
    """What should be said beside a result."""

    NOT_A_COUNTER = "not a counter"
    NOT_A_GAUGE = "not a gauge"
    MIXED_BUCKETS = "mix of exponential and custom buckets"
    RECONCILED_IN_SUBTRACTION = "custom bounds reconciled in a subtraction"
    RECONCILED_IN_ADDITION = "custom bounds reconciled in an addition"


@dataclass(frozen=True, slots=True)
class Change:
    """The difference over a window, not yet extrapolated; None where the histograms do not fit together."""

    histogram: Histogram | None
    findings: frozenset[Finding] = frozenset()


_MIXED = Change(None, frozenset({Finding.MIXED_BUCKETS}))


def counter_increase(histograms: Sequence[Histogram], restarted: Sequence[bool] = ()) -> Change:
    """By how much did a counter grow over at least two samples, resets made good?

    `restarted[i]` says that sample i counts from a later start than the one before, whatever its counts say.
    """
    findings: set[Finding] = set()
    if any(histogram.reset_hint is ResetHint.GAUGE for histogram in histograms):
        findings.add(Finding.NOT_A_COUNTER)
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
            findings.add(Finding.RECONCILED_IN_SUBTRACTION)
    for place in range(2 if skipped else 1, len(histograms)):
        if resets[place]:
            corrected = add(result, histograms[place - 1])
            result = corrected.histogram
            if corrected.bounds_reconciled:
                findings.add(Finding.RECONCILED_IN_ADDITION)
    return Change(as_gauge(compacted(result)), frozenset(findings))


def gauge_change(histograms: Sequence[Histogram]) -> Change:
    """By how much did a gauge change from the first to the last sample?"""
    first, last = histograms[0], histograms[-1]
    return _difference(first, last, is_counter=False)


def last_change(previous: Histogram, last: Histogram, *, is_counter: bool, restarted: bool = False) -> Change:
    """The change between two neighbours: a counter that was reset has grown by all that it has now."""
    if is_counter and (restarted or detect_reset(last, previous)):
        return Change(as_gauge(compacted(last)), _kind_findings(previous, last, is_counter=True))
    return _difference(previous, last, is_counter=is_counter)


def _difference(first: Histogram, last: Histogram, *, is_counter: bool) -> Change:
    findings = _kind_findings(first, last, is_counter=is_counter)
    try:
        difference = subtract(last, first)
    except IncompatibleHistograms:
        return Change(None, findings | {Finding.MIXED_BUCKETS})
    if difference.bounds_reconciled:
        findings |= {Finding.RECONCILED_IN_SUBTRACTION}
    return Change(as_gauge(compacted(difference.histogram)), findings)


def _kind_findings(first: Histogram, last: Histogram, *, is_counter: bool) -> frozenset[Finding]:
    gauges = [histogram.reset_hint is ResetHint.GAUGE for histogram in (first, last)]
    if is_counter:
        return frozenset({Finding.NOT_A_COUNTER} if any(gauges) else ())
    return frozenset(() if all(gauges) else {Finding.NOT_A_GAUGE})
