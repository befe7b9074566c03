"""Which samples lie in a window? What all kernels over ranges share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel
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
