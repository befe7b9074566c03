"""Functions over ranges of floats: one kernel, which asks by number what to do with each window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.promql.evaluate.ranges.fold_kernels import (
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
from harch.sentinel.promql.evaluate.ranges.rate_kernels import copy_starts, is_start_reset
from harch.sentinel.promql.evaluate.ranges.window_kernels import compensated, copy_live, longest

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
