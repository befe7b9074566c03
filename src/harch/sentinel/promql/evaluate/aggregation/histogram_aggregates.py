"""What do groups come to that hold native histograms? Sums and means, object by object."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.evaluate.aggregation.uniform_totals import uniform_totals
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.labels.columns import Groups
from harch.sentinel.promql.evaluate.speaker import AGGREGATION
from harch.sentinel.promql.evaluate.values import Vector, is_filled, no_histograms, settled_histograms
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms
from harch.sentinel.promql.histograms.layout import compacted
from harch.sentinel.promql.histograms.totals import average_of, total_of
from harch.sentinel.promql.syntax.nodes import Aggregate, unwrap


def add_histograms(node: Aggregate, vector: Vector, groups: Groups, floats: Vector, context: Context) -> Vector:
    """The result for floats, completed by that of histograms; a group of both at one step has none."""
    if vector.histograms is None:
        return floats
    there = is_filled(vector.histograms) & vector.present
    span = unwrap(node.expr).span
    present, cells = floats.present.copy(), no_histograms(floats.present.shape)
    order = np.argsort(groups.of_row, kind="stable")
    bounds = np.searchsorted(groups.of_row[order], np.arange(groups.count + 1))
    for group in context.budget.watched(range(groups.count)):
        rows_of_group = order[bounds[group] : bounds[group + 1]]
        inside = there[rows_of_group]
        if present[group].any() or not inside.any():
            continue  # floats among them, or floats only
        filled = no_histograms(inside.shape)
        filled[inside] = vector.histograms[rows_of_group][inside]
        for step, total in (uniform_totals(filled, is_mean=node.operator == "avg") or {}).items():
            present[group, step], cells[group, step] = True, total
            there[rows_of_group, step] = False
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, step in zip(*np.nonzero(there), strict=True):
        members[int(groups.of_row[row]), int(step)].append(int(row))
    for (group, step), rows in context.budget.watched(members.items()):
        if present[group, step]:
            present[group, step] = False
            context.notes.mixed_in_aggregation(span)
            continue
        histograms = [vector.histograms[row, step] for row in rows]
        try:
            result = total_of(histograms) if node.operator == "sum" else average_of(histograms)
        except IncompatibleHistograms:
            context.notes.mixed_exponential_and_custom(_odd_metric(vector, rows, histograms), span)
            continue
        if result.resets_collide:
            context.notes.conflicting_resets(AGGREGATION, span)
        if result.bounds_reconciled:
            context.notes.reconciled_buckets(AGGREGATION, span)
        present[group, step] = True
        cells[group, step] = compacted(result.histogram)
    return replace(floats, present=present, histograms=settled_histograms(cells))


def _odd_metric(vector: Vector, rows: list[int], histograms: list[Histogram]) -> str:
    """The name of the first histogram that does not fit to those before it."""
    column = vector.series.columns.get(METRIC_NAME)
    if column is None:
        return ""
    first = histograms[0].uses_custom_buckets
    odd = next(row for row, each in zip(rows, histograms, strict=True) if each.uses_custom_buckets != first)
    return str(column.values[column.codes[odd]])
