"""What do groups of series come to? Sums, means, extremes, counts, spreads and quantiles over series."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.evaluate.aggregation import aggregate_kernels as kernels
from harch.sentinel.promql.evaluate.aggregation.counted_values import count_values
from harch.sentinel.promql.evaluate.aggregation.histogram_aggregates import add_histograms
from harch.sentinel.promql.evaluate.aggregation.ranking import limited, sampled, topped
from harch.sentinel.promql.evaluate.chunks import STEPS_LEAST, in_chunks
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.labels.columns import (
    Groups,
    drop_columns,
    group_by_labels,
    group_without_labels,
    keep_columns,
)
from harch.sentinel.promql.evaluate.values import Bools, Floats, Value, Vector
from harch.sentinel.promql.syntax.nodes import Aggregate, unwrap

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


def aggregated(node: Aggregate, vector: Vector, parameter: Value | None, context: Context) -> Vector:
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


def _reduced(operator: str, vector: Vector, groups: Groups, context: Context) -> tuple[Floats, Bools]:
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
    node: Aggregate, vector: Vector, groups: Groups, quantiles: Floats, context: Context
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
