"""What is the latest sample at each step? One pass over a series serves all steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.model.histograms import STALE_BITS

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STALE = np.uint64(STALE_BITS)


@inner_kernel
def first_after(timestamps: Ints, start: int, end: int, moment: int) -> int:
    """The first place between start and end whose sample is later than the moment."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if timestamps[middle] <= moment:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def latest_values(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    moments: Ints,
    lookback: int,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
) -> None:
    """The value at each moment: the latest one, unless it is stale or `lookback` old."""
    bits = values.view(np.uint64)
    steps = moments.shape[0]
    for row in range(row_from, row_to):
        end = first[row] + count[row]
        place = first_after(timestamps, first[row], end, moments[0]) - 1
        for step in range(steps):
            moment = moments[step]
            while place + 1 < end and timestamps[place + 1] <= moment:
                place += 1
            if place >= first[row] and timestamps[place] > moment - lookback and bits[place] != _STALE:
                out[row, step] = values[place]
                present[row, step] = True
            else:
                out[row, step] = 0.0
                present[row, step] = False


@kernel
def latest_places(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    moments: Ints,
    lookback: int,
    row_from: int,
    row_to: int,
    out: Ints,
) -> None:
    """The place of the latest sample at each moment, -1 where there is none."""
    bits = values.view(np.uint64)
    steps = moments.shape[0]
    for row in range(row_from, row_to):
        end = first[row] + count[row]
        place = first_after(timestamps, first[row], end, moments[0]) - 1
        for step in range(steps):
            moment = moments[step]
            while place + 1 < end and timestamps[place + 1] <= moment:
                place += 1
            found = place >= first[row] and timestamps[place] > moment - lookback and bits[place] != _STALE
            out[row, step] = place if found else -1


@kernel
def smoothed_values(
    first: Ints,
    count: Ints,
    timestamps: Ints,
    values: Floats,
    moments: Ints,
    lookback: int,
    row_from: int,
    row_to: int,
    out: Floats,
    present: Bools,
) -> None:
    """The value at each moment on the line between the samples around it; after the last one it stays."""
    bits = values.view(np.uint64)
    for row in range(row_from, row_to):
        start, end = first[row], first[row] + count[row]
        for step in range(moments.shape[0]):
            moment = moments[step]
            after = first_after(timestamps, start, end, moment - 1)  # the first at or after the moment
            while after < end and bits[after] == _STALE:
                after += 1
            before = after - 1
            while before >= start and (timestamps[before] >= moment or bits[before] == _STALE):
                before -= 1
            has_before = before >= start and timestamps[before] > moment - lookback
            has_after = after < end and timestamps[after] <= moment + lookback
            present[row, step] = True
            if has_after and timestamps[after] == moment:
                out[row, step] = values[after]
            elif has_before and has_after:
                low, high = values[before], values[after]
                span = np.float64(timestamps[after] - timestamps[before])
                out[row, step] = low + (high - low) * np.float64(moment - timestamps[before]) / span
            elif has_before:
                out[row, step] = values[before]
            else:
                out[row, step] = 0.0
                present[row, step] = False


@kernel
def rows_with_histograms(first: Ints, count: Ints, histogram_at: Codes, found: Bools) -> None:
    """Marks the series with at least one histogram."""
    for row in range(first.shape[0]):
        for place in range(first[row], first[row] + count[row]):
            if histogram_at[place] >= 0:
                found[row] = True
                break
