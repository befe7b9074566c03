"""How fast does a counter count? `rate`, `increase` and `delta` with extrapolation, `irate` and `idelta`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.promql.evaluate.ranges.window_kernels import copy_live, longest

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_THRESHOLD = 1.1  # a gap of more than 110 % of the mean spacing is the series' own end


@inner_kernel
def is_start_reset(before_start: int, before: int, start: int, now: int) -> bool:
    """Does the start time say that the counter began anew between two samples? 0 means that it is not known."""
    if start == 0 or start >= now or start < before:
        return False
    if start > before:
        return True
    # The start is the sample before: a delta, or a cumulative counter whose start was not known.
    return before_start != 0 and before_start < before


@inner_kernel
def copy_starts(starts: Ints, timestamps: Ints, start: int, end: int, times: Ints, found: int, kept: Ints) -> None:
    """The start times of samples that were copied, found again by their times."""
    place = start
    for index in range(found):
        while place < end and timestamps[place] != times[index]:
            place += 1
        kept[index] = starts[place]


@inner_kernel
def count_resets(times: Ints, live: Floats, kept: Ints, has_starts: bool, found: int, resets: Ints) -> int:
    """Numbers resets up to each sample, so that windows without any need no loop; gives the first overlap or -1."""
    overlap = -1
    resets[0] = 0
    for index in range(1, found):
        is_reset = live[index] < live[index - 1]
        if has_starts:
            is_reset = is_reset or is_start_reset(kept[index - 1], times[index - 1], kept[index], times[index])
            start = kept[index]
            if overlap < 0 and start != 0 and start < times[index - 1] and start != kept[index - 1]:
                overlap = index
        resets[index] = resets[index - 1] + (1 if is_reset else 0)
    return overlap


@kernel
def extrapolated_rates(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    starts: Ints,
    ends: Ints,
    range_ms: int,
    is_counter: bool,
    is_rate: bool,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
    overlaps: Bools,
) -> None:
    """The increase over each window, extended to the window's ends; per second if `is_rate`.

    `starts` is empty if no start times are known. `overlaps` tells which series have start times that contradict.
    """
    room = longest(count, row_from, row_to)
    times, live = np.empty(room, np.int64), np.empty(room, np.float64)
    resets, kept = np.empty(room, np.int64), np.zeros(room, np.int64)
    has_starts = starts.shape[0] > 0 and is_counter
    steps = ends.shape[0]
    range_s = range_ms / 1000.0
    for row in range(row_from, row_to):
        start, end = first[row], first[row] + count[row]
        found = copy_live(timestamps, values, start, end, ends[0] - range_ms, ends[steps - 1], times, live)
        if found > 0 and is_counter:
            if has_starts:
                copy_starts(starts, timestamps, start, end, times, found, kept)
            overlaps[row] = count_resets(times, live, kept, has_starts, found, resets) >= 0
        low = high = 0
        for step in range(steps):
            window_end = ends[step]
            window_start = window_end - range_ms
            while high < found and times[high] <= window_end:
                high += 1
            while low < high and times[low] <= window_start:
                low += 1
            out[row, step] = 0.0
            present[row, step] = False
            if low == high:
                continue
            last = high - 1
            oldest, newest = times[low], times[last]
            result = live[last] - live[low]
            if is_counter and resets[last] != resets[low]:
                for index in range(low + 1, high):
                    if resets[index] != resets[index - 1]:
                        result += live[index - 1]
            to_start = (oldest - window_start) / 1000.0
            to_end = (window_end - newest) / 1000.0
            sampled = (newest - oldest) / 1000.0
            spacing = sampled / (last - low) if last > low else 0.0
            threshold = spacing * _THRESHOLD
            if has_starts and kept[low] != 0 and kept[low] > window_start and kept[low] < oldest:
                # The counter began inside of the window: it was 0 then, so nothing is guessed on this side.
                to_start = 0.0
                sampled = (newest - kept[low]) / 1000.0
                result += live[low]
            elif last == low:
                continue
            else:
                if to_start >= threshold:
                    to_start = spacing / 2
                if is_counter and result > 0 and live[low] >= 0:
                    to_start = min(to_start, sampled * (live[low] / result))  # no counter was ever below zero
            if to_end >= threshold:
                to_end = spacing / 2
            factor = (sampled + to_start + to_end) / sampled if sampled != 0 else 1.0
            if is_rate:
                factor /= range_s
            out[row, step] = result * factor
            present[row, step] = True


@kernel
def instant_rates(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    starts: Ints,
    ends: Ints,
    range_ms: int,
    is_rate: bool,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
) -> None:
    """From the last two samples of each window."""
    room = longest(count, row_from, row_to)
    times, live = np.empty(room, np.int64), np.empty(room, np.float64)
    kept = np.zeros(room, np.int64)
    has_starts = starts.shape[0] > 0
    steps = ends.shape[0]
    for row in range(row_from, row_to):
        start, end = first[row], first[row] + count[row]
        found = copy_live(timestamps, values, start, end, ends[0] - range_ms, ends[steps - 1], times, live)
        if has_starts and found > 0:
            copy_starts(starts, timestamps, start, end, times, found, kept)
        high = 0
        for step in range(steps):
            while high < found and times[high] <= ends[step]:
                high += 1
            out[row, step] = 0.0
            present[row, step] = False
            last = high - 1
            if last < 1 or times[last - 1] <= ends[step] - range_ms:
                continue
            result = live[last]
            is_reset = live[last] < live[last - 1] or is_start_reset(
                kept[last - 1], times[last - 1], kept[last], times[last]
            )
            if not is_rate or not is_reset:
                result -= live[last - 1]
            if is_rate:
                result /= (times[last] - times[last - 1]) / 1000.0
            out[row, step] = result
            present[row, step] = True


@kernel
def extended_rates(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    ends: Ints,
    range_ms: int,
    lookback: int,
    is_counter: bool,
    is_rate: bool,
    is_smoothed: bool,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
) -> None:
    """`anchored`: from the sample at or before the window. `smoothed`: between points on the lines at both ends."""
    room = longest(count, row_from, row_to)
    times, live = np.empty(room, np.int64), np.empty(room, np.float64)
    steps = ends.shape[0]
    reach = lookback if is_smoothed else 0
    for row in range(row_from, row_to):
        start, end = first[row], first[row] + count[row]
        oldest, newest = ends[0] - range_ms - lookback, ends[steps - 1] + reach
        found = copy_live(timestamps, values, start, end, oldest, newest, times, live)
        low = high = 0
        for step in range(steps):
            window_end = ends[step]
            window_start = window_end - range_ms
            while high < found and times[high] <= window_end + reach:
                high += 1
            while low < high and times[low] <= window_start - lookback:
                low += 1
            out[row, step] = 0.0
            present[row, step] = False
            if low == high:
                continue
            begin, last = low, high - 1
            while begin < last and times[begin + 1] <= window_start:
                begin += 1
            if is_smoothed:
                final = low
                while final < last and times[final] < window_end:
                    final += 1
                last = final
            if times[last] <= window_start or (is_smoothed and times[begin] > window_end):
                continue
            left, right = live[begin], live[last]
            if is_smoothed and times[begin] < window_start:
                left = _between(times, live, begin, window_start, is_counter)
            if is_smoothed and last > low and times[last] > window_end:
                right = _between(times, live, last - 1, window_end, is_counter)
            result = right - left
            if is_counter:
                inner_from = begin + 1 if times[begin] <= window_start else begin
                inner_to = last if times[last] >= window_end else last + 1
                before, correction = left, 0.0
                for index in range(inner_from, inner_to):
                    if live[index] < before:
                        correction += before
                    before = live[index]
                if right < before:
                    correction += before
                result += correction
            if is_rate:
                result /= range_ms / 1000.0
            out[row, step] = result
            present[row, step] = True


@inner_kernel
def _between(times: Ints, live: Floats, index: int, moment: int, is_counter: bool) -> float:
    """The value at a moment between two samples; a counter that was reset there started at 0."""
    low, high = live[index], live[index + 1]
    if is_counter and high < low:
        low = 0.0
    return float(low + (high - low) * np.float64(moment - times[index]) / np.float64(times[index + 1] - times[index]))
