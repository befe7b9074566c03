"""The loops over events and cells, compiled. Everything that indexes memory is checked here, in the loop itself.

Numba does not check bounds, so a number from outside is compared before it becomes an index: device, metric, time and
window. Values that are no finite numbers within their bounds fail a comparison that NaN fails too. All kernels stand in
this one file, because the stored machine code is renewed only when the file of the kernel changes.

A cell is one cache line of eight float64: see `CELL`. A count of zero means that nothing else in it is meant.
"""

# harch: pure

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harch.base.compiling import compile_kernel as kernel
from harch.base.errors import HarchError

if find_spec("numba") is None:
    raise HarchError("E0740", "the package `numba` is not installed", hint="pip install 'harch[pipelines]'")

Array = NDArray[Any]

CELL = ("count", "sum", "squares", "min", "max", "last", "last_at", "shift")  # squares are of (value - shift)
COUNT, SUM, SQUARES, MIN, MAX, LAST, LAST_AT, SHIFT = range(8)
CELL_WIDTH = 8

ACCEPTED, UNKNOWN_DEVICE, UNKNOWN_METRIC, BAD_VALUE, LATE, FUTURE = range(6)
REASONS = ("accepted", "unknown_device", "unknown_metric", "bad_value", "late", "future")


@kernel
def accumulate(
    cells: Array,  # f64 (slots, keys, CELL_WIDTH)
    ticks: Array,
    device: Array,
    metric: Array,
    values: Array,  # (columns, events)
    picks: Array,  # i64: which value columns
    low: Array,  # f64, one per pick
    high: Array,
    devices: int,
    metrics: int,
    t_first_ns: int,
    tick_ns: int,
    ticks_max: int,  # larger offsets would overflow; they lie in the future
    time_ns_max: int,  # later events are not believed
    pane_ns: int,
    first_pane: int,
    panes_open: int,
    places: Array,  # i64 scratch: the first cell of each event, or -1
    offsets: Array,  # i64 scratch: its time after the start of its pane
    aside: Array,  # i32 out: places of events that were not added
    reasons: Array,  # u8 out: why, parallel to `aside`
    counts: Array,  # i64 out: one per reason
) -> int:
    """Adds events to their cells; returns how many were set aside, or -1 without touching anything.

    Two loops, because each is simple enough for the compiler to make it fast: first judge every event and find its
    cell, then add, value by value.
    """
    n, slots, keys, used = ticks.size, cells.shape[0], cells.shape[1], picks.size
    if device.size != n or metric.size != n or values.shape[1] != n or aside.size < n or reasons.size < n:
        return -1
    if cells.shape[2] != 8 or keys < devices * metrics * used or slots < panes_open or counts.size < 6 or used < 1:
        return -1
    if low.size != used or high.size != used or places.size < n or offsets.size < n:
        return -1
    if pane_ns <= 0 or first_pane < 0 or devices < 0 or metrics < 0 or t_first_ns < 0 or tick_ns <= 0:
        return -1
    for j in range(used):
        if picks[j] < 0 or picks[j] >= values.shape[0]:
            return -1
    set_aside = 0
    pane_start, pane_end, base = np.int64(0), np.int64(-1), np.int64(0)  # of the last event: most share a pane
    first, first_low, first_high = values[picks[0]], low[0], high[0]
    for i in range(n):
        d, m, x = np.int64(device[i]), np.int64(metric[i]), np.float64(first[i])
        reason = np.int64(0)
        if d >= devices:
            reason = np.int64(1)
        elif m >= metrics:
            reason = np.int64(2)
        elif not (x >= first_low and x <= first_high):
            reason = np.int64(3)
        elif ticks[i] > ticks_max:
            reason = np.int64(5)
        else:
            at = t_first_ns + np.int64(ticks[i]) * tick_ns
            if at < pane_start or at >= pane_end:
                pane = at // pane_ns
                pane_start = pane * pane_ns
                pane_end = pane_start + pane_ns
                base = (pane % slots) * keys
                if pane < first_pane:
                    base = np.int64(-4)
                elif pane >= first_pane + panes_open:
                    base = np.int64(-5)
            if at > time_ns_max:
                reason = np.int64(5)
            elif base < 0:
                reason = -base
            else:
                places[i] = base + (d * metrics + m) * used
                offsets[i] = at - pane_start
            for j in range(1, used):
                y = np.float64(values[picks[j], i])
                if not (y >= low[j] and y <= high[j]):
                    reason = np.int64(3)
        if reason != 0:
            places[i] = -1
            counts[reason] += 1
            aside[set_aside] = i
            reasons[set_aside] = reason
            set_aside += 1
    counts[0] += n - set_aside
    flat = cells.reshape(cells.size)
    for j in range(used):
        column = values[picks[j]]
        for i in range(n):
            if places[i] < 0:
                continue
            x, offset = np.float64(column[i]), np.float64(offsets[i])
            c = np.uint64((places[i] + j) * 8)  # unsigned: Numba would look for negative indexes else
            if flat[c] == 0.0:  # a recycled cell is all zeros
                flat[c + np.uint64(3)] = x
                flat[c + np.uint64(4)] = x
                flat[c + np.uint64(6)] = -1.0
                flat[c + np.uint64(7)] = x
            shifted = x - flat[c + np.uint64(7)]
            flat[c] += 1.0
            flat[c + np.uint64(1)] += x
            flat[c + np.uint64(2)] += shifted * shifted
            flat[c + np.uint64(3)] = min(x, flat[c + np.uint64(3)])
            flat[c + np.uint64(4)] = max(x, flat[c + np.uint64(4)])
            if offset >= flat[c + np.uint64(6)]:
                flat[c + np.uint64(5)] = x
                flat[c + np.uint64(6)] = offset
    return set_aside


