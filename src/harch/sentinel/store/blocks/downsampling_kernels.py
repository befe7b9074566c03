"""What is left of many samples? One a window, by five ways of looking at it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.store.blocks.bytes_kernels import Int, Ints

Floats = npt.NDArray[np.float64]

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
