"""Has a counter begun anew? Any count that fell between two histograms says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import lt

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.histograms.buckets import indexed
from harch.sentinel.promql.histograms.layout import at_schema, common_bounds, rebounded, with_zero_threshold


def detect_reset(current: Histogram, previous: Histogram) -> bool:
    """Hints decide where they know. A finer resolution or a narrower zero bucket can only come with a reset, too."""
    if current.reset_hint is ResetHint.RESET:
        return True
    if current.reset_hint is ResetHint.NOT_RESET:
        return False
    return fell(current, previous)


def fell(current: Histogram, previous: Histogram) -> bool:
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


def _same_layout(current: Histogram, previous: Histogram) -> bool:
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


def _custom_fell(current: Histogram, previous: Histogram) -> bool:
    now = indexed(current.positive_spans, current.positive_counts)
    then = indexed(previous.positive_spans, previous.positive_counts)
    if current.custom_bounds != previous.custom_bounds:
        bounds = common_bounds(current.custom_bounds, previous.custom_bounds)
        now, then = rebounded(now, current.custom_bounds, bounds), rebounded(then, previous.custom_bounds, bounds)
    return _any_fell(now, then)


def with_hint_after(current: Histogram, previous: Histogram | None) -> Histogram:
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
