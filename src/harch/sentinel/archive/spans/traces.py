"""Where are the spans of a trace, and what is it in short? Arrays over the traces of a block, sorted by id."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from harch.sentinel.archive.spans.rows import (
    DURATION,
    PARENT,
    SPAN,
    START,
    STATUS,
    STATUSES,
    TRACE,
    words_of,
)
from harch.sentinel.model.selection import Ints
from harch.sentinel.model.spans import SpanStatus

TraceId = tuple[int, int]
_ERROR = STATUSES.index(SpanStatus.ERROR)


@dataclass(frozen=True, slots=True)
class TraceTable:
    """One entry a trace. Its spans are rows `first` to `first + count` of the block."""

    high: Any  # uint64: the id's halves
    low: Any
    first: Ints
    count: Ints
    start: Ints
    end: Ints
    errors: Ints
    root: Ints  # row of the span that stands for it: its root, else its earliest
    has_root: Ints
    root_start: Ints
    root_span: Any

    def find(self, trace: TraceId) -> int:
        """The entry of a trace, -1 where it is not here."""
        high, low = np.uint64(trace[0]), np.uint64(trace[1])
        place = int(self.high.searchsorted(high))
        while place < len(self.high) and self.high[place] == high:
            if self.low[place] == low:
                return place
            place += 1
        return -1


COLUMNS = tuple(one.name for one in fields(TraceTable))


def ordered(table: Any) -> tuple[Ints, TraceTable]:
    """The order in which rows are kept (traces by their start, spans of one together), and its traces."""
    trace, span = words_of(table.column(TRACE)), words_of(table.column(SPAN))
    start = table.column(START).to_numpy()
    by_id = np.lexsort((span, start, trace[:, 1], trace[:, 0]))
    high, low, start = trace[by_id, 0], trace[by_id, 1], start[by_id]
    begins = np.flatnonzero(np.append(True, (np.diff(high) != 0) | (np.diff(low) != 0)))
    counts = np.diff(np.append(begins, len(by_id)))
    by_start = np.lexsort((low[begins], high[begins], start[begins]))
    first = np.empty(len(begins), np.int64)
    first[by_start] = np.cumsum(counts[by_start]) - counts[by_start]
    target = np.repeat(first - begins, counts) + np.arange(len(by_id))
    order = np.empty(len(by_id), np.int64)
    order[target] = by_id
    end = (table.column(START).to_numpy() + table.column(DURATION).to_numpy())[by_id]
    is_error = table.column(STATUS).to_numpy()[by_id] == _ERROR
    is_root = words_of(table.column(PARENT))[by_id] == 0
    numbers = np.arange(len(by_id))
    first_root = np.minimum.reduceat(np.where(is_root, numbers, len(by_id)), begins)
    has_root = first_root < np.append(begins[1:], len(by_id))
    root = np.where(has_root, first_root, begins)
    return order, TraceTable(
        high[begins],
        low[begins],
        first,
        counts.astype(np.int64),
        start[begins],
        np.maximum.reduceat(end, begins),
        np.add.reduceat(is_error.astype(np.int64), begins),
        first + root - begins,
        has_root.astype(np.int64),
        start[root],
        span[by_id][root],
    )
