"""Which streams? `{job="hub", level=~"warn|error"}`."""

from __future__ import annotations

from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.selectors import read_matchers

MATCHERS_MAX = 100


def read_selector(cursor: Cursor) -> LogQuery:
    """A selector without stages. It must not take everything by accident, as in Loki."""
    first = cursor.token
    if not cursor.at_sign("{"):
        cursor.unexpected("", "a stream selector such as {job=…}")
    matchers = read_matchers(cursor)
    span = cursor.span_to_here(cursor.span(first))
    if any(matcher.name == METRIC_NAME for matcher in matchers):
        cursor.fail(span, "streams have labels and no name", hint='write a label before the text: {job="hub"}')
    if len(matchers) > MATCHERS_MAX:
        cursor.fail(span, f"a selector may have {MATCHERS_MAX} matchers")
    if all(matcher.matches_empty() for matcher in matchers):
        cursor.fail(
            span,
            "queries require at least one regexp or equality matcher that does not have an empty-compatible value",
            hint='for instance, `app=~".*"` takes everything; `app=~".+"` is fine',
        )
    return LogQuery(matchers, span=span)
