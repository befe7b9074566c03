"""How are samples handed on? As arrays to kernels, as objects where histograms need the slow way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.histograms import STALE_BITS, Histogram
from harch.sentinel.model.selection import Codes, Floats, Ints, Samples
from harch.sentinel.promql.evaluate.chunks import lent
from harch.sentinel.promql.evaluate.selection.selection_kernels import rows_with_histograms
from harch.sentinel.promql.evaluate.values import Bools

NO_STARTS: Ints = np.zeros(0, np.int64)
NO_STARTS.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Point:
    """One sample as an object, for the slow ways."""

    time_ms: int
    value: float | Histogram
    start_ms: int = 0


def lent_samples(samples: Samples) -> tuple[Ints, Ints, Ints, Floats]:
    """The four arrays that every kernel over samples begins with."""
    first, count = (lent(array.astype(np.int64, copy=False)) for array in (samples.first, samples.count))
    return first, count, lent(samples.timestamps), lent(samples.values)


def histogram_rows(samples: Samples) -> Bools:
    """Which series have histograms among their samples?"""
    count = len(samples.first)
    if samples.histogram_at is None:
        return np.zeros(count, np.bool_)
    found = np.zeros(count, np.bool_)
    codes: Codes = np.ascontiguousarray(samples.histogram_at, np.int32)
    first, counts = lent_samples(samples)[:2]
    rows_with_histograms(first, counts, lent(codes), found)
    return found


def points_of(samples: Samples, row: int, after_ms: int, until_ms: int) -> list[Point]:
    """The samples of one series later than `after_ms`, up to `until_ms`, without stale markers."""
    first = int(samples.first[row])
    times = samples.timestamps[first : first + int(samples.count[row])]
    begin = first + int(np.searchsorted(times, after_ms, side="right"))
    end = first + int(np.searchsorted(times, until_ms, side="right"))
    part = slice(begin, end)
    values = samples.values[part]
    stale = values.view(np.uint64) == np.uint64(STALE_BITS)
    starts = [0] * (end - begin) if samples.starts is None else samples.starts[part].tolist()
    places = [-1] * (end - begin) if samples.histogram_at is None else samples.histogram_at[part].tolist()
    rows = zip(samples.timestamps[part].tolist(), values.tolist(), places, starts, stale.tolist(), strict=True)
    return [
        Point(time, value if place < 0 else samples.histograms[place], start)
        for time, value, place, start, is_stale in rows
        if not is_stale
    ]
