"""What do groups of series come to?

Sums, means, extremes, counts, spreads and quantiles, ranks and counted values, of floats and of native histograms.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate import aggregate_kernels as kernels
from harch.sentinel.promql.evaluate.aggregate_kernels import first_rows, top_rows
from harch.sentinel.promql.evaluate.annotations import AGGREGATION, shortest_general, shortest_plain
from harch.sentinel.promql.evaluate.context import STEPS_LEAST, EvaluationContext, in_chunks, refuse
from harch.sentinel.promql.evaluate.label_columns import (
    Groups,
    column_of,
    drop_columns,
    group_by_labels,
    group_without_labels,
    keep_columns,
    sampling_offset,
    with_column,
)
from harch.sentinel.promql.evaluate.uniform_histograms import uniform_totals
from harch.sentinel.promql.evaluate.values import (
    Bools,
    Floats,
    Ints,
    Value,
    Vector,
    is_filled,
    no_histograms,
    settled_histograms,
)
from harch.sentinel.promql.histograms.arithmetic import IncompatibleHistograms, average_of, total_of
from harch.sentinel.promql.histograms.buckets import compacted
from harch.sentinel.promql.histograms.notation import describe
from harch.sentinel.promql.syntax.literals import quote
from harch.sentinel.promql.syntax.nodes import Aggregate, unwrap

_INT64_EDGE = float(1 << 63)


def topped(node: Aggregate, vector: Vector, groups: Groups, limits: Floats, context: EvaluationContext) -> Vector:
    """`topk` and `bottomk`. A result of one step is ordered, best first, group after group."""
    whole = _whole_limits(limits, vector.count)
    if vector.histograms is not None and whole.max(initial=0) >= 1:
        context.notes.ignored_in_aggregation(node.operator, node.span)
    floats = vector.floats_only()
    sizes = np.minimum(np.bincount(groups.of_row, minlength=groups.count), whole.max(initial=0)).astype(np.int64)
    kept, heaps = np.zeros(vector.present.shape, np.bool_), np.full(int(sizes.sum()) + 1, -1, np.int64)
    values, present = np.ascontiguousarray(floats.values), np.ascontiguousarray(floats.present)
    sign = 1.0 if node.operator == "topk" else -1.0

    def run(start: int, end: int) -> None:
        top_rows(sign, whole, values, present, groups.of_row, sizes, start, end, heaps, kept)

    if len(sizes):
        in_chunks(context.budget, vector.steps, vector.count, run, least=STEPS_LEAST)
    result = _passed_on(floats, kept)
    if vector.steps != 1:
        return result
    return floats.take(_ranked(values[:, 0], heaps, sizes, sign))


def _ranked(values: Floats, heaps: Ints, sizes: Ints, sign: float) -> Ints:
    """The rows of one step from best to worst in each group, NaNs last."""
    rows: list[int] = []
    start = 0
    for size in sizes.tolist():
        members = [row for row in heaps[start : start + size].tolist() if row >= 0]
        members.sort(key=lambda row: (bool(np.isnan(values[row])), -sign * values[row]))
        rows.extend(members)
        start += size
    return np.array(rows, np.int64)


def limited(vector: Vector, groups: Groups, limits: Floats) -> Vector:
    """`limitk`: any k series of each group; here the first."""
    kept = np.zeros(vector.present.shape, np.bool_)
    whole = _whole_limits(limits, vector.count)
    first_rows(whole, np.ascontiguousarray(vector.present), groups.of_row, groups.count, kept)
    return _passed_on(vector, kept)


def sampled(node: Aggregate, vector: Vector, ratios: Floats, context: EvaluationContext) -> Vector:
    """`limit_ratio`: a share of the series that depends on their labels only; a negative ratio takes the others."""
    if np.isnan(ratios).any():
        raise refuse("Ratio value is NaN")
    if node.parameter is not None:
        span = unwrap(node.parameter).span
        if ratios.max(initial=0) > 1:
            context.notes.invalid_ratio(float(ratios.max()), 1.0, span)
        if ratios.min(initial=0) < -1:
            context.notes.invalid_ratio(float(ratios.min()), -1.0, span)
    capped = np.clip(ratios, -1.0, 1.0)[np.newaxis, :]
    rows = context.budget.watched(range(vector.count))
    offsets = np.array([sampling_offset(vector.series.labels_of(row)) for row in rows])[:, np.newaxis]
    kept = np.where(capped >= 0, offsets < capped, offsets >= 1.0 + capped)
    return _passed_on(vector, kept & vector.present)


def _whole_limits(limits: Floats, count: int) -> Ints:
    """k as integers, no larger than there are series."""
    if np.nanmax(limits, initial=-np.inf) < 1 and not np.isnan(limits).any():
        return np.zeros(len(limits), np.int64)
    if np.isnan(limits).any():
        raise refuse("Parameter value is NaN")
    if limits.min() <= -_INT64_EDGE:
        raise refuse(f"Scalar value {shortest_general(float(limits.min()))} underflows int64")
    if limits.max() >= _INT64_EDGE:
        raise refuse(f"Scalar value {shortest_general(float(limits.max()))} overflows int64")
    return np.clip(np.trunc(limits), 0, count).astype(np.int64)


def _passed_on(vector: Vector, kept: Bools) -> Vector:
    rows = np.flatnonzero(kept.any(axis=1))
    return replace(vector, present=kept).take(rows)


# What do groups come to that hold native histograms? Sums and means, object by object.


def add_histograms(
    node: Aggregate, vector: Vector, groups: Groups, floats: Vector, context: EvaluationContext
) -> Vector:
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


def _odd_metric(vector: Vector, rows: list[int], histograms: list[NativeHistogram]) -> str:
    """The name of the first histogram that does not fit to those before it."""
    column = vector.series.columns.get(METRIC_NAME)
    if column is None:
        return ""
    first = histograms[0].uses_custom_buckets
    odd = next(row for row, each in zip(rows, histograms, strict=True) if each.uses_custom_buckets != first)
    return str(column.values[column.codes[odd]])


# How many series have the same value? `count_values` puts each value in a label.


def count_values(node: Aggregate, vector: Vector, label: str, context: EvaluationContext) -> Vector:
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
        strings = [
            shortest_plain(float(value)) if cell is None else describe(cell)
            for value, cell in zip(values, cells, strict=True)
        ]
        return column_of(strings)
    used, inverse = np.unique(values.view(np.uint64), return_inverse=True)
    distinct = column_of([shortest_plain(float(value)) for value in used.view(np.float64)])
    return LabelColumn(distinct.codes[inverse], distinct.values)


# What do groups of series come to? Sums, means, extremes, counts, spreads and quantiles over series.


_REDUCTIONS = {
    "sum": kernels.SUM,
    "avg": kernels.AVERAGE,
    "min": kernels.MIN,
    "max": kernels.MAX,
    "count": kernels.COUNT,
    "group": kernels.GROUP,
    "stddev": kernels.STDDEV,
    "stdvar": kernels.STDVAR,
}


def aggregated(node: Aggregate, vector: Vector, parameter: Value | None, context: EvaluationContext) -> Vector:
    """An aggregation over a vector; `parameter` is the k, quantile, ratio or label name it was given."""
    groups = groups_of(node, vector.series)
    match node.operator:
        case "count_values":
            return count_values(node, vector, str(parameter), context)
        case "topk" | "bottomk":
            return topped(node, vector, groups, _numbers(parameter), context)
        case "limitk":
            return limited(vector, groups, _numbers(parameter))
        case "limit_ratio":
            return sampled(node, vector, _numbers(parameter), context)
    series = group_labels(node, vector.series.take(groups.first))
    drops_name = np.zeros(groups.count, np.bool_)
    drops_name[groups.of_row[vector.drops_name]] = True
    if node.operator == "quantile":
        values, present = _quantiles(node, vector, groups, _numbers(parameter), context)
    else:
        values, present = _reduced(node.operator, vector, groups, context)
    result = Vector(series, values, present, drops_name)
    if vector.histograms is None:
        return result
    if node.operator in ("sum", "avg"):
        return add_histograms(node, vector, groups, result, context)
    if node.operator not in ("count", "group"):
        context.notes.ignored_in_aggregation(node.operator, unwrap(node.expr).span)
    return result


def groups_of(node: Aggregate, series: SeriesTable) -> Groups:
    """Which series are put together?"""
    if node.without:
        return group_without_labels(series, (*node.grouping, METRIC_NAME))
    return group_by_labels(series, node.grouping)


def group_labels(node: Aggregate, series: SeriesTable) -> SeriesTable:
    """The labels that a group keeps of its first series."""
    if node.without:
        return drop_columns(series, (*node.grouping, METRIC_NAME))
    return keep_columns(series, node.grouping)


def _numbers(parameter: Value | None) -> Floats:
    return np.asarray(parameter, np.float64)


def _reduced(operator: str, vector: Vector, groups: Groups, context: EvaluationContext) -> tuple[Floats, Bools]:
    counts_all = operator in ("count", "group")  # to these a histogram is a sample like any other
    present = np.ascontiguousarray(vector.present if counts_all else vector.has_float)
    values = np.ascontiguousarray(vector.values)
    out, filled = np.empty((groups.count, vector.steps)), np.empty((groups.count, vector.steps), np.bool_)
    operation = _REDUCTIONS[operator]

    def run(start: int, end: int) -> None:
        kernels.reduce_groups(operation, values, present, groups.of_row, start, end, out, filled)

    in_chunks(context.budget, vector.steps, vector.count, run, least=STEPS_LEAST)
    return out, filled


def _quantiles(
    node: Aggregate, vector: Vector, groups: Groups, quantiles: Floats, context: EvaluationContext
) -> tuple[Floats, Bools]:
    if node.parameter is not None:
        for outside in _outside(quantiles):
            context.notes.invalid_quantile(outside, unwrap(node.parameter).span)
    present, values = np.ascontiguousarray(vector.has_float), np.ascontiguousarray(vector.values)
    order = np.argsort(groups.of_row, kind="stable")
    bounds = np.searchsorted(groups.of_row[order], np.arange(groups.count + 1)).astype(np.int64)
    out, filled = np.empty((groups.count, vector.steps)), np.empty((groups.count, vector.steps), np.bool_)
    given = np.ascontiguousarray(quantiles)

    def run(start: int, end: int) -> None:
        kernels.group_quantiles(given, values, present, order, bounds, start, end, out, filled)

    in_chunks(context.budget, vector.steps, vector.count * 4, run, least=STEPS_LEAST)
    return out, filled


def _outside(quantiles: Floats) -> list[float]:
    """The quantiles worth a warning: NaN, the largest above 1, the smallest below 0."""
    found = [float("nan")] if np.isnan(quantiles).any() else []
    known = quantiles[~np.isnan(quantiles)]
    if len(known) and known.max() > 1:
        found.append(float(known.max()))
    if len(known) and known.min() < 0:
        found.append(float(known.min()))
    return found
