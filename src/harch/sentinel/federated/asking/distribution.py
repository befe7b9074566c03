"""Which expressions may every hub evaluate alone, so that all their series together are the answer?

Those in which every series of the result comes from one series of the store: selectors, functions over time,
arithmetic with numbers. Matching between vectors, and groups, may join series of two hubs. Where every series carries a
label that no two hubs share (`hub_label`), what keeps this label apart stays inside a hub, too.
"""

from __future__ import annotations

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
    VectorMatching,
    VectorSelector,
    walk,
)
from harch.sentinel.promql.syntax.value_types import ValueType

# What looks at more than one series at a time, at their order, or at none of them.
_LOOKS_AROUND = frozenset(
    {"absent", "absent_over_time", "info", "scalar", "vector", "sort", "sort_desc", "sort_by_label"}
    | {"sort_by_label_desc", "histogram_quantile", "histogram_quantiles", "histogram_fraction"}
)
_BUCKETS = frozenset({"histogram_quantile", "histogram_quantiles", "histogram_fraction"})  # join series of one `le`
_WRITES_LABELS = frozenset({"label_replace", "label_join", "histogram_quantiles"})  # the second argument names it


def reads_series(node: Expr) -> bool:
    """Whether anything is read from a store. What reads nothing is evaluated where the question is asked."""
    return any(isinstance(each, VectorSelector) for each in walk(node))


def is_constant(node: Expr) -> bool:
    """A number or text that is the same at every hub at the same time."""
    return node.type in (ValueType.SCALAR, ValueType.STRING) and not reads_series(node)


def is_local(node: Expr, hub_label: str | None = None) -> bool:
    """Whether the series that hubs compute alone are, put together, those that one store of all hubs would give."""
    match node:
        case NumberLiteral() | StringLiteral():
            return False
        case VectorSelector():
            return True
        case MatrixSelector(selector=selector):
            return is_local(selector, hub_label)
        case Subquery(expr=inner) | Paren(expr=inner) | Unary(expr=inner):
            return is_local(inner, hub_label)
        case Binary():
            return _is_local_binary(node, hub_label)
        case Aggregate():
            return _is_local_aggregate(node, hub_label)
        case Call():
            return _is_local_call(node, hub_label)


def _is_local_binary(node: Binary, hub_label: str | None) -> bool:
    if is_constant(node.left):
        return is_local(node.right, hub_label)
    if is_constant(node.right):
        return is_local(node.left, hub_label)
    if hub_label is None or node.matching is None or not _matches_on(node.matching, hub_label):
        return False
    return all(is_local(side, hub_label) and not _writes(side, hub_label) for side in (node.left, node.right))


def _matches_on(matching: VectorMatching, label: str) -> bool:
    return (label in matching.labels) is matching.on


def _is_local_aggregate(node: Aggregate, hub_label: str | None) -> bool:
    if node.parameter is not None and not is_constant(node.parameter):
        return False
    if node.operator == "limit_ratio":  # chooses series by their labels alone
        return is_local(node.expr, hub_label)
    if hub_label is None or (hub_label in node.grouping) is node.without or _writes(node, hub_label):
        return False
    return is_local(node.expr, hub_label)


def _is_local_call(node: Call, hub_label: str | None) -> bool:
    if node.function in _LOOKS_AROUND:
        may_stay = hub_label is not None and node.function in _BUCKETS and not _writes(node, hub_label)
        if not may_stay:
            return False
    series = [each for each in node.arguments if not is_constant(each)]
    return len(series) == 1 and is_local(series[0], hub_label)


def _writes(node: Expr, label: str) -> bool:
    """Whether the label may no longer be the one that the hub's series carry."""
    return any(
        (isinstance(each, Call) and each.function in _WRITES_LABELS and each.arguments[1] == StringLiteral(label))
        or (isinstance(each, Aggregate) and each.parameter == StringLiteral(label))
        for each in walk(node)
    )
