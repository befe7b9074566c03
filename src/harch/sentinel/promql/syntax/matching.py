"""Which series of both sides belong together? What may follow a binary operator: `bool`, `on`, `group_left`, `fill`."""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.durations import read_number, signed
from harch.sentinel.promql.syntax.nodes import Cardinality, VectorMatching
from harch.sentinel.promql.syntax.options import Feature
from harch.sentinel.promql.syntax.selectors import read_label_names
from harch.sentinel.promql.syntax.tokens import Kind


def read_binary_modifiers(cursor: Cursor) -> tuple[VectorMatching, bool]:
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


def _read_fills(cursor: Cursor, matching: VectorMatching) -> VectorMatching:
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


def _read_fill_value(cursor: Cursor) -> float:
    cursor.expect("(", "fill modifier")
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind not in (Kind.NUMBER, Kind.DURATION):
        cursor.unexpected("fill modifier", "number")
    literal = read_number(cursor)
    cursor.expect(")", "fill modifier")
    return literal.value if sign is None else signed(literal, sign, cursor).value
