"""Over how long is counted? `count_over_time({job="hub"} |= "error" [5m] offset 1h)`, with `unwrap` for values."""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.logql.syntax.conditions import read_condition
from harch.sentinel.logql.syntax.nodes import LogQuery, RangeAggregation, Unwrap
from harch.sentinel.logql.syntax.pipelines import at_stage, read_stages
from harch.sentinel.logql.syntax.reading import read_duration, read_grouping, read_name, read_number
from harch.sentinel.logql.syntax.selectors import read_selector
from harch.sentinel.logql.syntax.stages import LabelFilter
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.tokens import Token

# What counts lines, what needs a value, and what takes both.
_COUNTING = frozenset({"count_over_time", "bytes_rate", "bytes_over_time"})
_EITHER = frozenset({"rate", "absent_over_time"})
_GROUPABLE = frozenset(
    f"{name}_over_time" for name in ("avg", "min", "max", "stddev", "stdvar", "quantile", "first", "last")
)
_CONVERSIONS = {"duration": "duration", "duration_seconds": "duration", "bytes": "bytes"}


def read_range_aggregation(cursor: Cursor) -> RangeAggregation:
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

    def __init__(self, cursor: Cursor) -> None:
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
            cursor.fail(cursor.span(opening), "there is a range already")
        at = cursor.token
        self.range_ns = read_duration(cursor, "range")
        if self.range_ns <= 0:
            cursor.fail(cursor.span(at), "a range must be longer than nothing")
        cursor.expect("]", "range")

    def _read_offset(self) -> None:
        cursor = self.cursor
        word = cursor.take()
        if self.range_ns is None:
            cursor.fail(cursor.span(word), "offset stands after the range")
        if self.offset_ns:
            cursor.fail(cursor.span(word), "there is an offset already")
        sign = cursor.take() if cursor.at_sign("-", "+") else None
        ns = read_duration(cursor, "offset")
        self.offset_ns = -ns if sign is not None and sign.text == "-" else ns

    def _read_unwrap(self) -> None:
        cursor = self.cursor
        cursor.take()
        word = cursor.take()
        if self.unwrap is not None:
            cursor.fail(cursor.span(word), "unwrap stands once in a pipeline")
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


def _check(cursor: Cursor, node: RangeAggregation, name: Token) -> None:
    function = node.function
    if node.unwrap is not None and function in _COUNTING:
        cursor.fail(node.span, f"{function} counts lines and takes no unwrap")
    if node.unwrap is None and function not in _COUNTING | _EITHER:
        hint = "put `| unwrap label` before the range"
        cursor.fail(node.span, f"{function} needs values to work on", hint=hint)
    if node.grouping is not None and function not in _GROUPABLE:
        hint = "wrap it in an aggregation: sum by (…) (…)"
        cursor.fail(cursor.span(name), f"grouping not allowed for {function}", hint=hint)
