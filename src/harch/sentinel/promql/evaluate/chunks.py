"""How does a long kernel use all cores and still stop in time? In chunks, each a call without the GIL.

Numba's own threads are not used: their default layer may not be entered by two queries at once, and a loop inside a
kernel cannot ask whether somebody cancelled the query.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from harch.sentinel.model.selection import Codes, Floats, Ints
from harch.sentinel.promql.evaluate.budget import Budget

Array = TypeVar("Array", Ints, Floats, Codes)

_CHUNK_WORK = 150_000  # windows or points a chunk: a few milliseconds
_CORES_MAX = 8
STEPS_LEAST = 64  # of a chunk of columns: narrower ones would fetch whole cache lines for a number or two


def in_chunks(
    budget: Budget, count: int, work_each: int, call: Callable[[int, int], object], *, least: int = 1
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


def lent(array: Array) -> Array:
    """The array as kernels take it: in one piece and read-only, so that there is one compiled form of each kernel."""
    whole: Any = np.ascontiguousarray(array).view()
    whole.flags.writeable = False
    return cast(Array, whole)
