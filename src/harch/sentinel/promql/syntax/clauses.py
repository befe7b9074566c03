"""What may follow or qualify an expression?

Selectors, ranges, subqueries, `offset`, `@`, `on`, `group_left`, `fill`, and arithmetic on durations.
"""

# harch: pure

from __future__ import annotations

import math
import re
from dataclasses import replace

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Matcher, MatchKind, whole_text_pattern
from harch.sentinel.promql.syntax.checks import check_subquery
from harch.sentinel.promql.syntax.cursor import Feature, TokenCursor
from harch.sentinel.promql.syntax.errors import too_large
from harch.sentinel.promql.syntax.lexer import NO_METRIC_NAMES, QueryToken, TokenKind
from harch.sentinel.promql.syntax.literals import (
    DURATION_MS_MAX,
    INT64_MAX,
    as_text,
    duration_ms,
    format_number,
    number,
    quote,
    unquote,
)
from harch.sentinel.promql.syntax.nodes import (
    Cardinality,
    DurationExpr,
    DurationNode,
    DurationOperator,
    Expr,
    MatrixSelector,
    NumberLiteral,
    RangeMode,
    StartOrEnd,
    Subquery,
    TextSpan,
    VectorMatching,
    VectorSelector,
)

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 3}
_SIGN_PRECEDENCE = 3  # a sign binds as `*` does: only `^` is read into its operand
_EXPECTED = "number, duration, step(), or range()"


def read_number(cursor: TokenCursor) -> NumberLiteral:
    """A number or duration without sign; the cursor stands on it."""
    token = cursor.take()
    span = cursor.span(token)
    if token.kind is TokenKind.DURATION:
        ms = duration_ms(token.text)
        if ms is None:
            cursor.fail(
                span, f'not a valid duration string: "{token.text}"', hint="order units from large to small: 1h30m"
            )
        if ms > DURATION_MS_MAX:
            cursor.fail(span, "duration out of range")
        return NumberLiteral(ms / 1000, is_duration=True, span=span)
    value = number(token.text)
    if value is None:
        cursor.fail(span, f'error parsing number: "{token.text}" is not a number')
    return NumberLiteral(value, span=span)


def signed(literal: NumberLiteral, sign: QueryToken, cursor: TokenCursor) -> NumberLiteral:
    value = -literal.value if sign.text == "-" else literal.value
    # NaN has no sign that anybody could see, and one object for all of them keeps equal trees equal.
    value = literal.value if value != value else value
    return replace(literal, value=value, span=TextSpan(cursor.span(sign).start, literal.span.end))


def read_range(cursor: TokenCursor, context: str, expected: str = _EXPECTED) -> tuple[int, DurationExpr | None]:
    """A duration that must be longer than nothing: milliseconds, or 0 and the expression."""
    duration = _Reader(cursor, context, expected).sum(0)
    if isinstance(duration, DurationExpr):
        _check_enabled(cursor, duration)
        return 0, duration
    ms = _literal_ms(cursor, duration)
    if ms <= 0:
        cursor.fail(duration.span, "duration must be greater than 0")
    return ms, None


def read_offset(cursor: TokenCursor) -> tuple[int, DurationExpr | None]:
    """One signed number, duration, call or parenthesis: `offset 1h + 2` adds two to the shifted values."""
    reader = _Reader(cursor, "offset", _EXPECTED)
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    duration = reader.operand()
    if sign is not None:
        duration = reader.with_sign(duration, sign)
    if isinstance(duration, DurationExpr):
        _check_enabled(cursor, duration)
        return 0, duration
    return _literal_ms(cursor, duration), None


def _check_enabled(cursor: TokenCursor, duration: DurationExpr) -> None:
    cursor.require(Feature.DURATION_EXPRESSIONS, duration.span, "experimental duration expression is not enabled")


def _literal_ms(cursor: TokenCursor, literal: NumberLiteral) -> int:
    if not abs(literal.value) <= DURATION_MS_MAX / 1000:  # NaN is not in the range either
        cursor.fail(literal.span, "duration out of range")
    return round(literal.value * 1000)


