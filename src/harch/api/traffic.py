"""How many requests does a hub answer, and how fast? Counted at the front door, for the public dashboards."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Traffic:
    """Counts since the start of the process. Streams count when they end and have no duration."""

    def __init__(self) -> None:
        self.by_status: Counter[str] = Counter()
        self.seconds = 0.0
        self._below = [0] * (len(BOUNDS_S) + 1)

    def count(self, status: int, took_s: float) -> None:
        self.by_status[f"{status // 100}xx"] += 1
        self.seconds += took_s
        self._below[bisect_left(BOUNDS_S, took_s)] += 1

    def durations(self) -> Iterator[tuple[str, int]]:
        """Cumulative counts by upper bound; the last one is all."""
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"), self._below, strict=True):
            total += count
            yield bound, total
