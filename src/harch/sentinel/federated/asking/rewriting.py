"""What means the same and asks for less? Sums of sums become one sum, and factors are applied where it is asked."""

from __future__ import annotations

import math
from dataclasses import replace

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.syntax.binding import QueryTimes
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

# outer over inner -> what both are in one
_NESTED = {("sum", "sum"): "sum", ("sum", "count"): "count", ("min", "min"): "min", ("max", "max"): "max"}
_LINEAR = frozenset({"sum", "avg"})


def settled(node: Expr, times: QueryTimes, subquery_step_ms: int) -> Expr:
    """Without what other hubs could read differently: `start()`, `end()`, `step()`, `range()`, a missing step."""
    match node:
        case NumberLiteral() | StringLiteral() | VectorSelector() | MatrixSelector():
            return node
        case Paren() | Unary():
            return replace(node, expr=settled(node.expr, times, subquery_step_ms))
        case Subquery():
            inner = settled(node.expr, times, subquery_step_ms)
            return replace(node, expr=inner, step_ms=node.step_ms or subquery_step_ms)
        case Binary():
            sides = (settled(side, times, subquery_step_ms) for side in (node.left, node.right))
            left, right = sides
            return replace(node, left=left, right=right)
        case Aggregate():
            parameter = None if node.parameter is None else settled(node.parameter, times, subquery_step_ms)
            return replace(node, expr=settled(node.expr, times, subquery_step_ms), parameter=parameter)
        case Call(function="start"):
            return Paren(NumberLiteral(times.start_ms / 1000, span=node.span))
        case Call(function="end"):
            return Paren(NumberLiteral(times.end_ms / 1000, span=node.span))
        case Call(function="step"):
            return Paren(NumberLiteral(times.step_ms / 1000, span=node.span))
        case Call(function="range"):
            return Paren(NumberLiteral((times.end_ms - times.start_ms) / 1000, span=node.span))
        case Call():
            return replace(node, arguments=tuple(settled(each, times, subquery_step_ms) for each in node.arguments))


def flattened(node: Aggregate) -> Aggregate:
    """`sum by (a) (sum by (a, b) (x))` is `sum by (a) (x)`: hubs then tell less, and of larger groups."""
    inner = unwrap(node.expr)
    while isinstance(inner, Aggregate) and (node.operator, inner.operator) in _NESTED:
        operator = _NESTED[node.operator, inner.operator]
        node = replace(_joint_grouping(node, inner), operator=operator, expr=inner.expr)
        inner = unwrap(node.expr)
    return node


def _joint_grouping(outer: Aggregate, inner: Aggregate) -> Aggregate:
    """The labels that both keep. `without` also takes the name away."""
    if outer.without and inner.without:
        return replace(outer, grouping=tuple(dict.fromkeys((*outer.grouping, *inner.grouping))))
    if outer.without:
        dropped = {*outer.grouping, METRIC_NAME}
        return replace(outer, without=False, grouping=tuple(name for name in inner.grouping if name not in dropped))
    if inner.without:
        dropped = {*inner.grouping, METRIC_NAME}
        return replace(outer, grouping=tuple(name for name in outer.grouping if name not in dropped))
    return replace(outer, grouping=tuple(name for name in outer.grouping if name in inner.grouping))


def without_factor(node: Aggregate) -> tuple[Aggregate, Binary | Unary] | None:
    """`sum(x * 8)` as `sum(x)` and the `… * 8` around it; None where there is no factor to take out.

    Only numbers: a product with zero or infinity is not that of the sum.
    """
    inner = unwrap(node.expr)
    if node.operator not in _LINEAR:
        return None
    if isinstance(inner, Unary):
        return replace(node, expr=inner.expr), inner
    if isinstance(inner, Binary) and inner.operator in ("*", "/"):
        if _is_factor(inner.right):
            return replace(node, expr=inner.left), inner
        if inner.operator == "*" and _is_factor(inner.left):
            return replace(node, expr=inner.right), inner
    return None


def with_factor(value: Expr, factor: Binary | Unary) -> Expr:
    if isinstance(factor, Unary):
        return replace(factor, expr=value)
    if _is_factor(factor.right):
        return replace(factor, left=value)
    return replace(factor, right=value)


def _is_factor(node: Expr) -> bool:
    number = unwrap(node)
    if isinstance(number, Unary):
        number = unwrap(number.expr)
    return isinstance(number, NumberLiteral) and math.isfinite(number.value) and number.value != 0
