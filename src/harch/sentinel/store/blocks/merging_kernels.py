"""How do regions of samples become one for each series? By time; of two samples of one time the later region's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.store.blocks.bytes_kernels import Int, Ints

Floats = npt.NDArray[np.float64]


@kernel
def merge_regions(
    times_a: Ints,
    values_a: Floats,
    times_b: Ints,
    values_b: Floats,
    first: Ints,
    count: Ints,
    group: Ints,
    groups: Int,
    tracked: bool,
) -> tuple[Ints, Ints, Ints, Floats, Ints]:
    """First places and counts by group, times and values, and (if tracked) where each sample came from.

    Regions are sorted by group and lie in the arrays `a`, or behind them in `b`; none lies in both.
    """
    total = count.sum()
    times, values = np.empty(total, np.int64), np.empty(total, np.float64)
    origin = np.empty(total if tracked else 0, np.int64)
    merged_first, merged_count = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    at: Int = 0
    region = 0
    for current in range(groups):
        merged_first[current] = at
        size: Int = 0
        while region < first.size and group[region] == current:
            begin, more = first[region], count[region]
            if begin < times_a.size:
                size = _put(times_a, values_a, begin, more, 0, times, values, origin, tracked, at, size)
            else:
                begin -= times_a.size
                size = _put(times_b, values_b, begin, more, times_a.size, times, values, origin, tracked, at, size)
            region += 1
        merged_count[current] = size
        at += size
    return merged_first, merged_count, times[:at], values[:at], origin[: at if tracked else 0]


@inner_kernel
def _put(
    new_times: Ints,
    new_values: Floats,
    begin: Int,
    more: Int,
    shift: Int,
    times: Ints,
    values: Floats,
    origin: Ints,
    tracked: bool,
    at: Int,
    size: Int,
) -> Int:
    """Merges a region into the `size` samples at `at`; the new size."""
    if more == 0:
        return size
    if size == 0 or times[at + size - 1] < new_times[begin]:  # the usual case: what comes later is later
        end = at + size
        for step in range(more):
            times[end + step] = new_times[begin + step]
            values[end + step] = new_values[begin + step]
        if tracked:
            for step in range(more):
                origin[end + step] = shift + begin + step
        return size + more
    old_times, old_values = times[at : at + size].copy(), values[at : at + size].copy()
    old_origin = origin[at : at + size].copy() if tracked else origin[:0].copy()
    old, new, put = 0, 0, at
    while old < size or new < more:
        take_new = old == size or (new < more and new_times[begin + new] <= old_times[old])
        if take_new:
            if old < size and new_times[begin + new] == old_times[old]:
                old += 1
            times[put], values[put] = new_times[begin + new], new_values[begin + new]
            if tracked:
                origin[put] = shift + begin + new
            new += 1
        else:
            times[put], values[put] = old_times[old], old_values[old]
            if tracked:
                origin[put] = old_origin[old]
            old += 1
        put += 1
    return put - at
