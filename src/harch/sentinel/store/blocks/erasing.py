"""How do samples disappear that were deleted? Series are marked by matchers, then their times are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.selection import Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.matching import matching_series
from harch.sentinel.store.blocks.merging import take_samples
from harch.sentinel.store.blocks.selecting_kernels import drop_ranges


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
