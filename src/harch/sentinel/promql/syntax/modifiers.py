"""When, and over how long? What may follow a selector: ranges, subqueries, `offset`, `@`, `anchored`, `smoothed`."""

from __future__ import annotations

import math
from dataclasses import replace

from harch.sentinel.promql.syntax.checks import check_subquery
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.durations import read_number, read_offset, read_range, signed
from harch.sentinel.promql.syntax.nodes import (
    DurationExpr,
    Edge,
    Expr,
    MatrixSelector,
    RangeMode,
    Span,
    Subquery,
    VectorSelector,
)
from harch.sentinel.promql.syntax.numbers import INT64_MAX, format_number
from harch.sentinel.promql.syntax.options import Feature
from harch.sentinel.promql.syntax.tokens import Kind

_SUBJECT = "must be preceded by an instant vector selector or range vector selector or a subquery"


def at_modifier(cursor: Cursor) -> bool:
    return cursor.at_sign("[", "@") or cursor.at_keyword("offset", "anchored", "smoothed")


def read_modifier(cursor: Cursor, subject: Expr) -> Expr:
    """The subject with one modifier more."""
    if cursor.at_sign("["):
        return _read_brackets(cursor, subject)
    if cursor.at_sign("@"):
        return _read_at(cursor, subject)
    if cursor.at_keyword("offset"):
        cursor.take()
        return _with_offset(cursor, subject, *read_offset(cursor))
    return _read_range_mode(cursor, subject)


def _read_brackets(cursor: Cursor, subject: Expr) -> Expr:
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
    brackets = Span(cursor.span(opening).start, cursor.span(closing).end)
    if not isinstance(subject, VectorSelector):
        cursor.fail(brackets, "ranges only allowed for vector selectors")
    if subject.offset_ms or subject.offset_expr is not None:
        cursor.fail(brackets, "no offset modifiers allowed before range")
    if subject.at_ms is not None or subject.at_edge is not None:
        cursor.fail(brackets, "no @ modifiers allowed before range")
    return cursor.built(MatrixSelector(subject, range_ms, range_expr, span=cursor.span_to_here(subject.span)))


def _with_offset(cursor: Cursor, subject: Expr, offset_ms: int, offset_expr: DurationExpr | None) -> Expr:
    where = _timed(subject)
    if where is None:
        cursor.fail(subject.span, f"offset modifier {_SUBJECT}")
    if where.offset_ms or where.offset_expr is not None:
        cursor.fail(subject.span, "offset may not be set multiple times")
    span = cursor.span_to_here(subject.span)
    return _replaced(cursor, subject, replace(where, offset_ms=offset_ms, offset_expr=offset_expr), span)


def _read_at(cursor: Cursor, subject: Expr) -> Expr:
    cursor.take()
    at_ms: int | None = None
    edge: Edge | None = None
    if cursor.at_keyword("start", "end"):
        edge = Edge(cursor.take().keyword)
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


def _read_timestamp(cursor: Cursor, where: Span) -> int:
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind not in (Kind.NUMBER, Kind.DURATION):
        cursor.unexpected("@", "timestamp")
    literal = read_number(cursor)
    seconds = literal.value if sign is None else signed(literal, sign, cursor).value
    if not abs(seconds) < INT64_MAX:
        shown = f"{seconds:f}" if math.isfinite(seconds) else format_number(seconds)
        cursor.fail(where, f"timestamp out of bounds for @ modifier: {shown}")
    return math.floor(seconds * 1000 + 0.5) if seconds >= 0 else math.ceil(seconds * 1000 - 0.5)


def _read_range_mode(cursor: Cursor, subject: Expr) -> Expr:
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


def _replaced(cursor: Cursor, subject: Expr, changed: VectorSelector | Subquery, span: Span) -> Expr:
    if isinstance(subject, MatrixSelector) and isinstance(changed, VectorSelector):
        return cursor.built(replace(subject, selector=cursor.built(changed), span=span))
    return cursor.built(replace(changed, span=span))
