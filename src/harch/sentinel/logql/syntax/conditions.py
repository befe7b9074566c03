"""Which labels must a line have? `| level="error" and (duration > 1s or size >= 5KB)`."""

from __future__ import annotations

from functools import partial

from harch.sentinel.logql.syntax import stages
from harch.sentinel.logql.syntax.reading import (
    checked,
    read_duration,
    read_matcher_after,
    read_number,
    read_size,
    read_text,
)
from harch.sentinel.logql.syntax.stages import Condition
from harch.sentinel.logql.texts.addresses import address_pattern
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.tokens import Kind, Token

CONDITIONS_MAX = 100  # of one filter; they nest to the left
_COMPARISONS = frozenset({"=", "!=", "=~", "!~", "==", ">", ">=", "<", "<="})
_WORDS = frozenset({"and", "or", "unless"})


def at_comparison(cursor: Cursor, token: Token) -> bool:
    return token.kind is Kind.SIGN and token.text in _COMPARISONS


def read_condition(cursor: Cursor) -> Condition:
    """`and` binds closer than `or`; a comma and a space are an `and` that comes last."""
    return _Reader(cursor).listed()


class _Reader:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.count = 0

    def listed(self) -> Condition:
        cursor = self.cursor
        cursor.enter()
        left = self.either()
        while self._is_next_condition() or (cursor.at_sign(",") and self._condition_follows(cursor.following)):
            if cursor.at_sign(","):
                cursor.take()
            left = stages.Both(left, self.either())
        cursor.leave()
        return left

    def either(self) -> Condition:
        cursor = self.cursor
        left = self.both()
        while cursor.at_keyword("or") and self._condition_follows(cursor.following):
            cursor.take()
            left = stages.Either(left, self.both())
        return left

    def both(self) -> Condition:
        cursor = self.cursor
        left = self.single()
        while cursor.at_keyword("and") and self._condition_follows(cursor.following):
            cursor.take()
            left = stages.Both(left, self.single())
        return left

    def _condition_follows(self, token: Token) -> bool:
        """`and`, `or` after a range aggregation join numbers, so what follows decides."""
        return token.kind is Kind.WORD or (token.kind is Kind.SIGN and token.text == "(")

    def _is_next_condition(self) -> bool:
        token = self.cursor.token
        if token.kind is not Kind.WORD or token.keyword in _WORDS:
            return False
        return at_comparison(self.cursor, self.cursor.following)

    def single(self) -> Condition:
        cursor = self.cursor
        self.count += 1
        if self.count > CONDITIONS_MAX:
            cursor.fail(cursor.span(cursor.token), f"a filter may have {CONDITIONS_MAX} conditions")
        if cursor.at_sign("("):
            cursor.take()
            inner = self.listed()
            cursor.expect(")", "label filter")
            return inner
        if cursor.token.kind is not Kind.WORD:
            cursor.unexpected("label filter", "a label's name")
        label = cursor.take()
        if not at_comparison(cursor, cursor.token):
            cursor.unexpected("label filter", "a comparison such as =, != or >")
        return self.compared(label)

    def compared(self, label: Token) -> Condition:
        cursor, value = self.cursor, self.cursor.following
        if value.keyword == "ip":
            return self.address(label)
        if value.kind is Kind.STRING:
            return stages.TextCondition(read_matcher_after(cursor, label))
        sign = cursor.take()
        if sign.text in ("=~", "!~"):
            cursor.unexpected("label filter", "a regular expression in quotes")
        operator = "==" if sign.text == "=" else sign.text
        if cursor.token.kind is Kind.DURATION:
            amount = float(read_duration(cursor, "label filter"))
            return stages.AmountCondition(label.text, operator, amount, stages.Unit.DURATION)
        if cursor.token.kind is Kind.BYTES:
            return stages.AmountCondition(label.text, operator, float(read_size(cursor)), stages.Unit.BYTES)
        if cursor.token.kind is not Kind.NUMBER and not cursor.at_sign("+", "-"):
            cursor.unexpected("label filter", "a text, number, duration, size or ip()")
        return stages.AmountCondition(label.text, operator, read_number(cursor, "label filter"), stages.Unit.NUMBER)

    def address(self, label: Token) -> Condition:
        cursor = self.cursor
        if not cursor.at_sign("=", "!="):
            cursor.unexpected("ip filter", "= or !=")
        is_negative = cursor.take().text == "!="
        start = cursor.take()
        cursor.expect("(", "ip filter")
        text = read_text(cursor, "ip filter")
        cursor.expect(")", "ip filter")
        checked(cursor, start, partial(address_pattern, text))
        return stages.AddressCondition(label.text, is_negative, text)
