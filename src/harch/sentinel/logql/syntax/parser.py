"""What does this LogQL query say? Text in, checked tree out; whatever is wrong is a LogqlSyntaxError with its place."""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.logql.syntax.lexer import RANGE_FUNCTIONS, VECTOR_AGGREGATIONS
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelReplace,
    LogQuery,
    Metric,
    Number,
    Query,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.syntax.pipelines import read_stages
from harch.sentinel.logql.syntax.ranges import read_range_aggregation
from harch.sentinel.logql.syntax.reading import cursor_of, read_grouping, read_number, read_text
from harch.sentinel.logql.syntax.selectors import read_selector
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.matching import read_binary_modifiers
from harch.sentinel.promql.syntax.nodes import COMPARISONS, SET_OPERATORS, Cardinality, Span, VectorMatching
from harch.sentinel.promql.syntax.options import DEFAULT_OPTIONS, ParserOptions
from harch.sentinel.promql.syntax.selectors import check_expression
from harch.sentinel.promql.syntax.tokens import Kind, Token

_PRECEDENCE = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(("==", "!=", "<", ">", "<=", ">="), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
    "^": 6,
}
_WITH_PARAMETER = frozenset({"topk", "bottomk"})
_UNGROUPED = frozenset({"sort", "sort_desc"})
_COUNT_MAX = 1 << 31


