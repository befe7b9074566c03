"""Where are the samples of a test file kept while it runs? In dictionaries; small, slow and easy to trust.

For `harch sentinel rules test` and for the files of `harch.testing.promqltest`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.selection import Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.histograms.counters import with_hint_after

Sample = tuple[float | NativeHistogram, int]  # value, start time or 0


class MemoryStore:
    """A Queryable. Histograms get the reset hints that Prometheus' own store would hand out."""

    def __init__(self) -> None:
        self._series: dict[Labels, dict[int, Sample]] = {}

    def append(self, labels: Labels, time_ms: int, value: float | NativeHistogram, start_ms: int = 0) -> None:
        """In any order; a later value for the same time replaces the earlier one."""
        self._series.setdefault(labels, {})[time_ms] = (value, start_ms)

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        chosen = self._matching(matchers)
        first: list[int] = []
        count: list[int] = []
        times: list[int] = []
        values: list[float] = []
        starts: list[int] = []
        places: list[int] = []
        histograms: list[NativeHistogram] = []
        for labels in chosen:
            first.append(len(times))
            for time_ms, value, start_ms in _in_order(self._series[labels]):
                if not start <= time_ms <= end:
                    continue
                is_histogram = isinstance(value, NativeHistogram)
                times.append(time_ms)
                values.append(value.sum if isinstance(value, NativeHistogram) else value)
                starts.append(start_ms)
                places.append(len(histograms) if is_histogram else -1)
                if isinstance(value, NativeHistogram):
                    histograms.append(value)
            count.append(len(times) - first[-1])
            if len(times) > limit:
                raise HarchError("E0603", f"more than {limit} samples")
        samples = Samples(
            first=np.array(first, np.int64),
            count=np.array(count, np.int64),
            timestamps=np.array(times, np.int64),
            values=np.array(values, np.float64),
            starts=np.array(starts, np.int64) if any(starts) else None,
            histogram_at=np.array(places, np.int32) if histograms else None,
            histograms=histograms,
        )
        return Selection(SeriesTable.of(chosen), samples)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        found = [
            labels
            for labels in self._matching(matchers)
            if any(start <= time_ms <= end for time_ms in self._series[labels])
        ]
        return SeriesTable.of(found)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()

    def _matching(self, matchers: Sequence[Matcher]) -> list[Labels]:
        return sorted(
            labels
            for labels in self._series
            if all(matcher.matches(dict(labels).get(matcher.name, "")) for matcher in matchers)
        )


def _in_order(samples: dict[int, Sample]) -> list[tuple[int, float | NativeHistogram, int]]:
    ordered = []
    previous: NativeHistogram | None = None
    for time_ms in sorted(samples):
        value, start_ms = samples[time_ms]
        if isinstance(value, NativeHistogram):
            value = previous = with_hint_after(value, previous)
        else:
            previous = None
        ordered.append((time_ms, value, start_ms))
    return ordered
