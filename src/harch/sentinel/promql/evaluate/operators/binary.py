"""What do operators give? Between scalars, between a vector and a scalar, and between vectors that match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.labels.merging import merge_equal_series
from harch.sentinel.promql.evaluate.operators.arithmetic import scalar_result
from harch.sentinel.promql.evaluate.operators.histogram_operators import (
    Outcome,
    Side,
    float_outcome,
    needs_objects,
    with_histograms,
)
from harch.sentinel.promql.evaluate.operators.matching import Pairs, matched_pairs
from harch.sentinel.promql.evaluate.operators.set_operators import set_operation
from harch.sentinel.promql.evaluate.values import Scalar, Value, Vector
from harch.sentinel.promql.syntax.nodes import ARITHMETIC, COMPARISONS, SET_OPERATORS, Binary


def binary_result(node: Binary, left: Value, right: Value, context: Context) -> Value:
    """The value of `left operator right`."""
    if isinstance(left, Vector) and isinstance(right, Vector):
        if node.operator in SET_OPERATORS:
            return set_operation(node, left, right)
        return _between_vectors(node, left, right, context)
    if isinstance(left, Vector) and isinstance(right, np.ndarray):
        return _with_scalar(node, left, right, False, context)
    if isinstance(right, Vector) and isinstance(left, np.ndarray):
        return _with_scalar(node, right, left, True, context)
    return scalar_result(node.operator, np.asarray(left), np.asarray(right))


def _with_scalar(node: Binary, vector: Vector, scalar: Scalar, is_swapped: bool, context: Context) -> Vector:
    """A comparison passes on the vector's sample, whichever side it stands on."""
    numbers = np.broadcast_to(scalar, vector.values.shape)
    ours, theirs = Side(vector.values, vector.histograms), Side(numbers, None)
    left, right = (theirs, ours) if is_swapped else (ours, theirs)
    outcome = _outcome(node, left, right, vector, context)
    values, histograms, present = outcome.values, outcome.histograms, outcome.present
    if node.operator in COMPARISONS:
        if node.return_bool:
            return Vector(vector.series, outcome.holds.astype(np.float64), present, np.ones(vector.count, np.bool_))
        return replace(vector, present=present & outcome.holds)
    drops = node.operator in ARITHMETIC
    result = replace(vector, values=values, present=present & outcome.holds, histograms=histograms)
    return replace(result, drops_name=np.ones(vector.count, np.bool_)) if drops else result


def _outcome(node: Binary, left: Side, right: Side, where: Vector, context: Context) -> Outcome:
    floats = float_outcome(node.operator, left.values, right.values, where.present)
    if not needs_objects(node.operator, left, right):
        return floats
    return with_histograms(node.operator, left, right, floats, context, node.span)


def _between_vectors(node: Binary, left: Vector, right: Vector, context: Context) -> Vector:
    pairs = matched_pairs(node, left, right, context)
    sides = (pairs.left_side, pairs.right_side)
    floats = float_outcome(node.operator, sides[0].values, sides[1].values, pairs.present)
    outcome = floats
    if needs_objects(node.operator, *sides):
        outcome = with_histograms(node.operator, *sides, floats, context, node.span)
    return merge_equal_series(_labelled(node, pairs, outcome))


def _labelled(node: Binary, pairs: Pairs, outcome: Outcome) -> Vector:
    series = pairs.series
    if node.operator in COMPARISONS and node.return_bool:
        values = outcome.holds.astype(np.float64)
        return Vector(series, values, outcome.present, np.ones(series.count, np.bool_))
    return Vector(series, outcome.values, outcome.present & outcome.holds, pairs.drops_name, outcome.histograms)