def parse(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> Query:
    """The tree of a query: lines or numbers."""
    cursor = cursor_of(query, options)
    if cursor.at_end():
        cursor.fail(Span(0, 0), "no expression found in input", hint='write a selector, such as {job="hub"}')
    found = _Parser(cursor).query()
    if not cursor.at_end():
        cursor.unexpected("", "the end of the query" if isinstance(found, LogQuery) else "")
    return found


def parse_log_query(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> LogQuery:
    """A query for lines: what `tail` takes."""
    found = parse(query, options)
    if not isinstance(found, LogQuery):
        cursor_of(query, options).fail(found.span, "this needs a query for lines, not for numbers")
    return found


def parse_matchers(text: str, options: ParserOptions = DEFAULT_OPTIONS) -> tuple[Matcher, ...]:
    """A stream selector alone, as `match[]` and `query` of the catalog take it."""
    cursor = cursor_of(text, options)
    selector = read_selector(cursor)
    if not cursor.at_end():
        cursor.unexpected("stream selector")
    return selector.matchers


class _Parser:
    """Precedence climbing over the tokens. The cursor counts nesting and nodes."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def query(self) -> Query:
        if self._starts_selector():
            return self._log_query()
        return self.metric(0)

    def _starts_selector(self) -> bool:
        return self._cursor.at_sign("{") or (self._cursor.at_sign("(") and self._inner_is_selector())

    def _inner_is_selector(self) -> bool:
        """`({a="b"} |= "c")`, in any number of parentheses."""
        cursor, ahead = self._cursor, 0
        while cursor.ahead(ahead).text == "(" and cursor.ahead(ahead).kind is Kind.SIGN:
            ahead += 1
        return cursor.ahead(ahead).text == "{" and cursor.ahead(ahead).kind is Kind.SIGN

    def _log_query(self) -> LogQuery:
        cursor = self._cursor
        if cursor.at_sign("("):
            cursor.enter()
            cursor.take()
            inner = self._log_query()
            cursor.expect(")", "log query")
            cursor.leave()
        else:
            inner = read_selector(cursor)
        stages = read_stages(cursor, inner.stages)
        return cursor.built(replace(inner, stages=stages, span=cursor.span_to_here(inner.span)))

    def metric(self, precedence_min: int) -> Metric:
        cursor = self._cursor
        cursor.enter()
        left = self._operand()
        while (operator := self._operator()) and _PRECEDENCE[operator] >= precedence_min:
            sign = cursor.take()
            matching, return_bool = read_binary_modifiers(cursor)
            right = self.metric(_PRECEDENCE[operator] + (operator != "^"))
            span = Span(left.span.start, right.span.end)
            checked = self._checked(BinaryOperation(operator, left, right, matching, return_bool, span=span), sign)
            left = cursor.built(checked)
        cursor.leave()
        return left

    def _operator(self) -> str:
        token = self._cursor.token
        name = token.text if token.kind is Kind.SIGN else token.keyword
        return name if name in _PRECEDENCE else ""

    def _checked(self, node: BinaryOperation, sign: Token) -> BinaryOperation:
        """The node with its matching settled: none where a side is a number, many-to-many for sets."""
        cursor, matching = self._cursor, node.matching or VectorMatching()
        if node.return_bool and node.operator not in COMPARISONS:
            cursor.fail(cursor.span(sign), "bool may only follow a comparison")
        has_number = is_number(node.left) or is_number(node.right)
        if node.operator in SET_OPERATORS:
            if has_number:
                cursor.fail(cursor.span(sign), f"`{node.operator}` joins vectors, not numbers")
            if matching.cardinality is not Cardinality.ONE_TO_ONE:
                cursor.fail(cursor.span(sign), f"no grouping allowed for `{node.operator}`")
            return replace(node, matching=replace(matching, cardinality=Cardinality.MANY_TO_MANY))
        if has_number:
            if matching.labels or matching.on:
                cursor.fail(cursor.span(sign), "matching labels takes vectors on both sides")
            return replace(node, matching=None)
        return replace(node, matching=matching)

    def _operand(self) -> Metric:
        cursor = self._cursor
        token = cursor.token
        if cursor.at_sign("("):
            if self._inner_is_selector():
                cursor.fail(cursor.span(token), "lines are no number: put them into e.g. count_over_time()")
            cursor.take()
            inner = self.metric(0)
            cursor.expect(")", "expression")
            return inner
        if token.kind is Kind.NUMBER or cursor.at_sign("+", "-"):
            value = read_number(cursor, "expression")
            return cursor.built(Number(value, span=cursor.span_to_here(cursor.span(token))))
        if token.keyword in RANGE_FUNCTIONS:
            return cursor.built(read_range_aggregation(cursor))
        if token.keyword in VECTOR_AGGREGATIONS:
            return cursor.built(self._aggregation())
        if token.keyword == "vector":
            cursor.take()
            cursor.expect("(", "vector")
            value = read_number(cursor, "vector")
            cursor.expect(")", "vector")
            return cursor.built(VectorOf(value, span=cursor.span_to_here(cursor.span(token))))
        if token.keyword == "label_replace":
            return cursor.built(self._label_replace())
        if cursor.at_sign("{"):
            cursor.fail(cursor.span(token), "lines are no number: put them into e.g. count_over_time()")
        if token.kind is Kind.WORD and not token.keyword:
            cursor.fail(cursor.span(token), f"unknown function {token.text}", hint="docs/sentinel/logql.md lists them")
        return cursor.unexpected()

    def _aggregation(self) -> VectorAggregation:
        cursor = self._cursor
        name = cursor.take()
        if name.keyword == "approx_topk":
            cursor.fail(cursor.span(name), "approx_topk is not offered", hint="topk is exact here, use it")
        grouping = read_grouping(cursor)
        cursor.expect("(", "aggregation")
        parameter: int | None = None
        if name.keyword in _WITH_PARAMETER:
            parameter = self._count(name)
            cursor.expect(",", "aggregation")
        expr = self.metric(0)
        cursor.expect(")", "aggregation")
        grouping = grouping or read_grouping(cursor)
        span = cursor.span_to_here(cursor.span(name))
        if is_number(expr):
            cursor.fail(expr.span, f"{name.text} takes a vector, not a number")
        if grouping is not None and name.keyword in _UNGROUPED:
            cursor.fail(span, f"{name.text} takes no grouping")
        return VectorAggregation(name.keyword, expr, parameter, _settled(grouping), span=span)

    def _count(self, name: Token) -> int:
        cursor = self._cursor
        at = cursor.token
        value = read_number(cursor, "aggregation")
        if value != int(value if abs(value) < _COUNT_MAX else 0) or value < 1:
            cursor.fail(cursor.span(at), f"{name.text} takes a whole number above 0 first")
        return int(value)

    def _label_replace(self) -> LabelReplace:
        cursor = self._cursor
        name = cursor.take()
        cursor.expect("(", "label_replace")
        expr = self.metric(0)
        if is_number(expr):
            cursor.fail(expr.span, "label_replace takes a vector, not a number")
        texts: list[str] = []
        for _ in range(4):
            cursor.expect(",", "label_replace")
            at = cursor.token
            texts.append(read_text(cursor, "label_replace"))
        check_expression(cursor, texts[3], cursor.span(at))
        if not texts[0]:
            cursor.fail(cursor.span(name), "label_replace needs the name of a label to write")
        cursor.expect(")", "label_replace")
        span = cursor.span_to_here(cursor.span(name))
        return LabelReplace(expr, texts[0], texts[1], texts[2], texts[3], span=span)


def is_number(node: Metric) -> bool:
    """Whether it is a number and not a vector."""
    return isinstance(node, Number) or (
        isinstance(node, BinaryOperation) and is_number(node.left) and is_number(node.right)
    )


def _settled(grouping: Grouping | None) -> Grouping | None:
    """`by ()` is no grouping at all."""
    return None if grouping is not None and not grouping.labels and not grouping.without else grouping
