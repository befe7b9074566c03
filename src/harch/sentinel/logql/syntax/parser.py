"""What does this LogQL query say?

Text in, checked tree out: selectors, pipelines, ranges with `unwrap` and `offset`, and arithmetic on them.
"""

# harch: pure

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.logql.syntax.cursor import (
    cursor_of,
    read_duration,
    read_grouping,
    read_name,
    read_number,
    read_text,
)
from harch.sentinel.logql.syntax.lexer import RANGE_FUNCTIONS, VECTOR_AGGREGATIONS
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelFilter,
    LabelReplace,
    LogQuery,
    Metric,
    Number,
    Query,
    RangeAggregation,
    Unwrap,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.syntax.pipelines import at_stage, read_condition, read_stages
from harch.sentinel.model.labels import METRIC_NAME, Matcher
from harch.sentinel.promql.syntax.clauses import check_expression, read_binary_modifiers, read_matchers
from harch.sentinel.promql.syntax.cursor import DEFAULT_OPTIONS, ParserOptions, TokenCursor
from harch.sentinel.promql.syntax.lexer import QueryToken, TokenKind
from harch.sentinel.promql.syntax.nodes import COMPARISONS, SET_OPERATORS, Cardinality, TextSpan, VectorMatching

MATCHERS_MAX = 100


def read_selector(cursor: TokenCursor) -> LogQuery:
    """A selector without stages. It must not take everything by accident, as in Loki."""
    first = cursor.token
    if not cursor.at_sign("{"):
        cursor.unexpected("", "a stream selector such as {job=…}")
    matchers = read_matchers(cursor)
    span = cursor.span_to_here(cursor.span(first))
    if any(matcher.name == METRIC_NAME for matcher in matchers):
        cursor.fail(span, "streams have labels but no name", hint='write a label before the string: {job="hub"}')
    if len(matchers) > MATCHERS_MAX:
        cursor.fail(span, f"a selector may have at most {MATCHERS_MAX} matchers")
    if all(matcher.matches_empty() for matcher in matchers):
        cursor.fail(
            span,
            "queries require at least one regexp or equality matcher that does not have an empty-compatible value",
            hint='for instance, `app=~".*"` takes everything; `app=~".+"` is fine',
        )
    return LogQuery(matchers, span=span)


# Over how long is counted? `count_over_time({job="hub"} |= "error" [5m] offset 1h)`, with `unwrap` for values.


# What counts lines, what needs a value, and what takes both.
_COUNTING = frozenset({"count_over_time", "bytes_rate", "bytes_over_time"})
_EITHER = frozenset({"rate", "absent_over_time"})
_GROUPABLE = frozenset(
    f"{name}_over_time" for name in ("avg", "min", "max", "stddev", "stdvar", "quantile", "first", "last")
)
_CONVERSIONS = {"duration": "duration", "duration_seconds": "duration", "bytes": "bytes"}


def read_range_aggregation(cursor: TokenCursor) -> RangeAggregation:
    """The cursor stands on the function's name."""
    name = cursor.take()
    cursor.expect("(", name.text)
    parameter: float | None = None
    if name.keyword == "quantile_over_time":
        parameter = read_number(cursor, name.text)
        cursor.expect(",", name.text)
    reader = _Reader(cursor)
    reader.read()
    cursor.expect(")", name.text)
    grouping = read_grouping(cursor)
    span = cursor.span_to_here(cursor.span(name))
    if reader.range_ns is None:
        cursor.fail(span, f"{name.text} needs a range such as [5m]")
    query = LogQuery(reader.query.matchers, reader.query.stages, span=reader.query.span)
    node = RangeAggregation(
        name.keyword,
        cursor.built(query),
        reader.range_ns,
        reader.offset_ns,
        reader.unwrap,
        parameter,
        grouping,
        span=span,
    )
    _check(cursor, node, name)
    return node


