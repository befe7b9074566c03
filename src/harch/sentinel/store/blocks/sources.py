"""Where do the samples of a new block come from?

From the selection of the head, or from older blocks without what was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.selection import Ints, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.block import Block, matching_series
from harch.sentinel.store.blocks.deletions import Deletion, DeletionList
from harch.sentinel.store.blocks.merge import merge_samples, merge_tables, take_samples
from harch.sentinel.store.blocks.sample_kernels import cut_regions, drop_ranges


def without_deleted(selection: Selection, deletions: Sequence[Deletion], resolution_ms: int) -> Selection:
    """A selection as if the deleted samples had never been there. Series may be left without samples."""
    samples = selection.samples
    for deletion in deletions:
        samples = drop_deleted(samples, deletion, marked_series(selection.series, deletion), resolution_ms)
    return Selection(selection.series, samples)


def marked_series(table: SeriesTable, deletion: Deletion) -> npt.NDArray[np.bool_]:
    """Which series does a deletion name?"""
    marked = np.zeros(table.count, np.bool_)
    marked[matching_series(table.count, table.columns.get, deletion.as_matchers())] = True
    return marked


def drop_deleted(samples: Samples, deletion: Deletion, marked: npt.NDArray[np.bool_], resolution_ms: int) -> Samples:
    if not (samples.count[marked] > 0).any():
        return samples
    start, end = deletion.range_at(resolution_ms)
    first, count, places = drop_ranges(samples.timestamps, samples.first, samples.count, marked, start, end)
    return take_samples(samples, first, count, places)


# Where do the samples of a new block come from? From the head's selection, or from older blocks.


class BlockSource(Protocol):
    """What a block is written from, piece by piece, so that only a piece is in memory."""

    @property
    def series(self) -> SeriesTable: ...

    @property
    def samples(self) -> int:
        """About how many samples there are: decides how the block is cut into pages."""
        ...

    def read(self, places: Ints, start: int, end: int) -> Samples:
        """Samples of these series, in this order, with `start <= t <= end`."""
        ...


class SelectionSource:
    """Samples that are in memory."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    @property
    def series(self) -> SeriesTable:
        return self._selection.series

    @property
    def samples(self) -> int:
        return int(self._selection.samples.count.sum())

    def read(self, places: Ints, start: int, end: int) -> Samples:
        whole = self._selection.samples
        first, count = cut_regions(whole.timestamps, whole.first[places], whole.count[places], start, end)
        return Samples(first, count, whole.timestamps, whole.values, whole.starts, whole.histogram_at, whole.histograms)


class BlocksSource:
    """The samples of several blocks of one resolution, without what was deleted; what was written later wins."""

    def __init__(self, blocks: Sequence[Block], deletions: DeletionList) -> None:
        self._blocks = sorted(blocks, key=lambda block: (block.meta.newest, block.meta.sequence))
        tables = [block.table() for block in self._blocks]
        self._series, homes = merge_tables(tables)
        self._places = [_inverse(home, self._series.count) for home in homes]
        self._deletions = [
            [(deletion, marked_series(table, deletion)) for deletion in deletions.concerning(block.meta)]
            for block, table in zip(self._blocks, tables, strict=True)
        ]

    @property
    def series(self) -> SeriesTable:
        return self._series

    @property
    def samples(self) -> int:
        return sum(block.meta.samples for block in self._blocks)

    def read(self, places: Ints, start: int, end: int) -> Samples:
        parts: list[Samples] = []
        groups: list[Ints] = []
        for block, home, deletions in zip(self._blocks, self._places, self._deletions, strict=True):
            mine = home[places]
            present = mine >= 0
            samples = block.read(mine[present], start, end)
            for deletion, marked in deletions:
                samples = drop_deleted(samples, deletion, marked[mine[present]], block.meta.resolution_ms)
            parts.append(samples)
            groups.append(np.flatnonzero(present))
        return merge_samples(parts, groups, len(places))


def _inverse(home: Ints, count: int) -> Ints:
    """From places in the common table to places in one block; -1 for series that it lacks."""
    places = np.full(count, -1, np.int64)
    places[home] = np.arange(len(home))
    return places
