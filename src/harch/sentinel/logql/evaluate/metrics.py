"""What does an expression of numbers give? Its leaves read lines; all above them is PromQL's own arithmetic."""

from __future__ import annotations

from typing import cast

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.ranges import range_result
from harch.sentinel.logql.evaluate.work import Work
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelReplace,
    LogQuery,
    Number,
    Query,
    RangeAggregation,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.promql.evaluate.aggregation.aggregates import aggregated
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.functions.label_functions import replaced_label, sorted_by_value
from harch.sentinel.promql.evaluate.functions.time_functions import constant_vector
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.operators.binary import binary_result
from harch.sentinel.promql.evaluate.values import Scalar, Value, Vector
from harch.sentinel.promql.syntax.nodes import Aggregate, Binary, NumberLiteral

_ALREADY_KNOWN = NumberLiteral(0.0)  # PromQL's nodes want their operands; here only their values are used


def metric_value(node: Query, grid: Grid, work: Work, context: Context) -> Value:
    """A vector, or one number a step."""
    work.budget.check()
    match node:
        case Number(value=value):
            return np.full(grid.count, value)
        case VectorOf(value=value):
            return constant_vector(np.full(grid.count, value))
        case RangeAggregation():
            return range_result(node, grid, work, context)
        case VectorAggregation():
            return _aggregated(node, grid, work, context)
        case BinaryOperation(left=left, right=right):
            sides = [metric_value(side, grid, work, context) for side in (left, right)]
            binary = Binary(
                node.operator, _ALREADY_KNOWN, _ALREADY_KNOWN, node.matching, node.return_bool, span=node.span
            )
            return binary_result(binary, sides[0], sides[1], context)
        case LabelReplace(expr=expr):
            vector = _vector(expr, grid, work, context)
            return replaced_label(vector, node.target, node.replacement, node.source, node.expression)
        case LogQuery():
            raise HarchError("E0689", "lines are no number", hint="put them into e.g. count_over_time()")


def _vector(node: Query, grid: Grid, work: Work, context: Context) -> Vector:
    return cast(Vector, metric_value(node, grid, work, context))


def _aggregated(node: VectorAggregation, grid: Grid, work: Work, context: Context) -> Vector:
    grouping = node.grouping or Grouping(())
    if node.operator == "sum" and isinstance(node.expr, RangeAggregation):
        vector = range_result(node.expr, grid, work, context, summed_by=grouping)
    else:
        vector = _vector(node.expr, grid, work, context)
    if node.operator in ("sort", "sort_desc"):
        return sorted_by_value(vector, descending=node.operator == "sort_desc")
    parameter: Scalar | None = None
    literal: NumberLiteral | None = None
    if node.parameter is not None:
        parameter = np.full(grid.count, float(node.parameter))
        literal = NumberLiteral(float(node.parameter), span=node.span)
    aggregate = Aggregate(node.operator, _ALREADY_KNOWN, literal, grouping.labels, grouping.without, span=node.span)
    return aggregated(aggregate, vector, parameter, context)
