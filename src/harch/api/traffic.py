"""How many requests does a hub answer, and how fast? Counted at the front door, for the public dashboards."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NAMES = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Traced(NamedTuple):
    """An answer whose trace can be looked at."""

    trace_id: str
    took_s: float
    at_s: float


class Traffic:
    """Counts since the start of the process. Streams count when they end and have no duration."""

    def __init__(self) -> None:
        self.by_status: Counter[str] = Counter()
        self.seconds = 0.0
        self._below = [0] * (len(BOUNDS_S) + 1)
        self._traces: dict[int, Traced] = {}

    def count(self, status: int, took_s: float) -> None:
        self.by_status[f"{status // 100}xx"] += 1
        self.seconds += took_s
        self._below[bisect_left(BOUNDS_S, took_s)] += 1

    def traced(self, took_s: float, trace_id: str, at_s: float) -> None:
        """An answer that was counted belongs to a trace."""
        self._traces[bisect_left(BOUNDS_S, took_s)] = Traced(trace_id, took_s, at_s)

    def traces(self) -> dict[str, Traced]:
        """The newest by upper bound."""
        return {_NAMES[bucket]: traced for bucket, traced in self._traces.items()}

    def durations(self) -> Iterator[tuple[str, int]]:
        """Cumulative counts by upper bound; the last one is all."""
        total = 0
        for bound, count in zip(_NAMES, self._below, strict=True):
            total += count
            yield bound, total
