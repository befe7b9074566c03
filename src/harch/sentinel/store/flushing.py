"""When do samples go from memory into blocks? By their own time, or when memory or the log grow too large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.selection import Selection
from harch.sentinel.store.head.head import Head

_FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    block_ms: int = 7_200_000  # what one block of the head spans at most
    kept_ms: int = 7_200_000  # newer samples stay in memory, where queries are fastest
    idle_ms: int = 3_600_000  # series without samples for as long are forgotten after a flush
    log_bytes_max: int = 4 << 30  # a larger log is emptied, even if that takes samples out of memory early
    blocks_max: int = 64  # of one flush; samples spread wider than that share blocks


def flush_until(head: Head, log_bytes: int, now_ms: int, policy: FlushPolicy) -> int | None:
    """Up to which time should samples be written into blocks now? None: not yet.

    Measured on the samples, not on the clock, which may be wrong; but one sample far in the future, which would drag
    all others along, is held back by it.
    """
    if head.cut_until is not None:  # a flush that failed
        return head.cut_until
    if log_bytes > policy.log_bytes_max:
        return _FOREVER
    span = head.time_range()
    if span is None:
        return None
    oldest, newest = span
    if head.is_nearly_full:
        return oldest + (newest - oldest) // 2  # half of it: what is cut is copied for its block
    until = (min(newest, now_ms) - policy.kept_ms) // policy.block_ms * policy.block_ms - 1
    return until if oldest <= until else None


def windows_of(selection: Selection, policy: FlushPolicy) -> Iterator[tuple[int, int]]:
    """The times (first one, and the one behind the last) of the blocks that a cut becomes."""
    samples = selection.samples
    if not len(samples.timestamps):
        return
    windows = np.unique(samples.timestamps // policy.block_ms)
    groups = np.array_split(windows, min(len(windows), policy.blocks_max))
    for group in groups:
        yield int(group[0]) * policy.block_ms, (int(group[-1]) + 1) * policy.block_ms
