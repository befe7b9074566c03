"""May this query go on? Time, samples, memory and cancellation, asked between nodes and chunks of kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from harch.base.errors import HarchError
from harch.sentinel.model.selection import Floats
from harch.sentinel.promql.evaluate.options import Limits

Item = TypeVar("Item")

_LOOK_EVERY = 256
_BYTES_A_POINT = 9  # a float and a presence flag


class Budget:
    """What is left of a query's limits. Every method raises when the query must stop."""

    def __init__(
        self,
        limits: Limits,
        *,
        monotonic_s: Callable[[], float],
        timeout_s: float | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._timeout_s = min(limits.timeout_s, timeout_s) if timeout_s is not None else limits.timeout_s
        self._deadline_s = monotonic_s() + self._timeout_s
        self._is_cancelled = is_cancelled
        self._alive: dict[int, int] = {}  # matrices by identity, and their bytes
        self.samples_read = 0
        self.points_peak = 0

    def check(self) -> None:
        """Is there time left, and does anybody still wait for the answer?"""
        if self._is_cancelled is not None and self._is_cancelled():
            raise HarchError("E0663", "query was canceled before it was done")
        if self._monotonic_s() > self._deadline_s:
            hint = "narrow the selectors, shorten the range, or ask for a longer `timeout`"
            raise HarchError("E0604", f"query timed out after {self._timeout_s:g} s", hint=hint)

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a look at the clock every now and then: for loops over objects."""
        for place, item in enumerate(items):
            if place % _LOOK_EVERY == 0:
                self.check()
            yield item

    @property
    def samples_left(self) -> int:
        return max(self._limits.samples_max - self.samples_read, 0)

    def count_samples(self, number: int) -> None:
        """Counts what a selector read."""
        self.samples_read += number
        if self.samples_read > self._limits.samples_max:
            raise HarchError(
                "E0603",
                f"query processing would load too many samples into memory: {self.samples_read} read, "
                f"{self._limits.samples_max} allowed",
                hint="narrow the selectors or shorten the range",
            )

    def reserve_points(self, series: int, steps: int) -> None:
        """Asks for a matrix of this size, before it is made."""
        points = series * steps
        self.points_peak = max(self.points_peak, points)
        if points > self._limits.points_max:
            raise HarchError(
                "E0661",
                f"{series} series over {steps} steps are {points} points, {self._limits.points_max} allowed",
                hint="narrow the selectors, aggregate earlier, or widen the step",
            )
        self._check_memory(points * _BYTES_A_POINT)

    def hold(self, matrix: Floats) -> None:
        """Counts a matrix among those that are alive, until nobody refers to it any more."""
        if id(matrix) not in self._alive:
            self._alive[id(matrix)] = matrix.size * _BYTES_A_POINT
            weakref.finalize(matrix, self._alive.pop, id(matrix), None).atexit = False
            self._check_memory(0)

    def _check_memory(self, wanted_bytes: int) -> None:
        alive_bytes = sum(self._alive.values()) + wanted_bytes
        allowed = self._limits.memory_bytes_max
        if alive_bytes > allowed:
            raise HarchError(
                "E0661",
                f"values on the way take about {alive_bytes >> 20} MiB, {allowed >> 20} MiB allowed",
                hint="narrow the selectors, aggregate earlier, or widen the step",
            )

    def check_steps(self, steps: int) -> None:
        if steps > self._limits.steps_max:
            raise HarchError(
                "E0662", f"{steps} steps asked, {self._limits.steps_max} allowed", hint="widen the step of the query"
            )
