"""How are samples of many series cut and copied? Loops over regions of flat arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.store.blocks.bytes_kernels import Int, Ints, Words

Floats = npt.NDArray[np.float64]

_MIX = np.uint64(0x9E3779B97F4A7C15)


@inner_kernel
def lower_bound(timestamps: Ints, begin: Int, stop: Int, time: Int) -> Int:
    """The first place in `begin..stop` whose time is not before `time`."""
    while begin < stop:
        middle = (begin + stop) // 2
        if timestamps[middle] < time:
            begin = middle + 1
        else:
            stop = middle
    return begin


@kernel
def cut_regions(timestamps: Ints, first: Ints, count: Ints, start: Int, end: Int) -> tuple[Ints, Ints]:
    """What is left of each region of `start <= t <= end`: first places and counts."""
    cut_first, cut_count = np.empty_like(first), np.empty_like(count)
    for region in range(first.size):
        begin, stop = first[region], first[region] + count[region]
        low = begin
        if stop > begin and timestamps[begin] < start:
            low = lower_bound(timestamps, begin, stop, start)
        high = stop
        if stop > begin and timestamps[stop - 1] > end:
            high = lower_bound(timestamps, low, stop, end + 1)
        cut_first[region], cut_count[region] = low, max(0, high - low)
    return cut_first, cut_count


@kernel
def copy_regions(source: Ints, begin: Ints, count: Ints, target: Ints, out: Ints) -> None:
    """`count[i]` numbers from `source[begin[i]:]` to `out[target[i]:]`."""
    for region in range(begin.size):
        here, there = begin[region], target[region]
        for step in range(count[region]):
            out[there + step] = source[here + step]


@kernel
def share_columns(
    timestamps: Ints,
    first: Ints,
    count: Ints,
    pool: Ints,
    pool_first: Ints,
    pool_state: Ints,
    table: Ints,
    hashes: Words,
    codes: Ints,
) -> Int:
    """Finds equal columns of times. Returns how many regions were done: fewer than all when the pool is full.

    `pool_state` is (columns, times) in the pool, `pool_first` their places, `table` a hash table of column + 1, with
    `hashes` by column. `codes` gets column + 1 of each region, 0 for an empty one. Equal hashes are compared in full.
    """
    mask = table.size - 1
    for region in range(first.size):
        begin, size = first[region], count[region]
        if size == 0:
            codes[region] = 0
            continue
        mixed = np.uint64(size) * _MIX
        for step in range(size):
            mixed = (mixed ^ np.uint64(timestamps[begin + step])) * _MIX
            mixed ^= mixed >> np.uint64(29)
        slot = np.int64(mixed & np.uint64(mask))
        while table[slot] and not (
            hashes[table[slot] - 1] == mixed and _is_column(timestamps, begin, size, pool, pool_first, table[slot] - 1)
        ):
            slot = (slot + 1) & mask
        if table[slot] == 0:
            columns, used = pool_state[0], pool_state[1]
            if columns + 1 >= pool_first.size or used + size > pool.size or 2 * columns >= table.size:
                return region
            pool[used : used + size] = timestamps[begin : begin + size]
            pool_first[columns + 1] = used + size
            hashes[columns] = mixed
            table[slot] = columns + 1
            pool_state[0], pool_state[1] = columns + 1, used + size
        codes[region] = table[slot]
    return first.size


@inner_kernel
def _is_column(timestamps: Ints, begin: Int, size: Int, pool: Ints, pool_first: Ints, column: Int) -> bool:
    here = pool_first[column]
    if pool_first[column + 1] - here != size:
        return False
    return bool(np.all(pool[here : here + size] == timestamps[begin : begin + size]))


@kernel
def drop_ranges(
    timestamps: Ints, first: Ints, count: Ints, marked: npt.NDArray[np.bool_], start: Int, end: Int
) -> tuple[Ints, Ints, Ints]:
    """All places but those of `start <= t <= end` in marked regions: first places and counts in a list of places."""
    kept_first, kept_count = np.empty_like(first), np.empty_like(count)
    kept = np.empty(count.sum(), np.int64)
    at = 0
    for region in range(first.size):
        kept_first[region] = at
        for place in range(first[region], first[region] + count[region]):
            if not (marked[region] and start <= timestamps[place] <= end):
                kept[at] = place
                at += 1
        kept_count[region] = at - kept_first[region]
    return kept_first, kept_count, kept[:at].copy()


@kernel
def any_nonzero(numbers: Ints, first: Ints, count: Ints) -> bool:
    for region in range(first.size):
        for place in range(first[region], first[region] + count[region]):
            if numbers[place] != 0:
                return True
    return False


@kernel
def windows_of_regions(timestamps: Ints, first: Ints, count: Ints, span: Int) -> Ints:
    """In which windows of this length are there samples? Ascending by region; regions repeat each other's."""
    found = np.empty(16, np.int64)
    size = 0
    last = np.iinfo(np.int64).max // span - 1  # whose end is still a number
    for region in range(first.size):
        place, stop = first[region], first[region] + count[region]
        while place < stop:
            window = timestamps[place] // span
            if size == found.size:
                larger = np.empty(2 * size, np.int64)
                larger[:size] = found
                found = larger
            found[size] = window
            size += 1
            place = lower_bound(timestamps, place, stop, (window + 1) * span) if window < last else stop
    return found[:size].copy()