@kernel
def merge_panes(cells: Array, order: Array, pane_ns: int, out: Array) -> int:
    """The cells of a window out of those of its panes, `order` being their slots from old to new.

    Times of the last value count from the start of the newest pane; only their order matters.
    """
    keys = cells.shape[1]
    if out.shape[0] != keys or out.shape[1] != 8 or cells.shape[2] != 8:
        return -1
    for p in range(order.size):
        if order[p] < 0 or order[p] >= cells.shape[0]:
            return -1
    for k in range(keys):
        for c in range(8):
            out[k, c] = 0.0
        for p in range(order.size):
            s = order[p]
            count = cells[s, k, 0]
            if count == 0.0:
                continue
            at = cells[s, k, 6] - np.float64(order.size - 1 - p) * np.float64(pane_ns)
            if out[k, 0] == 0.0:
                for c in range(8):
                    out[k, c] = cells[s, k, c]
                out[k, 6] = at
                continue
            # Squares of the pane were taken around another shift: move them to that of the window.
            move = cells[s, k, 7] - out[k, 7]
            around = cells[s, k, 1] - count * cells[s, k, 7]
            out[k, 2] += cells[s, k, 2] + 2.0 * move * around + count * move * move
            out[k, 0] += count
            out[k, 1] += cells[s, k, 1]
            if cells[s, k, 3] < out[k, 3]:
                out[k, 3] = cells[s, k, 3]
            if cells[s, k, 4] > out[k, 4]:
                out[k, 4] = cells[s, k, 4]
            if at >= out[k, 6]:
                out[k, 5] = cells[s, k, 5]
                out[k, 6] = at
    return 0


@kernel
def holt(history: Array, oldest: int, steps: int, level_weight: float, trend_weight: float, out: Array) -> int:
    """Level and trend per step of each key, over a ring of means from old to new. NaN is a step without a value.

    The first value is the first level; the first difference, per step between them, the first trend. A step without
    a value moves the level on by the trend. Out: level, trend, number of values.
    """
    size, keys = history.shape
    if out.shape[0] != keys or out.shape[1] != 3 or oldest < 0 or oldest >= size or steps < 0 or steps > size:
        return -1
    for k in range(keys):
        level, trend, seen, since = np.nan, 0.0, 0, 0
        for p in range(steps):
            x = history[(oldest + p) % size, k]
            since += 1
            if np.isnan(x):
                if seen > 1:
                    level += trend
                continue
            if seen == 0:
                level = x
            elif seen == 1:
                trend = (x - level) / since
                level = x
            else:
                expected = level + trend
                moved = level_weight * x + (1.0 - level_weight) * expected
                trend = trend_weight * (moved - level) + (1.0 - trend_weight) * trend
                level = moved
            seen += 1
            since = 0
        out[k, 0], out[k, 1], out[k, 2] = level, trend, seen
    return 0
