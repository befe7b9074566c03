"""Where do quantiles lie in classic histograms? One pass over the buckets of each group and step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TOLERANCE = 1e-12  # relative; smaller differences of counts are noise of floating point
_SMALLEST_NORMAL = 2.2250738585072014e-308
SAMPLES, FIRST_STEP, LAST_STEP, BUCKET_MIN, BUCKET_MAX, DIFFERENCE_MAX = range(6)  # columns of what was mended


@inner_kernel
def _gathered(
    values: Floats,
    present: Bools,
    order: Ints,
    uppers: Floats,
    begin: int,
    end: int,
    step: int,
    bounds: Floats,
    counts: Floats,
) -> int:
    """The buckets that are present at a step, those of equal bounds added up; gives how many there are."""
    found = 0
    for place in range(begin, end):
        row = order[place]
        if not present[row, step]:
            continue
        if found > 0 and bounds[found - 1] == uppers[place]:
            counts[found - 1] += values[row, step]
        else:
            bounds[found] = uppers[place]
            counts[found] = values[row, step]
            found += 1
    return found


@inner_kernel
def _is_almost(left: float, right: float) -> bool:
    if np.isnan(left) and np.isnan(right):
        return True
    total, difference = abs(left) + abs(right), abs(left - right)
    if left == 0 or right == 0 or total < _SMALLEST_NORMAL:
        return difference < _TOLERANCE * _SMALLEST_NORMAL
    return difference / min(total, 1.7976931348623157e308) < _TOLERANCE


@inner_kernel
def _made_monotonic(bounds: Floats, counts: Floats, found: int, mended: Floats) -> bool:
    """Counts must not fall from bucket to bucket; where they do, the one before stands. Noise is not worth a word."""
    was_forced = False
    before = counts[0]
    for place in range(1, found):
        count = counts[place]
        if count == before:
            continue
        if _is_almost(before, count):
            counts[place] = before
        elif count < before:
            counts[place] = before
            was_forced = True
            mended[BUCKET_MIN] = min(mended[BUCKET_MIN], bounds[place])
            mended[BUCKET_MAX] = max(mended[BUCKET_MAX], bounds[place])
            mended[DIFFERENCE_MAX] = max(mended[DIFFERENCE_MAX], before - count)
        else:
            before = count
    return was_forced


@kernel
def classic_quantiles(
    quantiles: Floats,
    values: Floats,
    present: Bools,
    order: Ints,
    uppers: Floats,
    limits: Ints,
    group_from: int,
    group_to: int,
    out: Floats,
    filled: Bools,
    mended: Floats,
) -> None:
    """The quantile of each group; rows `order[limits[g]:limits[g + 1]]` are its buckets, by their upper bounds."""
    room = 1
    for group in range(group_from, group_to):
        room = max(room, limits[group + 1] - limits[group])
    bounds, counts, scratch = np.empty(room), np.empty(room), np.empty(6)
    for group in range(group_from, group_to):
        for step in range(quantiles.shape[0]):
            found = _gathered(values, present, order, uppers, limits[group], limits[group + 1], step, bounds, counts)
            filled[group, step] = found > 0
            out[group, step] = 0.0
            if found == 0:
                continue
            scratch[BUCKET_MIN], scratch[BUCKET_MAX], scratch[DIFFERENCE_MAX] = np.inf, -np.inf, 0.0
            result, was_forced = _quantile(quantiles[step], bounds, counts, found, scratch)
            out[group, step] = result
            if was_forced:
                note = mended[group]
                if note[SAMPLES] == 0:
                    note[FIRST_STEP] = step
                note[SAMPLES] += 1
                note[LAST_STEP] = step
                note[BUCKET_MIN] = min(note[BUCKET_MIN], scratch[BUCKET_MIN])
                note[BUCKET_MAX] = max(note[BUCKET_MAX], scratch[BUCKET_MAX])
                note[DIFFERENCE_MAX] = max(note[DIFFERENCE_MAX], scratch[DIFFERENCE_MAX])


@inner_kernel
def _quantile(quantile: float, bounds: Floats, counts: Floats, found: int, mended: Floats) -> tuple[float, bool]:
    if np.isnan(quantile):
        return np.nan, False
    if quantile < 0:
        return -np.inf, False
    if quantile > 1:
        return np.inf, False
    if bounds[found - 1] != np.inf:
        return np.nan, False
    was_forced = _made_monotonic(bounds, counts, found, mended)
    observations = counts[found - 1]
    if found < 2 or observations == 0:
        return np.nan, False
    rank = quantile * observations
    low, high = 0, found - 1
    while low < high:
        middle = (low + high) // 2
        if counts[middle] >= rank:
            high = middle
        else:
            low = middle + 1
    if low == found - 1:
        return bounds[found - 2], was_forced
    if low == 0 and bounds[0] <= 0:
        return bounds[0], was_forced
    start, count = 0.0, counts[low]
    if low > 0:
        start = bounds[low - 1]
        count -= counts[low - 1]
        rank -= counts[low - 1]
    return start + (bounds[low] - start) * (rank / count), was_forced


@kernel
def classic_fractions(
    lowers: Floats,
    highers: Floats,
    values: Floats,
    present: Bools,
    order: Ints,
    uppers: Floats,
    limits: Ints,
    group_from: int,
    group_to: int,
    out: Floats,
    filled: Bools,
) -> None:
    """The share of observations between two values, for each group and step."""
    room = 1
    for group in range(group_from, group_to):
        room = max(room, limits[group + 1] - limits[group])
    bounds, counts = np.empty(room), np.empty(room)
    for group in range(group_from, group_to):
        for step in range(lowers.shape[0]):
            found = _gathered(values, present, order, uppers, limits[group], limits[group + 1], step, bounds, counts)
            filled[group, step] = found > 0
            out[group, step] = _fraction(lowers[step], highers[step], bounds, counts, found) if found > 0 else 0.0


@inner_kernel
def _fraction(lower: float, higher: float, bounds: Floats, counts: Floats, found: int) -> float:
    if bounds[found - 1] != np.inf:
        return np.nan
    total = counts[found - 1]
    if total == 0 or np.isnan(lower) or np.isnan(higher):
        return np.nan
    if lower >= higher:
        return 0.0
    return float((_rank_below(higher, bounds, counts, found) - _rank_below(lower, bounds, counts, found)) / total)


@inner_kernel
def _rank_below(value: float, bounds: Floats, counts: Floats, found: int) -> float:
    """How many observations lie below a value, evenly spread within its bucket."""
    total = counts[found - 1]
    rank = 0.0
    for place in range(found):
        start = -np.inf if bounds[0] <= 0 else 0.0
        if place > 0:
            start = bounds[place - 1]
        if start >= value:
            return float(min(rank, total))
        if bounds[place] > value:
            if start == -np.inf:
                return float(min(counts[place], total))
            share = (value - start) / (bounds[place] - start)
            return float(min(rank + (counts[place] - rank) * share, total))
        rank = counts[place]
    return float(total)
