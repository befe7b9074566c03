"""How are samples of many series cut, copied, merged and downsampled? Loops over regions of flat arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel
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


# How do regions of samples become one for each series? By time; of two samples of one time the later region's.


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


# What is left of many samples? One a window, by five ways of looking at it.


LAST, MIN, MAX, SUM, COUNT = 0, 1, 2, 3, 4
_STALE = np.uint64(0x7FF0000000000002)
_FALLS_OF_A_COUNTER = 20  # a series that falls in fewer than every 20th sample is treated as one


@kernel
def keep_last(timestamps: Ints, values: Floats, first: Ints, count: Ints, window: Int) -> tuple[Ints, Ints, Ints]:
    """The last sample of each window as it is: first places, counts, and places of the samples kept.

    Of a counter the samples around each reset are kept too, so that rates over what is left are exactly those of the
    whole. A stale marker is kept with the sample before it.
    """
    kept_first, kept_count = np.empty_like(first), np.empty_like(count)
    kept = np.empty(count.sum(), np.int64)
    words = values.view(np.uint64)
    at = 0
    for region in range(first.size):
        begin, stop = first[region], first[region] + count[region]
        counter = _falls(values, begin, stop) * _FALLS_OF_A_COUNTER < stop - begin
        kept_first[region] = at
        for place in range(begin, stop):
            last_one = place + 1 == stop
            keep = last_one or words[place] == _STALE or timestamps[place] // window != timestamps[place + 1] // window
            if not last_one:
                keep = keep or words[place + 1] == _STALE or (counter and values[place + 1] < values[place])
            if place > begin:
                keep = keep or words[place - 1] == _STALE or (counter and values[place] < values[place - 1])
            if keep:
                kept[at] = place
                at += 1
        kept_count[region] = at - kept_first[region]
    return kept_first, kept_count, kept[:at].copy()


@inner_kernel
def _falls(values: Floats, begin: Int, stop: Int) -> Int:
    falls = 0
    for place in range(begin + 1, stop):
        if values[place] < values[place - 1]:
            falls += 1
    return falls


@kernel
def fold_windows(
    timestamps: Ints, values: Floats, skipped: npt.NDArray[np.bool_], first: Ints, count: Ints, window: Int, way: Int
) -> tuple[Ints, Ints, Ints, Floats]:
    """One value a window, at the time of its last sample: first places, counts, times and values.

    Stale markers and skipped samples do not count. NaNs count for sums, and for extremes where there is nothing else.
    `COUNT` of samples that are counts already is their `SUM`.
    """
    folded_first, folded_count = np.empty_like(first), np.empty_like(count)
    total = count.sum()
    times, folded = np.empty(total, np.int64), np.empty(total, np.float64)
    words = values.view(np.uint64)
    at = 0
    for region in range(first.size):
        folded_first[region] = at
        current = 0
        for place in range(first[region], first[region] + count[region]):
            if words[place] == _STALE or skipped[place]:
                continue
            belongs = timestamps[place] // window
            if at == folded_first[region] or belongs != current:
                current = belongs
                folded[at] = 1.0 if way == COUNT else values[place]
                at += 1
            else:
                folded[at - 1] = _fold(folded[at - 1], values[place], way)
            times[at - 1] = timestamps[place]
        folded_count[region] = at - folded_first[region]
    return folded_first, folded_count, times[:at].copy(), folded[:at].copy()


@inner_kernel
def _fold(before: float, value: float, way: Int) -> float:
    if way == COUNT:
        return before + 1.0
    if way == SUM:
        return before + value
    if np.isnan(before) or (way == MIN and value < before) or (way == MAX and value > before):
        return value
    return before