class _Reader:
    """The range may stand after the selector, after the pipeline, or after parentheses around both."""

    def __init__(self, cursor: TokenCursor) -> None:
        self.cursor = cursor
        self.query = LogQuery(())
        self.unwrap: Unwrap | None = None
        self.range_ns: int | None = None
        self.offset_ns = 0

    def read(self) -> None:
        cursor = self.cursor
        if cursor.at_sign("("):
            cursor.enter()
            cursor.take()
            self.read()
            cursor.expect(")", "range")
            cursor.leave()
        else:
            self.query = read_selector(cursor)
        while True:
            if cursor.at_sign("["):
                self._read_range()
            elif at_stage(cursor) and self.unwrap is not None:
                self._read_filter_after_unwrap()
            elif at_stage(cursor):
                stages = read_stages(cursor, self.query.stages)
                self.query = replace(self.query, stages=stages, span=cursor.span_to_here(self.query.span))
            elif cursor.at_sign("|"):
                self._read_unwrap()
            elif cursor.at_keyword("offset"):
                self._read_offset()
            else:
                return

    def _read_range(self) -> None:
        cursor = self.cursor
        opening = cursor.take()
        if self.range_ns is not None:
            cursor.fail(cursor.span(opening), "a range is already set")
        at = cursor.token
        self.range_ns = read_duration(cursor, "range")
        if self.range_ns <= 0:
            cursor.fail(cursor.span(at), "a range must be longer than 0")
        cursor.expect("]", "range")

    def _read_offset(self) -> None:
        cursor = self.cursor
        word = cursor.take()
        if self.range_ns is None:
            cursor.fail(cursor.span(word), "offset must follow the range")
        if self.offset_ns:
            cursor.fail(cursor.span(word), "an offset is already set")
        sign = cursor.take() if cursor.at_sign("-", "+") else None
        ns = read_duration(cursor, "offset")
        self.offset_ns = -ns if sign is not None and sign.text == "-" else ns

    def _read_unwrap(self) -> None:
        cursor = self.cursor
        cursor.take()
        word = cursor.take()
        if self.unwrap is not None:
            cursor.fail(cursor.span(word), "unwrap may occur once in a pipeline")
        followed = cursor.following.text == "("
        if cursor.token.keyword in _CONVERSIONS and followed:
            conversion = _CONVERSIONS[cursor.take().keyword]
            cursor.take()
            self.unwrap = Unwrap(read_name(cursor, "unwrap"), conversion)
            cursor.expect(")", "unwrap")
            return
        if followed:
            cursor.unexpected("unwrap", "duration(), duration_seconds() or bytes()")
        self.unwrap = Unwrap(read_name(cursor, "unwrap"))

    def _read_filter_after_unwrap(self) -> None:
        cursor = self.cursor
        start = cursor.token
        if not cursor.at_sign("|") or self.unwrap is None:
            cursor.unexpected("pipeline", "a filter on labels: no other stage may follow unwrap")
        cursor.take()
        condition = read_condition(cursor)
        found = LabelFilter(condition, span=cursor.span_to_here(cursor.span(start)))
        self.unwrap = replace(self.unwrap, filters=(*self.unwrap.filters, found))


def _check(cursor: TokenCursor, node: RangeAggregation, name: QueryToken) -> None:
    function = node.function
    if node.unwrap is not None and function in _COUNTING:
        cursor.fail(node.span, f"{function} counts lines and takes no unwrap")
    if node.unwrap is None and function not in _COUNTING | _EITHER:
        hint = "put `| unwrap label` before the range"
        cursor.fail(node.span, f"{function} needs values to work on", hint=hint)
    if node.grouping is not None and function not in _GROUPABLE:
        hint = "wrap it in an aggregation: sum by (…) (…)"
        cursor.fail(cursor.span(name), f"grouping not allowed for {function}", hint=hint)


