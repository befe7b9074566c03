"""What is an expression worth at each step? The walk over the tree; every node has its own module."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from harch.sentinel.promql.evaluate.aggregation.aggregates import aggregated
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.functions.absence import absent
from harch.sentinel.promql.evaluate.functions.calls import call_result
from harch.sentinel.promql.evaluate.functions.time_functions import sample_times
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.invariance import is_invariant
from harch.sentinel.promql.evaluate.operators.binary import binary_result
from harch.sentinel.promql.evaluate.ranges.range_functions import range_function
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector, selected_range, subquery_range
from harch.sentinel.promql.evaluate.selection.reset_hints import inside_call
from harch.sentinel.promql.evaluate.selection.selected import instant_vector
from harch.sentinel.promql.evaluate.values import Objects, Scalar, Value, Vector, empty_vector, no_histograms
from harch.sentinel.promql.histograms.arithmetic import scaled
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    unwrap,
)
from harch.sentinel.promql.syntax.value_types import ValueType


def evaluate(node: Expr, grid: Grid, context: Context) -> Value:
    """The value of a bound expression on a grid. Raises HarchError."""
    context.budget.check()
    if grid.count > 1 and not isinstance(node, NumberLiteral | StringLiteral) and is_invariant(node):
        value = _spread(_evaluated(node, grid.first_only, context), grid.count, context)
    else:
        value = _evaluated(node, grid, context)
    if isinstance(value, Vector):
        context.budget.hold(value.values)
    return value


def _spread(value: Value, steps: int, context: Context) -> Value:
    if isinstance(value, Vector):
        context.budget.reserve_points(value.count, steps)
        return value.spread(steps)
    return value if isinstance(value, str) else np.repeat(value, steps)


def _evaluated(node: Expr, grid: Grid, context: Context) -> Value:
    match node:
        case NumberLiteral(value=number):
            return np.full(grid.count, number)
        case StringLiteral(value=text):
            return text
        case Paren(expr=inner):
            return evaluate(inner, grid, context)
        case VectorSelector():
            return instant_vector(node, grid, context)
        case Unary():
            return _signed(node, evaluate(node.expr, grid, context))
        case Binary():
            left, right = (evaluate(side, grid, context) for side in (node.left, node.right))
            return binary_result(node, left, right, context)
        case Aggregate():
            parameter = None if node.parameter is None else evaluate(node.parameter, grid, context)
            vector = cast(Vector, evaluate(node.expr, grid, context))
            return aggregated(node, vector, parameter, context)
        case Call():
            return _called(node, grid, context)
        case MatrixSelector() | Subquery():
            raise refuse("a range vector has no value at a step", hint="put it into a function such as rate()")


def _signed(node: Unary, value: Value) -> Value:
    if node.operator == "+" or isinstance(value, str):
        return value
    if not isinstance(value, Vector):
        return -value
    negated = value.with_values(-value.values)
    return replace(negated, histograms=_negated(value)) if value.histograms is not None else negated


def _negated(vector: Vector) -> Objects:
    cells = no_histograms(vector.present.shape)
    there = vector.is_histogram
    if there is not None and vector.histograms is not None:
        for row, step in zip(*np.nonzero(there), strict=True):
            cells[row, step] = scaled(vector.histograms[row, step], -1.0)
    return cells


def _called(call: Call, grid: Grid, outside: Context) -> Value:
    context = inside_call(call, outside)
    at_range = next((place for place, each in enumerate(call.arguments) if each.type is ValueType.MATRIX), None)
    if at_range is not None:
        return _over_range(call, at_range, grid, context)
    if call.function in ("timestamp", "start_timestamp"):
        argument = unwrap(call.arguments[0])
        if isinstance(argument, VectorSelector):
            if call.function == "start_timestamp":
                known = context.options.start_timestamps
                return sample_times(argument, grid, context, starts=True) if known else empty_vector(grid.count)
            return sample_times(argument, grid, context)
    if call.function == "info":  # its second argument is a set of matchers, not something to read
        return call_result(call, [evaluate(call.arguments[0], grid, context)], grid, context)
    return call_result(call, [evaluate(each, grid, context) for each in call.arguments], grid, context)


def _over_range(call: Call, at_range: int, grid: Grid, context: Context) -> Vector:
    ranges = range_vector(call.arguments[at_range], grid, context)
    others = [each for place, each in enumerate(call.arguments) if place != at_range]
    parameters = [cast(Scalar, evaluate(each, grid, context)) for each in others]
    result = range_function(call, ranges, parameters, grid, context)
    return absent(result, call.arguments[at_range]) if call.function == "absent_over_time" else result


def range_vector(node: Expr, grid: Grid, context: Context) -> RangeVector:
    """The samples and windows of a range selector or a subquery."""
    inner = unwrap(node)
    if isinstance(inner, MatrixSelector):
        return selected_range(inner, grid, context)
    if isinstance(inner, Subquery):
        return subquery_range(inner, grid, context, evaluate)
    raise refuse("expected a range vector")