class _Reader:
    """Reads one duration. It counts all parts of it as levels: no duration needs many, and no tree is deeper."""

    def __init__(self, cursor: TokenCursor, context: str, expected: str) -> None:
        self._cursor = cursor
        self._context = context
        self._expected = expected
        self._parts = 0

    def sum(self, precedence_min: int) -> DurationNode:
        cursor = self._cursor
        left = self.operand()
        while cursor.at_sign(*_PRECEDENCE) and _PRECEDENCE[cursor.token.text] >= precedence_min:
            sign = cursor.take().text
            right = self.sum(_PRECEDENCE[sign] + (sign != "^"))
            left = DurationExpr(DurationOperator(sign), left, right, span=TextSpan(left.span.start, right.span.end))
        return left

    def operand(self) -> DurationNode:
        cursor = self._cursor
        token = cursor.token
        self._parts += 1
        if self._parts > cursor.options.duration_parts_max:
            limit = f"a duration has more than {cursor.options.duration_parts_max} parts"
            raise too_large(cursor.query, limit, "write the result", cursor.span(token))
        if cursor.at_sign("+", "-"):
            sign = cursor.take()
            return self.with_sign(self.sum(_SIGN_PRECEDENCE), sign)
        if cursor.at_sign("("):
            return self._parenthesis()
        if cursor.at_keyword("step", "range", "min_of", "max_of"):
            return self._call()
        if token.kind not in (TokenKind.NUMBER, TokenKind.DURATION):
            cursor.unexpected(self._context, self._expected)
        return read_number(cursor)

    def with_sign(self, operand: DurationNode, sign: QueryToken) -> DurationNode:
        if isinstance(operand, NumberLiteral):
            return signed(operand, sign, self._cursor)
        if sign.text == "+":
            return operand
        span = self._cursor.span_to_here(self._cursor.span(sign))
        return DurationExpr(DurationOperator.SUBTRACT, None, operand, span=span)

    def _parenthesis(self) -> DurationExpr:
        opening = self._cursor.take()
        inner = self.sum(0)
        self._cursor.expect(")", self._context)
        span = self._cursor.span_to_here(self._cursor.span(opening))
        if isinstance(inner, DurationExpr):  # a second pair of parentheses says nothing more
            return replace(inner, is_wrapped=True, span=span)
        return DurationExpr(DurationOperator.ADD, None, inner, is_wrapped=True, span=span)

    def _call(self) -> DurationExpr:
        cursor = self._cursor
        name = cursor.take()
        operator = DurationOperator(name.keyword)
        cursor.expect("(", self._context)
        left: DurationNode | None = None
        right: DurationNode | None = None
        if operator in (DurationOperator.MINIMUM, DurationOperator.MAXIMUM):
            left = self.sum(0)
            cursor.expect(",", self._context)
            right = self.sum(0)
        cursor.expect(")", self._context)
        return DurationExpr(operator, left, right, span=cursor.span_to_here(cursor.span(name)))


# When, and over how long? What may follow a selector: ranges, subqueries, `offset`, `@`, `anchored`, `smoothed`.


_SUBJECT = "must be preceded by an instant vector selector or range vector selector or a subquery"


def at_modifier(cursor: TokenCursor) -> bool:
    return cursor.at_sign("[", "@") or cursor.at_keyword("offset", "anchored", "smoothed")


def read_modifier(cursor: TokenCursor, subject: Expr) -> Expr:
    """The subject with one modifier more."""
    if cursor.at_sign("["):
        return _read_brackets(cursor, subject)
    if cursor.at_sign("@"):
        return _read_at(cursor, subject)
    if cursor.at_keyword("offset"):
        cursor.take()
        return _with_offset(cursor, subject, *read_offset(cursor))
    return _read_range_mode(cursor, subject)


def _read_brackets(cursor: TokenCursor, subject: Expr) -> Expr:
    opening = cursor.take()
    range_ms, range_expr = read_range(cursor, "subquery or range selector")
    if cursor.at_sign(":"):
        cursor.take()
        step_ms, step_expr = 0, None
        if not cursor.at_sign("]"):
            expected = 'number, duration, step(), range(), or "]"'
            step_ms, step_expr = read_range(cursor, "subquery selector", expected)
        cursor.expect("]", "subquery selector")
        span = cursor.span_to_here(subject.span)
        subquery = Subquery(subject, range_ms, range_expr, step_ms, step_expr, span=span)
        check_subquery(cursor, subquery)
        return cursor.built(subquery)
    closing = cursor.expect("]", "subquery or range", '":" or "]"')
    brackets = TextSpan(cursor.span(opening).start, cursor.span(closing).end)
    if not isinstance(subject, VectorSelector):
        cursor.fail(brackets, "ranges only allowed for vector selectors")
    if subject.offset_ms or subject.offset_expr is not None:
        cursor.fail(brackets, "no offset modifiers allowed before range")
    if subject.at_ms is not None or subject.at_edge is not None:
        cursor.fail(brackets, "no @ modifiers allowed before range")
    return cursor.built(MatrixSelector(subject, range_ms, range_expr, span=cursor.span_to_here(subject.span)))


def _with_offset(cursor: TokenCursor, subject: Expr, offset_ms: int, offset_expr: DurationExpr | None) -> Expr:
    where = _timed(subject)
    if where is None:
        cursor.fail(subject.span, f"offset modifier {_SUBJECT}")
    if where.offset_ms or where.offset_expr is not None:
        cursor.fail(subject.span, "offset may not be set multiple times")
    span = cursor.span_to_here(subject.span)
    return _replaced(cursor, subject, replace(where, offset_ms=offset_ms, offset_expr=offset_expr), span)


