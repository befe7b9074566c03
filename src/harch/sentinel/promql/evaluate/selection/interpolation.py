"""What is a histogram between two samples?"""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.evaluate.speaker import Speaker
from harch.sentinel.promql.histograms.arithmetic import scaled
from harch.sentinel.promql.histograms.resets import detect_reset


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    time_ms: int
    histogram: Histogram
    start_ms: int = 0


def interpolated(
    before: HistogramPoint, after: HistogramPoint, moment_ms: int, is_counter: bool, speaker: Speaker
) -> Histogram:
    """The histogram at a moment between two samples; a counter that was reset there started at 0."""
    if moment_ms == before.time_ms:
        return before.histogram
    if moment_ms == after.time_ms:
        return after.histogram
    share = (moment_ms - before.time_ms) / (after.time_ms - before.time_ms)
    if is_counter and detect_reset(after.histogram, before.histogram):
        return scaled(after.histogram, share)
    difference = scaled(speaker.subtracted(after.histogram, before.histogram), share)
    return speaker.added(difference, before.histogram)
