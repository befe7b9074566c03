"""How many lines, and how many bytes, lie in each window? Sums of differences over steps, chunk by chunk.

A line at time t is in the windows `(end - range, end]` of a run of steps. Adding it where the run begins and taking it
away behind its end, then summing along the steps, counts all windows at once; whole numbers, so nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harch.sentinel.model.selection import Ints
from harch.sentinel.promql.evaluate.budget import Budget
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.values import Floats

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Steps:
    """The ends of all windows, in nanoseconds: `first_ns`, then one every `step_ns`."""

    first_ns: int
    step_ns: int
    count: int
    range_ns: int

    @staticmethod
    def of(grid: Grid, range_ns: int, offset_ns: int) -> Steps:
        return Steps(grid.start_ms * MS - offset_ns, grid.step_ms * MS, grid.count, range_ns)

    @property
    def last_ns(self) -> int:
        return self.first_ns + (self.count - 1) * self.step_ns

    @property
    def start_ns(self) -> int:
        """The first time that is in any window."""
        return self.first_ns - self.range_ns + 1

    @property
    def end_ns(self) -> int:
        """Behind the last time that is in any window."""
        return self.last_ns + 1

    @property
    def ends_ns(self) -> Ints:
        return self.first_ns + np.arange(self.count, dtype=np.int64) * self.step_ns

    def runs(self, times_ns: Ints) -> tuple[Ints, Ints]:
        """The first window of each time, and the first one behind its last."""
        if self.count == 1 or not self.step_ns:
            inside = (times_ns > self.first_ns - self.range_ns) & (times_ns <= self.first_ns)
            return np.zeros(len(times_ns), np.int64), inside.astype(np.int64)
        ahead = times_ns - self.first_ns
        begin = np.maximum(-(-ahead // self.step_ns), 0)
        behind = np.minimum(-(-(ahead + self.range_ns) // self.step_ns), self.count)
        return begin, np.maximum(behind, begin)


@dataclass(slots=True)
class Counters:
    """Counts and sizes of lines, by series and step."""

    steps: Steps
    budget: Budget
    with_bytes: bool
    _lines: Ints = field(init=False)
    _bytes: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._lines = np.zeros((0, self.steps.count + 1), np.int64)
        self._bytes = self._lines

    def add(self, series: Ints, times_ns: Ints, text_bytes: Ints, series_count: int) -> None:
        self._grow(series_count)
        begin, behind = self.steps.runs(times_ns)
        inside = begin < behind
        series, begin, behind = series[inside], begin[inside], behind[inside]
        np.add.at(self._lines, (series, begin), 1)
        np.subtract.at(self._lines, (series, behind), 1)
        if self.with_bytes:
            np.add.at(self._bytes, (series, begin), text_bytes[inside])
            np.subtract.at(self._bytes, (series, behind), text_bytes[inside])

    def _grow(self, series_count: int) -> None:
        if series_count <= len(self._lines):
            return
        room = max(series_count, 2 * len(self._lines))
        self.budget.reserve_points(room * (2 if self.with_bytes else 1), self.steps.count + 1)
        self._lines = _wider(self._lines, room)
        if self.with_bytes:
            self._bytes = _wider(self._bytes, room)

    def lines(self, series_count: int) -> Ints:
        """[series, step]"""
        return self._summed(self._lines, series_count)

    def sizes(self, series_count: int) -> Ints:
        return self._summed(self._bytes, series_count)

    def _summed(self, matrix: Ints, series_count: int) -> Ints:
        self._grow(series_count)
        summed: Ints = np.cumsum(matrix[:series_count], axis=1)[:, : self.steps.count]
        return summed


def _wider(matrix: Ints, rows: int) -> Ints:
    wider = np.zeros((rows, matrix.shape[1]), np.int64)
    wider[: len(matrix)] = matrix
    return wider


def per_second(values: Floats, range_ns: int) -> Floats:
    result: Floats = values / (range_ns / 1e9)
    return result
