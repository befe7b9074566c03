"""Do the types fit? What a node may be made of, checked when it is built."""

# harch: pure

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.promql.syntax.cursor import Feature, TokenCursor
from harch.sentinel.promql.syntax.literals import quote
from harch.sentinel.promql.syntax.nodes import (
    AGGREGATIONS_WITH_PARAMETER,
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Cardinality,
    Expr,
    FunctionCall,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
)

_OPERANDS = (ValueType.SCALAR, ValueType.VECTOR)
_EXPERIMENTAL_AGGREGATIONS = frozenset({"limitk", "limit_ratio"})


def check_aggregate(cursor: TokenCursor, node: Aggregate) -> None:
    if node.operator in _EXPERIMENTAL_AGGREGATIONS:
        flag = Feature.EXPERIMENTAL_FUNCTIONS
        sentence = f"{node.operator}() is experimental and must be enabled with --enable-feature={flag.value}"
        cursor.require(flag, node.span, sentence)
    _expect(cursor, node.expr, ValueType.VECTOR, "aggregation expression")
    if node.parameter is not None and node.operator in AGGREGATIONS_WITH_PARAMETER:
        wanted = ValueType.STRING if node.operator == "count_values" else ValueType.SCALAR
        _expect(cursor, node.parameter, wanted, "aggregation parameter")


def _expect(cursor: TokenCursor, node: Expr, wanted: ValueType, context: str) -> None:
    if node.type is not wanted:
        cursor.fail(node.span, f"expected type {wanted.words} in {context}, got {node.type.words}")


def checked_binary(cursor: TokenCursor, node: Binary) -> Binary:
    """The node with its matching settled: none where a side is a scalar, many-to-many for sets."""
    left, right = node.left.type, node.right.type
    matching = node.matching
    if node.return_bool and node.operator not in COMPARISONS:
        cursor.fail(node.operator_span, "bool modifier can only be used on comparison operators")
    both_scalars = left is ValueType.SCALAR and right is ValueType.SCALAR
    if node.operator in COMPARISONS and not node.return_bool and both_scalars:
        cursor.fail(node.operator_span, "comparisons between scalars must use BOOL modifier")
    for side in (node.left, node.right):
        if side.type not in _OPERANDS:
            cursor.fail(side.span, "binary expression must contain only scalar and instant vector types")
    is_set = node.operator in SET_OPERATORS
    if is_set and ValueType.SCALAR in (left, right):
        cursor.fail(node.span, f"set operator {quote(node.operator)} not allowed in binary scalar expression")
    if matching is None:
        return node
    if matching.on:
        for label in matching.labels:
            if label in matching.include:
                cursor.fail(node.operator_span, f"label {quote(label)} must not occur in ON and GROUP clause at once")
    fills = matching.fill_left is not None or matching.fill_right is not None
    if ValueType.SCALAR in (left, right):
        if matching.labels:
            cursor.fail(node.span, "vector matching only allowed between instant vectors")
        if fills:
            cursor.fail(node.span, "filling in missing series only allowed between instant vectors")
        return replace(node, matching=None)
    if is_set:
        if matching.cardinality is not Cardinality.ONE_TO_ONE:
            cursor.fail(node.span, f"no grouping allowed for {quote(node.operator)} operation")
        if fills:
            cursor.fail(node.span, "filling in missing series not allowed for set operators")
        return replace(node, matching=replace(matching, cardinality=Cardinality.MANY_TO_MANY))
    return node


def check_call(cursor: TokenCursor, node: FunctionCall) -> None:
    signature, given = node.signature, len(node.arguments)
    name = quote(node.function)
    if signature.optional == 0 and given != len(signature.parameters):
        cursor.fail(node.span, f"expected {len(signature.parameters)} argument(s) in call to {name}, got {given}")
    if given < signature.arguments_min:
        cursor.fail(
            node.span, f"expected at least {signature.arguments_min} argument(s) in call to {name}, got {given}"
        )
    if signature.arguments_max is not None and given > signature.arguments_max:
        cursor.fail(node.span, f"expected at most {signature.arguments_max} argument(s) in call to {name}, got {given}")
    for index, argument in enumerate(node.arguments):
        wanted = signature.parameter(index)
        if argument.type is not wanted:
            sentence = f"expected type {wanted.words} in call to function {name}, got {argument.type.words}"
            cursor.fail(argument.span, sentence)
    if node.function == "info" and given > 1:
        _check_info_selector(cursor, node.arguments[1])


def _check_info_selector(cursor: TokenCursor, selector: Expr) -> None:
    if not isinstance(selector, VectorSelector):
        cursor.fail(selector.span, "expected label selectors only")
    if selector.name:
        cursor.fail(selector.span, "expected label selectors only, got vector selector instead")


def check_unary(cursor: TokenCursor, node: Unary) -> None:
    if node.expr.type not in _OPERANDS:
        sentence = "unary expression only allowed on expressions of type scalar or instant vector"
        cursor.fail(node.span, f"{sentence}, got {quote(node.expr.type.words)}")


def check_subquery(cursor: TokenCursor, node: Subquery) -> None:
    if node.expr.type is not ValueType.VECTOR:
        cursor.fail(node.span, f"subquery is only allowed on instant vector, got {node.expr.type.value} instead")


def check_selector(cursor: TokenCursor, node: VectorSelector) -> None:
    """A selector must not take everything by accident; the second argument of `info` may."""
    if node.name:
        for matcher in node.matchers[:-1]:
            if matcher.name == "__name__":
                sentence = f"metric name must not be set twice: {quote(node.name)} or {quote(matcher.value)}"
                cursor.fail(node.span, sentence)
    elif all(matcher.matches_empty() for matcher in node.matchers):
        cursor.fail(node.span, "vector selector must contain at least one non-empty matcher")
