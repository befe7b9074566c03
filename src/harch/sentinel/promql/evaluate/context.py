"""What do all parts of one evaluation share?

Options, and a budget of time, samples, memory and cancellation that is checked between nodes and chunks of kernels.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.selection import Codes, Floats, Ints, Queryable
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.syntax.cursor import DEFAULT_OPTIONS, ParserOptions

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may take. Beyond a limit it is refused, and nothing of it stays behind."""

    samples_max: int = 50_000_000  # read from the store, over all selectors
    points_max: int = 50_000_000  # series times steps of any one value on the way
    steps_max: int = 100_000
    memory_bytes_max: int = 2 << 30  # estimated: the matrices that are alive at once
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What all queries of an engine share."""

    limits: QueryLimits = QueryLimits()
    lookback_ms: int = 5 * MINUTE_MS
    subquery_step_ms: int = MINUTE_MS  # of `[range:]`, without a step
    type_and_unit_labels: bool = False  # trust `__type__` instead of names when asking whether a metric counts
    start_timestamps: bool = True  # let counters' start times tell resets
    parser: ParserOptions = DEFAULT_OPTIONS  # which experimental parts of the language are on


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What one query may choose for itself; None: as the engine has it."""

    lookback_ms: int | None = None
    timeout_s: float | None = None
    is_cancelled: Callable[[], bool] | None = None


# May this query go on? Time, samples, memory and cancellation, asked between nodes and chunks of kernels.


Item = TypeVar("Item")

_LOOK_EVERY = 256
_BYTES_A_POINT = 9  # a float and a presence flag


class QueryBudget:
    """What is left of a query's limits. Every method raises when the query must stop."""

    def __init__(
        self,
        limits: QueryLimits,
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
            hint = "narrow the selectors, shorten the range, or set a longer `timeout`"
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
                f"intermediate values take about {alive_bytes >> 20} MiB, {allowed >> 20} MiB allowed",
                hint="narrow the selectors, aggregate earlier, or widen the step",
            )

    def check_steps(self, steps: int) -> None:
        if steps > self._limits.steps_max:
            raise HarchError(
                "E0662",
                f"{steps} steps requested, {self._limits.steps_max} allowed",
                hint="widen the step of the query",
            )


# What do all parts of one evaluation share?


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """One query: where it reads, what it may use up, what it has to say, and the times of the whole query."""

    queryable: Queryable
    options: EngineOptions
    budget: QueryBudget
    notes: Annotations
    lookback_ms: int
    start_ms: int
    end_ms: int
    step_ms: int
    finds_resets: bool = False  # see `reset_hints`
    may_find_resets: bool = True


def refuse(reason: str, *, hint: str = "") -> HarchError:
    """The query is valid, but cannot be answered on this data; the reason is in upstream's words."""
    return HarchError("E0660", reason, hint=hint)


# How does a long kernel use all cores and still stop in time? In chunks, each a call without the GIL.
#
# Numba's own threads are not used: their default layer may not be entered by two queries at once, and a loop inside a
# kernel cannot ask whether somebody cancelled the query.


Array = TypeVar("Array", Ints, Floats, Codes)

_CHUNK_WORK = 150_000  # windows or points a chunk: a few milliseconds
_CORES_MAX = 8
STEPS_LEAST = 64  # of a chunk of columns: narrower ones would fetch whole cache lines for a number or two


def in_chunks(
    budget: QueryBudget, count: int, work_each: int, call: Callable[[int, int], object], *, least: int = 1
) -> None:
    """Calls `call(start, end)` until all `count` rows are done, `least` or more at a time; `work_each` is a row's size.

    The asking thread works, too, and whoever of the helpers has time joins it: a query goes on where all are busy.
    """
    budget.check()
    if count * work_each <= _CHUNK_WORK:
        if count:
            call(0, count)
        return
    size = max(_CHUNK_WORK // max(work_each, 1), least)
    waiting = deque((start, min(start + size, count)) for start in range(0, count, size))

    def work() -> None:
        while waiting:
            try:
                start, end = waiting.popleft()
            except IndexError:  # another took the last one
                return
            try:
                budget.check()
                call(start, end)
            except BaseException:
                waiting.clear()  # nobody needs the rest
                raise

    helpers = [_helpers().submit(work) for _ in range(min(_cores() - 1, len(waiting) - 1))]
    try:
        work()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)  # they write to arrays of this query
    for helper in begun:
        helper.result()


@lru_cache(maxsize=1)
def _cores() -> int:
    """All but one: what comes in while a query runs needs a core too."""
    return min(max((os.cpu_count() or 1) - 1, 1), _CORES_MAX)


@lru_cache(maxsize=1)
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(_cores() - 1, 1), thread_name_prefix="promql")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads stay behind


def lent(array: Array) -> Array:
    """The array as kernels take it: in one piece and read-only, so that there is one compiled form of each kernel."""
    whole: Any = np.ascontiguousarray(array).view()
    whole.flags.writeable = False
    return cast(Array, whole)
