"""Which series have samples? Asked of times alone; values are read only where deletions wait, and in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.erasing import drop_deleted, marked_series

_PIECE = 1024  # series of which samples are in memory at a time


def list_series(
    block: Block, matchers: Sequence[Matcher], start: int, end: int, deletions: Sequence[Deletion]
) -> SeriesTable:
    """Matching series of a block with samples in the range that no deletion has taken."""
    places, counts = block.counts(matchers, start, end)
    present = counts > 0
    table = block.table()
    marks = [marked_series(table, deletion) for deletion in deletions]
    if marks:
        doubtful = np.flatnonzero(present & np.any([mark[places] for mark in marks], axis=0))
        for first in range(0, len(doubtful), _PIECE):
            piece = doubtful[first : first + _PIECE]
            samples = block.read(places[piece], start, end)
            for deletion, mark in zip(deletions, marks, strict=True):
                samples = drop_deleted(samples, deletion, mark[places[piece]], block.meta.resolution_ms)
            present[piece] = samples.count > 0
    return table.take(places[present])
