"""Which samples lie in a window, and what do they come to? Sums, means, extremes, spreads and trends of one window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel
from harch.sentinel.model.histograms import STALE_BITS
from harch.sentinel.promql.evaluate.selection.selection_kernels import first_after

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STALE = np.uint64(STALE_BITS)


@inner_kernel
def longest(count: Ints, row_from: int, row_to: int) -> int:
    """The samples of the longest series: how much room the copy of one may need."""
    most = 1
    for row in range(row_from, row_to):
        most = max(most, count[row])
    return most


@inner_kernel
def copy_live(
    timestamps: Ints, values: Floats, start: int, end: int, after: int, until: int, times: Ints, live: Floats
) -> int:
    """Copies the samples later than `after`, up to `until`, without stale markers; gives how many there are."""
    bits = values.view(np.uint64)
    found = 0
    for place in range(first_after(timestamps, start, end, after), end):
        if timestamps[place] > until:
            break
        if bits[place] != _STALE:
            times[found] = timestamps[place]
            live[found] = values[place]
            found += 1
    return found


@inner_kernel
def compensated(increment: float, total: float, lost: float) -> tuple[float, float]:
    """One step of Neumaier's sum: the new total, and what rounding took from it so far."""
    new = total + increment
    if np.isinf(new):
        return new, 0.0
    if abs(total) >= abs(increment):
        return new, lost + ((total - new) + increment)
    return new, lost + ((increment - new) + total)


# What does a window of samples come to? Sums, means, extremes, spreads and trends of one window.


@inner_kernel
def window_sum(live: Floats, low: int, high: int) -> float:
    total, lost = 0.0, 0.0
    for index in range(low, high):
        total, lost = compensated(live[index], total, lost)
    return total if np.isinf(total) else total + lost


@inner_kernel
def window_mean(live: Floats, low: int, high: int) -> float:
    """The sum divided, unless it would overflow: then the mean is carried along instead."""
    total, lost, mean = live[low], 0.0, 0.0
    is_carried = False
    for index in range(low + 1, high):
        count = np.float64(index - low + 1)
        if not is_carried:
            new, new_lost = compensated(live[index], total, lost)
            if not np.isinf(new):
                total, lost = new, new_lost
                continue
            is_carried = True
            mean = total / (count - 1)
            lost /= count - 1
        share = (count - 1) / count
        mean, lost = compensated(live[index] / count, share * mean, share * lost)
    if is_carried:
        return mean + lost
    count = np.float64(high - low)
    return float(total / count + lost / count)


@inner_kernel
def window_extreme(live: Floats, low: int, high: int, sign: float, takes_equal: bool) -> int:
    """The place of the largest value (smallest for sign -1); NaN only if there is nothing else."""
    best = low
    for index in range(low, high):
        value, known = sign * live[index], sign * live[best]
        if value > known or (takes_equal and value == known) or np.isnan(known):
            best = index
    return best


@inner_kernel
def window_variance(live: Floats, low: int, high: int) -> float:
    count, mean, mean_lost, total, total_lost = 0.0, 0.0, 0.0, 0.0, 0.0
    for index in range(low, high):
        count += 1.0
        difference = live[index] - (mean + mean_lost)
        mean, mean_lost = compensated(difference / count, mean, mean_lost)
        total, total_lost = compensated(difference * (live[index] - (mean + mean_lost)), total, total_lost)
    return (total + total_lost) / count


@inner_kernel
def sorted_quantile(ordered: Floats, count: int, quantile: float) -> float:
    """The quantile of sorted values (NaNs first), between the two that are nearest."""
    if count == 0 or np.isnan(quantile):
        return np.nan
    if quantile < 0:
        return -np.inf
    if quantile > 1:
        return np.inf
    rank = quantile * (count - 1)
    lower = max(0, int(np.floor(rank)))
    upper = min(count - 1, lower + 1)
    weight = rank - np.floor(rank)
    return float(ordered[lower] * (1 - weight) + ordered[upper] * weight)


@inner_kernel
def sort_nan_first(values: Floats, count: int) -> None:
    """Sorts in place; NumPy's order has NaNs last, PromQL's has them first."""
    part = values[:count]
    part.sort()
    nans = 0
    while nans < count and np.isnan(part[count - 1 - nans]):
        nans += 1
    if nans > 0:
        for index in range(count - 1, nans - 1, -1):
            part[index] = part[index - nans]
        for index in range(nans):
            part[index] = np.nan


@inner_kernel
def window_quantile(live: Floats, low: int, high: int, quantile: float, scratch: Floats) -> float:
    count = high - low
    for index in range(count):
        scratch[index] = live[low + index]
    sort_nan_first(scratch, count)
    return sorted_quantile(scratch, count, quantile)


@inner_kernel
def window_median_deviation(live: Floats, low: int, high: int, scratch: Floats) -> float:
    count = high - low
    for index in range(low, high):
        if np.isnan(live[index]):
            return np.nan
    median = window_quantile(live, low, high, 0.5, scratch)
    for index in range(count):
        scratch[index] = abs(live[low + index] - median)
    sort_nan_first(scratch, count)
    return sorted_quantile(scratch, count, 0.5)


@inner_kernel
def window_changes(live: Floats, low: int, high: int) -> float:
    changes = 0.0
    for index in range(low + 1, high):
        value, before = live[index], live[index - 1]
        if value != before and not (np.isnan(value) and np.isnan(before)):
            changes += 1.0
    return changes


@inner_kernel
def regression(times: Ints, live: Floats, low: int, high: int, moment: int) -> tuple[float, float]:
    """Slope a second of the least-squares line, and its value at a moment."""
    sum_x, lost_x, sum_y, lost_y = 0.0, 0.0, 0.0, 0.0
    sum_xy, lost_xy, sum_xx, lost_xx = 0.0, 0.0, 0.0, 0.0
    is_constant = True
    for index in range(low, high):
        y = live[index]
        if index > low and y != live[low]:
            is_constant = False
        x = np.float64(times[index] - moment) / 1e3
        sum_x, lost_x = compensated(x, sum_x, lost_x)
        sum_y, lost_y = compensated(y, sum_y, lost_y)
        sum_xy, lost_xy = compensated(x * y, sum_xy, lost_xy)
        sum_xx, lost_xx = compensated(x * x, sum_xx, lost_xx)
    if is_constant:
        if np.isinf(live[low]):
            return np.nan, np.nan
        return 0.0, live[low]
    count = np.float64(high - low)
    sum_x, sum_y, sum_xy, sum_xx = sum_x + lost_x, sum_y + lost_y, sum_xy + lost_xy, sum_xx + lost_xx
    slope = (sum_xy - sum_x * sum_y / count) / (sum_xx - sum_x * sum_x / count)
    return slope, sum_y / count - slope * sum_x / count


@inner_kernel
def smoothed_end(live: Floats, low: int, high: int, smoothing: float, trend_factor: float) -> float:
    """Double exponential smoothing: the level at the end of the window."""
    before, level = 0.0, live[low]
    trend = live[low + 1] - live[low]
    for index in range(low + 1, high):
        if index > low + 1:
            trend = trend_factor * (level - before) + (1 - trend_factor) * trend
        raised = smoothing * live[index] + (1 - smoothing) * (level + trend)
        before, level = level, raised
    return float(level)
