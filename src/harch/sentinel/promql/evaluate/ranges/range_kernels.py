"""What do functions over ranges of floats give?

`rate`, `increase` and `delta` with extrapolation, and one kernel for all that fold a window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.promql.evaluate.ranges.window_kernels import (
    compensated,
    copy_live,
    longest,
    regression,
    smoothed_end,
    window_changes,
    window_extreme,
    window_mean,
    window_median_deviation,
    window_quantile,
    window_sum,
    window_variance,
)

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


# Functions over ranges of floats: one kernel, which asks by number what to do with each window.


Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SUM, MEAN, MIN, MAX, COUNT, FIRST, LAST, STDDEV, STDVAR = range(9)
MEDIAN_DEVIATION, QUANTILE, PRESENT, CHANGES, RESETS = range(9, 14)
TIME_OF_FIRST, TIME_OF_LAST, TIME_OF_MIN, TIME_OF_MAX = range(14, 18)
SLOPE, PREDICTION, SMOOTHING = range(18, 21)


@inner_kernel
def _window_resets(times: Ints, live: Floats, kept: Ints, low: int, high: int) -> float:
    resets = 0.0
    for index in range(low + 1, high):
        if live[index] < live[index - 1] or is_start_reset(
            kept[index - 1], times[index - 1], kept[index], times[index]
        ):
            resets += 1.0
    return resets


@inner_kernel
def _folded(
    function: int,
    times: Ints,
    live: Floats,
    kept: Ints,
    low: int,
    high: int,
    moment: int,
    parameter: float,
    second: float,
    scratch: Floats,
) -> float:
    if function == SUM:
        return window_sum(live, low, high)
    if function == MEAN:
        return window_mean(live, low, high)
    if function == MIN:
        return float(live[window_extreme(live, low, high, -1.0, False)])
    if function == MAX:
        return float(live[window_extreme(live, low, high, 1.0, False)])
    if function == COUNT:
        return np.float64(high - low)
    if function == FIRST:
        return float(live[low])
    if function == LAST:
        return float(live[high - 1])
    if function == STDDEV:
        return float(np.sqrt(window_variance(live, low, high)))
    if function == STDVAR:
        return window_variance(live, low, high)
    if function == MEDIAN_DEVIATION:
        return window_median_deviation(live, low, high, scratch)
    if function == QUANTILE:
        return window_quantile(live, low, high, parameter, scratch)
    if function == CHANGES:
        return window_changes(live, low, high)
    if function == RESETS:
        return _window_resets(times, live, kept, low, high)
    if function == TIME_OF_FIRST:
        return float(times[low] / 1000.0)
    if function == TIME_OF_LAST:
        return float(times[high - 1] / 1000.0)
    if function == TIME_OF_MIN:
        return float(times[window_extreme(live, low, high, -1.0, True)] / 1000.0)
    if function == TIME_OF_MAX:
        return float(times[window_extreme(live, low, high, 1.0, True)] / 1000.0)
    if function == SLOPE:
        return regression(times, live, low, high, times[low])[0]
    if function == PREDICTION:
        slope, level = regression(times, live, low, high, moment)
        return slope * parameter + level
    if function == SMOOTHING:
        return smoothed_end(live, low, high, parameter, second)
    return 1.0


@kernel
def fold_windows(
    function: int,
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    starts: Ints,
    ends: Ints,
    range_ms: int,
    anchor_ms: int,
    moments: Ints,
    parameters: Floats,
    seconds: Floats,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
) -> None:
    """One number for each window. With `anchor_ms`, the latest sample up to so long before the window belongs to it."""
    room = longest(count, row_from, row_to)
    times, live, scratch = np.empty(room, np.int64), np.empty(room, np.float64), np.empty(room, np.float64)
    kept = np.zeros(room, np.int64)
    has_starts = starts.shape[0] > 0 and function == RESETS
    needed = 2 if function in (SLOPE, PREDICTION, SMOOTHING) else 1
    steps = ends.shape[0]
    for row in range(row_from, row_to):
        start, end = first[row], first[row] + count[row]
        oldest = ends[0] - range_ms - anchor_ms
        found = copy_live(timestamps, values, start, end, oldest, ends[steps - 1], times, live)
        if has_starts and found > 0:
            copy_starts(starts, timestamps, start, end, times, found, kept)
        low = high = 0
        for step in range(steps):
            while high < found and times[high] <= ends[step]:
                high += 1
            while low < high and times[low] <= ends[step] - range_ms:
                low += 1
            out[row, step] = 0.0
            present[row, step] = False
            if high - low < needed:
                continue
            begin = low
            if anchor_ms > 0 and low > 0 and times[low - 1] > ends[step] - range_ms - anchor_ms:
                begin = low - 1
            present[row, step] = True
            if function == LAST:
                out[row, step] = live[high - 1]
                continue
            if function in (SUM, MEAN):  # here and not in a function: passing arrays costs as much as a short window
                total, lost = live[begin], 0.0
                for index in range(begin + 1, high):
                    total, lost = compensated(live[index], total, lost)
                if not (np.isnan(total) or np.isinf(total)):
                    number = high - begin if function == MEAN else 1
                    out[row, step] = total / number + lost / number
                    continue
            out[row, step] = _folded(
                function, times, live, kept, begin, high, moments[step], parameters[step], seconds[step], scratch
            )
