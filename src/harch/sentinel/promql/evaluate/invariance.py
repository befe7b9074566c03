"""Does an expression depend on the step at all? What does not is evaluated once."""

from __future__ import annotations

from harch.sentinel.promql.syntax.nodes import (
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    StringLiteral,
    Subquery,
    VectorSelector,
    children,
)

# Their results follow the time of evaluation, even if their arguments do not.
_TIME_DEPENDENT = frozenset(
    {"days_in_month", "day_of_month", "day_of_week", "day_of_year", "hour", "minute", "month", "year"}
    | {"predict_linear", "time", "timestamp"}
)


def is_invariant(node: Expr) -> bool:
    """True if every step gives the same: all selectors are pinned by `@`, and no function asks for the time."""
    match node:
        case NumberLiteral() | StringLiteral():
            return True
        case VectorSelector() | Subquery():
            return node.at_ms is not None
        case MatrixSelector(selector=selector):
            return selector.at_ms is not None
        case Call(function=name) if name in _TIME_DEPENDENT:
            return False
        case _:
            return all(map(is_invariant, children(node)))