# What does this LogQL query say? Text in, checked tree out; whatever is wrong is a LogqlSyntaxError with its place.


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
        cursor.fail(TextSpan(0, 0), "no expression found in input", hint='write a selector, such as {job="hub"}')
    found = _Parser(cursor).query()
    if not cursor.at_end():
        cursor.unexpected("", "the end of the query" if isinstance(found, LogQuery) else "")
    return found


def parse_log_query(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> LogQuery:
    """A query for lines: what `tail` takes."""
    found = parse(query, options)
    if not isinstance(found, LogQuery):
        cursor_of(query, options).fail(found.span, "this needs a query for lines, not a metric query")
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

    def __init__(self, cursor: TokenCursor) -> None:
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
        while cursor.ahead(ahead).text == "(" and cursor.ahead(ahead).kind is TokenKind.SIGN:
            ahead += 1
        return cursor.ahead(ahead).text == "{" and cursor.ahead(ahead).kind is TokenKind.SIGN

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
            span = TextSpan(left.span.start, right.span.end)
            checked = self._checked(BinaryOperation(operator, left, right, matching, return_bool, span=span), sign)
            left = cursor.built(checked)
        cursor.leave()
        return left

    def _operator(self) -> str:
        token = self._cursor.token
        name = token.text if token.kind is TokenKind.SIGN else token.keyword
        return name if name in _PRECEDENCE else ""

    def _checked(self, node: BinaryOperation, sign: QueryToken) -> BinaryOperation:
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
                cursor.fail(cursor.span(token), "lines are not a number: wrap them in e.g. count_over_time()")
            cursor.take()
            inner = self.metric(0)
            cursor.expect(")", "expression")
            return inner
        if token.kind is TokenKind.NUMBER or cursor.at_sign("+", "-"):
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
            cursor.fail(cursor.span(token), "lines are not a number: wrap them in e.g. count_over_time()")
        if token.kind is TokenKind.WORD and not token.keyword:
            cursor.fail(cursor.span(token), f"unknown function {token.text}", hint="docs/sentinel/logql.md lists them")
        return cursor.unexpected()

    def _aggregation(self) -> VectorAggregation:
        cursor = self._cursor
        name = cursor.take()
        if name.keyword == "approx_topk":
            cursor.fail(cursor.span(name), "approx_topk is not supported", hint="use topk, which is exact")
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

    def _count(self, name: QueryToken) -> int:
        cursor = self._cursor
        at = cursor.token
        value = read_number(cursor, "aggregation")
        if value != int(value if abs(value) < _COUNT_MAX else 0) or value < 1:
            cursor.fail(cursor.span(at), f"{name.text} takes a whole number above 0 as first argument")
        return int(value)

    def _label_replace(self) -> LabelReplace:
        cursor = self._cursor
        name = cursor.take()
        cursor.expect("(", "label_replace")
        expr = self.metric(0)
        if is_number(expr):
            cursor.fail(expr.span, "label_replace takes a vector, not a number")
        strings: list[str] = []
        for _ in range(4):
            cursor.expect(",", "label_replace")
            at = cursor.token
            strings.append(read_text(cursor, "label_replace"))
        check_expression(cursor, strings[3], cursor.span(at))
        if not strings[0]:
            cursor.fail(cursor.span(name), "label_replace needs the name of a label to write")
        cursor.expect(")", "label_replace")
        span = cursor.span_to_here(cursor.span(name))
        return LabelReplace(expr, strings[0], strings[1], strings[2], strings[3], span=span)


def is_number(node: Metric) -> bool:
    """Whether it is a number and not a vector."""
    return isinstance(node, Number) or (
        isinstance(node, BinaryOperation) and is_number(node.left) and is_number(node.right)
    )


def _settled(grouping: Grouping | None) -> Grouping | None:
    """`by ()` is no grouping at all."""
    return None if grouping is not None and not grouping.labels and not grouping.without else grouping