def _read_at(cursor: TokenCursor, subject: Expr) -> Expr:
    cursor.take()
    at_ms: int | None = None
    edge: StartOrEnd | None = None
    if cursor.at_keyword("start", "end"):
        edge = StartOrEnd(cursor.take().keyword)
        cursor.expect("(", "@", "timestamp")
        cursor.expect(")", "@", "timestamp")
    else:
        at_ms = _read_timestamp(cursor, subject.span)
    where = _timed(subject)
    if where is None:
        cursor.fail(subject.span, f"@ modifier {_SUBJECT}")
    if where.at_ms is not None or where.at_edge is not None:
        cursor.fail(subject.span, "@ <timestamp> may not be set multiple times")
    return _replaced(cursor, subject, replace(where, at_ms=at_ms, at_edge=edge), cursor.span_to_here(subject.span))


def _read_timestamp(cursor: TokenCursor, where: TextSpan) -> int:
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind not in (TokenKind.NUMBER, TokenKind.DURATION):
        cursor.unexpected("@", "timestamp")
    literal = read_number(cursor)
    seconds = literal.value if sign is None else signed(literal, sign, cursor).value
    if not abs(seconds) < INT64_MAX:
        formatted = f"{seconds:f}" if math.isfinite(seconds) else format_number(seconds)
        cursor.fail(where, f"timestamp out of bounds for @ modifier: {formatted}")
    return math.floor(seconds * 1000 + 0.5) if seconds >= 0 else math.ceil(seconds * 1000 - 0.5)


def _read_range_mode(cursor: TokenCursor, subject: Expr) -> Expr:
    mode = RangeMode(cursor.take().keyword)
    span = cursor.span_to_here(subject.span)
    sentence = f"{mode.value} modifier is experimental and not enabled"
    cursor.require(Feature.EXTENDED_RANGE_SELECTORS, subject.span, sentence)
    if isinstance(subject, Subquery):
        cursor.fail(subject.span, f"{mode.value} modifier is not supported for subqueries")
    if not isinstance(subject, VectorSelector | MatrixSelector):
        cursor.fail(subject.span, f"{mode.value} modifier not implemented")
    selector = subject.selector if isinstance(subject, MatrixSelector) else subject
    if selector.range_mode not in (RangeMode.PLAIN, mode):
        cursor.fail(subject.span, "anchored and smoothed modifiers cannot be used together")
    return _replaced(cursor, subject, replace(selector, range_mode=mode), span)


def _timed(subject: Expr) -> VectorSelector | Subquery | None:
    """The part of the subject that carries its times."""
    if isinstance(subject, MatrixSelector):
        return subject.selector
    return subject if isinstance(subject, VectorSelector | Subquery) else None


def _replaced(cursor: TokenCursor, subject: Expr, changed: VectorSelector | Subquery, span: TextSpan) -> Expr:
    if isinstance(subject, MatrixSelector) and isinstance(changed, VectorSelector):
        return cursor.built(replace(subject, selector=cursor.built(changed), span=span))
    return cursor.built(replace(changed, span=span))


# Which series does a query name? `name{label="value"}` and lists of label names.


_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}", re.ASCII)
_DIGITS_MAX = 6  # longer numbers are refused anyway
_KINDS = {kind.value: kind for kind in MatchKind}


def at_metric_name(cursor: TokenCursor) -> bool:
    """Nearly every keyword may also be a metric's name."""
    token = cursor.token
    return token.kind in (TokenKind.WORD, TokenKind.METRIC) and token.keyword not in NO_METRIC_NAMES


def read_selector(cursor: TokenCursor) -> VectorSelector:
    """A selector without modifiers; the cursor stands on its name or its brace."""
    first = cursor.token
    name = cursor.take().text if at_metric_name(cursor) else ""
    matchers = read_matchers(cursor) if cursor.at_sign("{") else ()
    if name:
        matchers = (*matchers, Matcher(MatchKind.EQUAL, METRIC_NAME, name))
    return cursor.built(VectorSelector(name, matchers, span=cursor.span_to_here(cursor.span(first))))


def read_matchers(cursor: TokenCursor) -> tuple[Matcher, ...]:
    """`{a="b", c=~"d"}`; the cursor stands on the brace."""
    cursor.take()
    matchers: list[Matcher] = []
    while not cursor.at_sign("}"):
        matchers.append(_read_matcher(cursor))
        if cursor.at_sign(","):
            cursor.take()
        elif not cursor.at_sign("}"):
            cursor.unexpected("label matching", '"," or "}"')
    cursor.take()
    return tuple(matchers)


