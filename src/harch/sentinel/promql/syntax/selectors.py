"""Which series does a query name? `name{label="value"}` and lists of label names."""

from __future__ import annotations

import re

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.matchers import Matcher, MatchKind, whole_text_pattern
from harch.sentinel.promql.syntax.cursor import Cursor
from harch.sentinel.promql.syntax.nodes import Span, VectorSelector
from harch.sentinel.promql.syntax.quoting import as_text, quote, unquote
from harch.sentinel.promql.syntax.tokens import NO_METRIC_NAMES, Kind

_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}", re.ASCII)
_DIGITS_MAX = 6  # longer numbers are refused anyway
_KINDS = {kind.value: kind for kind in MatchKind}


def at_metric_name(cursor: Cursor) -> bool:
    """Nearly every keyword may also be a metric's name."""
    token = cursor.token
    return token.kind in (Kind.WORD, Kind.METRIC) and token.keyword not in NO_METRIC_NAMES


def read_selector(cursor: Cursor) -> VectorSelector:
    """A selector without modifiers; the cursor stands on its name or its brace."""
    first = cursor.token
    name = cursor.take().text if at_metric_name(cursor) else ""
    matchers = read_matchers(cursor) if cursor.at_sign("{") else ()
    if name:
        matchers = (*matchers, Matcher(MatchKind.EQUAL, METRIC_NAME, name))
    return cursor.built(VectorSelector(name, matchers, span=cursor.span_to_here(cursor.span(first))))


def read_matchers(cursor: Cursor) -> tuple[Matcher, ...]:
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


def _read_matcher(cursor: Cursor) -> Matcher:
    label = cursor.token
    if label.kind not in (Kind.WORD, Kind.STRING):
        cursor.unexpected("label matching", 'identifier or "}"')
    cursor.take()
    name = unquote(label.text) if label.kind is Kind.STRING else label.text
    if label.kind is Kind.STRING and cursor.at_sign(",", "}"):
        return Matcher(MatchKind.EQUAL, METRIC_NAME, as_text(name))
    if not cursor.at_sign(*_KINDS):
        cursor.unexpected("label matching", "label matching operator")
    kind = _KINDS[cursor.take().text]
    value = cursor.token
    if value.kind is not Kind.STRING:
        cursor.unexpected("label matching", "string")
    cursor.take()
    matcher = Matcher(kind, as_text(name), as_text(unquote(value.text)))
    if kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
        check_expression(cursor, matcher.value, cursor.span(label, value))
    return matcher


def check_expression(cursor: Cursor, expression: str, span: Span) -> None:
    """Fails where it is no RE2 expression, or one that costs too much to compile."""
    counts = (number for found in _REPETITION.finditer(expression) for number in found.groups() if number)
    cursor.count_repetitions(sum(int(number[:_DIGITS_MAX]) for number in counts), span)
    try:
        whole_text_pattern(expression)
    except HarchError as broken:
        if broken.code != "E0602":
            raise
        cursor.fail(span, f"error parsing regexp: {broken.message}", hint="regular expressions are in RE2 syntax")


def read_label_names(cursor: Cursor) -> tuple[str, ...]:
    """`(a, b, "c.d")`, as `by`, `on` and their like take it."""
    cursor.expect("(", "grouping opts")
    names: list[str] = []
    while not cursor.at_sign(")"):
        token = cursor.token
        if token.kind is Kind.STRING:
            name = as_text(unquote(token.text))
            if not name:
                cursor.fail(cursor.span(token), f"invalid label name in grouping opts: {quote(name)}")
        elif token.kind is Kind.WORD:
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
