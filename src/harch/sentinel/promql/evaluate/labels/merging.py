"""What if two series end up with the same labels? One series, unless both have a sample at the same step."""

from __future__ import annotations

import numpy as np

from harch.sentinel.promql.evaluate.context import refuse
from harch.sentinel.promql.evaluate.labels.columns import METADATA_LABELS, Groups, clear_labels, group_rows
from harch.sentinel.promql.evaluate.labels.label_kernels import count_present
from harch.sentinel.promql.evaluate.values import Bools, Ints, Objects, Vector, no_histograms
from harch.sentinel.promql.histograms.layout import compacted

_SAME_LABELS = "vector cannot contain metrics with the same labelset"


def without_empty(vector: Vector) -> Vector:
    """Without series that have no sample at all."""
    filled = vector.present.any(axis=1)
    return vector if filled.all() else vector.take(np.flatnonzero(filled))


def finished(vector: Vector) -> Vector:
    """The vector as it goes out: names that were to be dropped are, and no two series are alike."""
    filled = without_empty(vector)
    series = clear_labels(filled.series, METADATA_LABELS, filled.drops_name)
    kept = np.zeros(filled.count, np.bool_)
    return merge_equal_series(Vector(series, filled.values, filled.present, kept, _without_empty_buckets(filled)))


def _without_empty_buckets(vector: Vector) -> Objects | None:
    there = vector.is_histogram
    if vector.histograms is None or there is None:
        return None
    cells = no_histograms(vector.present.shape)
    for row, step in zip(*np.nonzero(there), strict=True):
        cells[row, step] = compacted(vector.histograms[row, step])
    return cells


def merge_equal_series(vector: Vector) -> Vector:
    """One row for each label set; refuses two samples of one at the same step.

    A series that will lose its name is not the same as one that keeps it.
    """
    if vector.count < 2:
        return vector
    columns = [column.codes for column in vector.series.columns.values()]
    if vector.drops_name.any():
        columns.append(vector.drops_name.astype(np.int32))
    groups = group_rows(vector.count, columns)
    return vector if groups.count == vector.count else _merged(vector, groups)


def _merged(vector: Vector, groups: Groups) -> Vector:
    present = np.zeros((groups.count, vector.steps), np.bool_)
    values = np.zeros(present.shape)
    cells = None if vector.histograms is None else no_histograms(present.shape)
    for row, group in enumerate(groups.of_row.tolist()):
        here = vector.present[row]
        if (present[group] & here).any():
            raise refuse(_SAME_LABELS, hint="keep a label that tells the series apart, or aggregate over it")
        present[group] |= here
        values[group, here] = vector.values[row, here]
        if cells is not None and vector.histograms is not None:
            cells[group, here] = vector.histograms[row, here]
    return Vector(vector.series.take(groups.first), values, present, vector.drops_name[groups.first], cells)


def counts_by_group(of_row: Ints, group_count: int, present: Bools) -> Ints:
    """How many series of each group are present at each step."""
    counts = np.zeros((group_count, present.shape[1]), np.int64)
    count_present(np.ascontiguousarray(of_row), np.ascontiguousarray(present), counts)
    return counts
