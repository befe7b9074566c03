"""What do `step()`, `start()` and duration expressions mean in this query? A tree that depends on nothing else."""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harch.sentinel.promql.syntax.errors import PromqlSyntaxError
from harch.sentinel.promql.syntax.literals import DURATION_MS_MAX
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    DurationExpr,
    DurationNode,
    DurationOperator,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StartOrEnd,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """The grid of a query; an instant query has start = end and step 0."""

    start_ms: int
    end_ms: int
    step_ms: int = 0


def bind(query: str, expr: Expr, times: QueryTimes) -> Expr:
    """The tree with all durations as milliseconds and `@ start()`, `@ end()` as timestamps.

    `query` is the text that the tree was parsed from; failures show their place in it.
    """
    return _Binder(query, times).bound(expr)


class _Binder:
    def __init__(self, query: str, times: QueryTimes) -> None:
        self._query = query
        self._times = times

    def bound(self, node: Expr) -> Expr:
        match node:
            case NumberLiteral() | StringLiteral():
                return node
            case VectorSelector():
                return self._selector(node)
            case MatrixSelector(selector=selector):
                range_ms = self._ms(node.range_ms, node.range_expr)
                return replace(node, selector=self._selector(selector), range_ms=range_ms, range_expr=None)
            case Subquery():
                return self._subquery(node)
            case Paren() | Unary():
                return replace(node, expr=self.bound(node.expr))
            case Binary():
                return replace(node, left=self.bound(node.left), right=self.bound(node.right))
            case Aggregate():
                parameter = None if node.parameter is None else self.bound(node.parameter)
                return replace(node, expr=self.bound(node.expr), parameter=parameter)
            case FunctionCall():
                return replace(node, arguments=tuple(map(self.bound, node.arguments)))

    def _selector(self, node: VectorSelector) -> VectorSelector:
        offset_ms = self._ms(node.offset_ms, node.offset_expr, may_be_negative=True)
        at_ms = self._at(node.at_ms, node.at_edge)
        return replace(node, offset_ms=offset_ms, offset_expr=None, at_ms=at_ms, at_edge=None)

    def _subquery(self, node: Subquery) -> Subquery:
        return replace(
            node,
            expr=self.bound(node.expr),
            range_ms=self._ms(node.range_ms, node.range_expr),
            range_expr=None,
            step_ms=self._ms(node.step_ms, node.step_expr),
            step_expr=None,
            offset_ms=self._ms(node.offset_ms, node.offset_expr, may_be_negative=True),
            offset_expr=None,
            at_ms=self._at(node.at_ms, node.at_edge),
            at_edge=None,
        )

    def _at(self, at_ms: int | None, edge: StartOrEnd | None) -> int | None:
        if edge is None:
            return at_ms
        return self._times.start_ms if edge is StartOrEnd.START else self._times.end_ms

    def _ms(self, literal_ms: int, expr: DurationExpr | None, *, may_be_negative: bool = False) -> int:
        if expr is None:
            return literal_ms
        seconds = self._seconds(expr)
        if not abs(seconds) <= DURATION_MS_MAX / 1000:
            self._fail(expr, "duration is out of range")
        ms = round(seconds * 1000)
        if ms <= 0 and not may_be_negative:
            self._fail(expr, "duration must be greater than 0")
        return ms

    def _seconds(self, node: DurationNode) -> float:
        if isinstance(node, NumberLiteral):
            return node.value
        if node.operator is DurationOperator.STEP:
            return self._times.step_ms / 1000
        if node.operator is DurationOperator.RANGE:
            return (self._times.end_ms - self._times.start_ms) / 1000
        left = 0.0 if node.left is None else self._seconds(node.left)
        right = 0.0 if node.right is None else self._seconds(node.right)
        try:
            return self._combined(node, left, right)
        except (OverflowError, ValueError, ZeroDivisionError):  # what `**` and fmod raise where IEEE has Inf or NaN
            return math.nan

    def _combined(self, node: DurationExpr, left: float, right: float) -> float:
        match node.operator:
            case DurationOperator.ADD:
                return left + right
            case DurationOperator.SUBTRACT:
                return left - right
            case DurationOperator.MULTIPLY:
                return left * right
            case DurationOperator.DIVIDE:
                if right == 0:
                    self._fail(node, "division by zero")
                return left / right
            case DurationOperator.MODULO:
                if right == 0:
                    self._fail(node, "modulo by zero")
                return math.fmod(left, right)
            case DurationOperator.POWER:
                return math.pow(left, right)
            case DurationOperator.MINIMUM:
                return min(left, right)
            case _:
                return max(left, right)

    def _fail(self, node: DurationExpr, reason: str) -> None:
        raise PromqlSyntaxError(self._query, node.span, reason)