def _read_matcher(cursor: TokenCursor) -> Matcher:
    label = cursor.token
    if label.kind not in (TokenKind.WORD, TokenKind.STRING):
        cursor.unexpected("label matching", 'identifier or "}"')
    cursor.take()
    name = unquote(label.text) if label.kind is TokenKind.STRING else label.text
    if label.kind is TokenKind.STRING and cursor.at_sign(",", "}"):
        return Matcher(MatchKind.EQUAL, METRIC_NAME, as_text(name))
    if not cursor.at_sign(*_KINDS):
        cursor.unexpected("label matching", "label matching operator")
    kind = _KINDS[cursor.take().text]
    value = cursor.token
    if value.kind is not TokenKind.STRING:
        cursor.unexpected("label matching", "string")
    cursor.take()
    matcher = Matcher(kind, as_text(name), as_text(unquote(value.text)))
    if kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
        check_expression(cursor, matcher.value, cursor.span(label, value))
    return matcher


def check_expression(cursor: TokenCursor, expression: str, span: TextSpan) -> None:
    """Fails where it is no RE2 expression, or one that costs too much to compile."""
    counts = (number for found in _REPETITION.finditer(expression) for number in found.groups() if number)
    cursor.count_repetitions(sum(int(number[:_DIGITS_MAX]) for number in counts), span)
    try:
        whole_text_pattern(expression)
    except HarchError as broken:
        if broken.code != "E0602":
            raise
        cursor.fail(span, f"error parsing regexp: {broken.message}", hint="regular expressions are in RE2 syntax")


def read_label_names(cursor: TokenCursor) -> tuple[str, ...]:
    """`(a, b, "c.d")`, as `by`, `on` and their like take it."""
    cursor.expect("(", "grouping opts")
    names: list[str] = []
    while not cursor.at_sign(")"):
        token = cursor.token
        if token.kind is TokenKind.STRING:
            name = as_text(unquote(token.text))
            if not name:
                cursor.fail(cursor.span(token), f"invalid label name in grouping opts: {quote(name)}")
        elif token.kind is TokenKind.WORD:
            name = token.text
        else:
            cursor.unexpected("grouping opts", "label")
        cursor.take()
        names.append(name)
        if cursor.at_sign(","):
            cursor.take()
        elif not cursor.at_sign(")"):
            cursor.unexpected("grouping opts", '"," or ")"')
    cursor.take()
    return tuple(names)


# Which series of both sides belong together? What may follow a binary operator: `bool`, `on`, `group_left`, `fill`.


def read_binary_modifiers(cursor: TokenCursor) -> tuple[VectorMatching, bool]:
    """The matching, and whether `bool` was there."""
    return_bool = cursor.at_keyword("bool")
    if return_bool:
        cursor.take()
    matching = VectorMatching()
    if cursor.at_keyword("on", "ignoring"):
        on = cursor.take().keyword == "on"
        matching = VectorMatching(labels=read_label_names(cursor), on=on)
        if cursor.at_keyword("group_left", "group_right"):
            left = cursor.take().keyword == "group_left"
            include = read_label_names(cursor) if cursor.at_sign("(") else ()
            cardinality = Cardinality.MANY_TO_ONE if left else Cardinality.ONE_TO_MANY
            matching = replace(matching, cardinality=cardinality, include=include)
    return _read_fills(cursor, matching), return_bool


def _read_fills(cursor: TokenCursor, matching: VectorMatching) -> VectorMatching:
    """`fill(v)` for both sides, or `fill_left(v)` and `fill_right(v)` in any order, each once."""
    while cursor.at_keyword("fill", "fill_left", "fill_right"):
        keyword = cursor.take()
        sides = ("left", "right") if keyword.keyword == "fill" else (keyword.keyword.removeprefix("fill_"),)
        sentence = "binop fill modifiers are experimental and not enabled"
        cursor.require(Feature.BINARY_FILL_MODIFIERS, cursor.span(keyword), sentence)
        value = _read_fill_value(cursor)
        for side in sides:
            known = matching.fill_left if side == "left" else matching.fill_right
            if known is not None:
                cursor.fail(cursor.span(keyword), f"the {side} side is filled in twice")
            matching = replace(matching, fill_left=value) if side == "left" else replace(matching, fill_right=value)
    return matching


def _read_fill_value(cursor: TokenCursor) -> float:
    cursor.expect("(", "fill modifier")
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind not in (TokenKind.NUMBER, TokenKind.DURATION):
        cursor.unexpected("fill modifier", "number")
    literal = read_number(cursor)
    cursor.expect(")", "fill modifier")
    return literal.value if sign is None else signed(literal, sign, cursor).value
