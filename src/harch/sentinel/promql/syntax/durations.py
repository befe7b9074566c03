"""How long is a range, a step, an offset? Numbers, durations, and arithmetic on both."""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.failures import too_large
from harch.sentinel.promql.syntax.nodes import DurationExpr, DurationNode, DurationOperator, NumberLiteral, Span
from harch.sentinel.promql.syntax.numbers import DURATION_MS_MAX, duration_ms, number
from harch.sentinel.promql.syntax.options import Feature
from harch.sentinel.promql.syntax.tokens import Kind, Token

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 3}
_SIGN_PRECEDENCE = 3  # a sign binds as `*` does: only `^` is read into its operand
_EXPECTED = "number, duration, step(), or range()"


def read_number(cursor: Cursor) -> NumberLiteral:
    """A number or duration without sign; the cursor stands on it."""
    token = cursor.take()
    span = cursor.span(token)
    if token.kind is Kind.DURATION:
        ms = duration_ms(token.text)
        if ms is None:
            cursor.fail(
                span, f'not a valid duration string: "{token.text}"', hint="units go from large to small: 1h30m"
            )
        if ms > DURATION_MS_MAX:
            cursor.fail(span, "duration out of range")
        return NumberLiteral(ms / 1000, is_duration=True, span=span)
    value = number(token.text)
    if value is None:
        cursor.fail(span, f'error parsing number: "{token.text}" is not a number')
    return NumberLiteral(value, span=span)


def signed(literal: NumberLiteral, sign: Token, cursor: Cursor) -> NumberLiteral:
    value = -literal.value if sign.text == "-" else literal.value
    # NaN has no sign that anybody could see, and one object for all of them keeps equal trees equal.
    value = literal.value if value != value else value
    return replace(literal, value=value, span=Span(cursor.span(sign).start, literal.span.end))


def read_range(cursor: Cursor, context: str, expected: str = _EXPECTED) -> tuple[int, DurationExpr | None]:
    """A duration that must be longer than nothing: milliseconds, or 0 and the expression."""
    duration = _Reader(cursor, context, expected).sum(0)
    if isinstance(duration, DurationExpr):
        _check_enabled(cursor, duration)
        return 0, duration
    ms = _literal_ms(cursor, duration)
    if ms <= 0:
        cursor.fail(duration.span, "duration must be greater than 0")
    return ms, None


def read_offset(cursor: Cursor) -> tuple[int, DurationExpr | None]:
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


def _check_enabled(cursor: Cursor, duration: DurationExpr) -> None:
    cursor.require(Feature.DURATION_EXPRESSIONS, duration.span, "experimental duration expression is not enabled")


def _literal_ms(cursor: Cursor, literal: NumberLiteral) -> int:
    if not abs(literal.value) <= DURATION_MS_MAX / 1000:  # NaN is not in the range either
        cursor.fail(literal.span, "duration out of range")
    return round(literal.value * 1000)


class _Reader:
    """Reads one duration. It counts all parts of it as levels: no duration needs many, and no tree is deeper."""

    def __init__(self, cursor: Cursor, context: str, expected: str) -> None:
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
            left = DurationExpr(DurationOperator(sign), left, right, span=Span(left.span.start, right.span.end))
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
        if token.kind not in (Kind.NUMBER, Kind.DURATION):
            cursor.unexpected(self._context, self._expected)
        return read_number(cursor)

    def with_sign(self, operand: DurationNode, sign: Token) -> DurationNode:
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
