"""In which other ways can the same be asked? With `@` at other times, and as the middle step of a range."""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Call,
    DurationExpr,
    DurationNode,
    DurationOperator,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    walk,
)
from harch.sentinel.promql.syntax.printer import to_text

_CALENDAR = {"days_in_month", "day_of_month", "day_of_week", "day_of_year", "hour", "minute", "month", "year"}
_QUERY_TIMES = {"start", "end", "step", "range"}
_TIME_DEPENDENT = _CALENDAR | _QUERY_TIMES | {"predict_linear", "time", "timestamp", "start_timestamp"}
MIDDLE_STEP_MS = 60_000


def fixed_queries(expr: Expr, time_ms: int) -> list[tuple[str, int]]:
    """The query with `@ time` at every selector that has none, and when to ask it: the answer must not change.

    A subquery takes the time for what is inside of it. Empty where a function looks at the clock itself.
    """
    if any(isinstance(node, Call) and node.function in _TIME_DEPENDENT for node in walk(expr)):
        return []
    if _asks_for_the_grid(expr) or any(isinstance(node, Subquery) and _has_edge(node.expr) for node in walk(expr)):
        return []
    text = to_text(_fixed(expr, time_ms))
    if time_ms == 0:
        return [(text, -1000), (text, 0), (text, 1000)]
    return [(text, when) for when in (-10 * time_ms, 0, int(time_ms / 5), time_ms, 10 * time_ms)]


def can_be_middle_step(expr: Expr) -> bool:
    """False where the query looks at its own grid, which is another one in a range."""
    if any(isinstance(node, Call) and node.function in _QUERY_TIMES for node in walk(expr)):
        return False
    return not _has_edge(expr) and not _asks_for_the_grid(expr)


def _has_edge(expr: Expr) -> bool:
    return any(isinstance(node, VectorSelector | Subquery) and node.at_edge is not None for node in walk(expr))


def _asks_for_the_grid(expr: Expr) -> bool:
    return any(
        _uses_grid(duration)
        for node in walk(expr)
        for duration in (
            getattr(node, "range_expr", None),
            getattr(node, "step_expr", None),
            getattr(node, "offset_expr", None),
        )
    )


def _uses_grid(duration: DurationNode | None) -> bool:
    if not isinstance(duration, DurationExpr):
        return False
    if duration.operator in (DurationOperator.STEP, DurationOperator.RANGE):
        return True
    return _uses_grid(duration.left) or _uses_grid(duration.right)


def _fixed(node: Expr, time_ms: int) -> Expr:
    match node:
        case NumberLiteral() | StringLiteral():
            return node
        case VectorSelector():
            return _at(node, time_ms)
        case MatrixSelector():
            return replace(node, selector=_at(node.selector, time_ms))
        case Subquery():
            return node if node.at_ms is not None else replace(node, at_ms=time_ms, at_edge=None)
        case Paren() | Unary():
            return replace(node, expr=_fixed(node.expr, time_ms))
        case Binary():
            return replace(node, left=_fixed(node.left, time_ms), right=_fixed(node.right, time_ms))
        case Aggregate():
            parameter = None if node.parameter is None else _fixed(node.parameter, time_ms)
            return replace(node, expr=_fixed(node.expr, time_ms), parameter=parameter)
        case Call():
            return replace(node, arguments=tuple(_fixed(argument, time_ms) for argument in node.arguments))


def _at(selector: VectorSelector, time_ms: int) -> VectorSelector:
    return selector if selector.at_ms is not None else replace(selector, at_ms=time_ms, at_edge=None)
