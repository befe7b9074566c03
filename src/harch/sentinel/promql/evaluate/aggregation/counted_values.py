"""How many series have the same value? `count_values` puts each value in a label."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.float_text import shortest_plain
from harch.sentinel.promql.evaluate.labels.columns import (
    column_of,
    drop_columns,
    group_by_labels,
    group_without_labels,
    keep_columns,
    with_column,
)
from harch.sentinel.promql.evaluate.values import Vector
from harch.sentinel.promql.histograms.notation import describe
from harch.sentinel.promql.syntax.nodes import Aggregate
from harch.sentinel.promql.syntax.quoting import quote


def count_values(node: Aggregate, vector: Vector, label: str, context: Context) -> Vector:
    """Every sample becomes a member of the group of its labels and its value."""
    if not is_label_name(label):
        raise refuse(f"invalid label name {quote(label)}")
    rows, steps = np.nonzero(vector.present)
    context.budget.reserve_points(len(rows), 1)
    series = with_column(vector.series.take(rows), label, _value_column(vector, rows, steps))
    if node.without:
        groups = group_without_labels(series, (*node.grouping, METRIC_NAME))
        labels = drop_columns(series.take(groups.first), (*node.grouping, METRIC_NAME))
    else:
        groups = group_by_labels(series, (*node.grouping, label))
        labels = keep_columns(series.take(groups.first), (*node.grouping, label))
    context.budget.reserve_points(groups.count, vector.steps)
    counts = np.zeros((groups.count, vector.steps))
    np.add.at(counts, (groups.of_row, steps), 1.0)
    return Vector(SeriesTable(groups.count, labels.columns), counts, counts > 0, np.zeros(groups.count, np.bool_))


def is_label_name(name: str) -> bool:
    """Any text that is valid UTF-8 names a label, if there is some."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _value_column(vector: Vector, rows: np.typing.NDArray[np.intp], steps: np.typing.NDArray[np.intp]) -> LabelColumn:
    values = vector.values[rows, steps]
    if vector.histograms is not None:
        cells = vector.histograms[rows, steps]
        texts = [
            shortest_plain(float(value)) if cell is None else describe(cell)
            for value, cell in zip(values, cells, strict=True)
        ]
        return column_of(texts)
    used, inverse = np.unique(values.view(np.uint64), return_inverse=True)
    distinct = column_of([shortest_plain(float(value)) for value in used.view(np.float64)])
    return LabelColumn(distinct.codes[inverse], distinct.values)
