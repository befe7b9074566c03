"""What do all parts of the LogQL parser read? Texts, names, durations and sizes at the cursor."""

from __future__ import annotations

from collections.abc import Callable

from harch.base.errors import HarchError
from harch.sentinel.logql.syntax.failures import LogqlSyntaxError
from harch.sentinel.logql.syntax.lexer import tokenise
from harch.sentinel.logql.syntax.nodes import Grouping, children
from harch.sentinel.logql.syntax.units import duration_ns, size_bytes
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.promql.syntax.cursor import Cursor, Language
from harch.sentinel.promql.syntax.numbers import number
from harch.sentinel.promql.syntax.options import DEFAULT_OPTIONS, ParserOptions
from harch.sentinel.promql.syntax.quoting import as_text, unquote
from harch.sentinel.promql.syntax.selectors import check_expression, read_label_names
from harch.sentinel.promql.syntax.tokens import Kind, Token

_LOGQL = Language(tokenise, children, LogqlSyntaxError)
_KINDS = {kind.value: kind for kind in MatchKind}


def cursor_of(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> Cursor:
    return Cursor(query, options, _LOGQL)


def read_text(cursor: Cursor, context: str) -> str:
    """A string literal."""
    if cursor.token.kind is not Kind.STRING:
        cursor.unexpected(context, "a text in quotes")
    return as_text(unquote(cursor.take().text))


def read_name(cursor: Cursor, context: str) -> str:
    """A label's name; nearly every keyword may be one."""
    if cursor.token.kind is not Kind.WORD:
        cursor.unexpected(context, "a label's name")
    return cursor.take().text


def read_number(cursor: Cursor, context: str) -> float:
    """A number, with or without a sign."""
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind is not Kind.NUMBER:
        cursor.unexpected(context, "a number")
    token = cursor.take()
    value = number(token.text)
    if value is None:
        cursor.fail(cursor.span(token), f'"{token.text}" is not a number')
    return -value if sign is not None and sign.text == "-" and value == value else value


def read_duration(cursor: Cursor, context: str) -> int:
    """Nanoseconds, without a sign."""
    if cursor.token.kind is not Kind.DURATION:
        cursor.unexpected(context, "a duration such as 5m")
    token = cursor.take()
    ns = duration_ns(token.text)
    if ns is None:
        cursor.fail(cursor.span(token), f"not a valid duration: {token.text}")
    return ns


def read_size(cursor: Cursor) -> int:
    token = cursor.take()
    size = size_bytes(token.text)
    if size is None:
        cursor.fail(cursor.span(token), f"not a valid size: {token.text}")
    return size


def read_matcher_after(cursor: Cursor, label: Token) -> Matcher:
    """The sign and the value of a matcher whose label was read."""
    if not cursor.at_sign(*_KINDS):
        cursor.unexpected("label matching", "=, !=, =~ or !~")
    kind = _KINDS[cursor.take().text]
    first = cursor.token
    matcher = Matcher(kind, label.text, read_text(cursor, "label matching"))
    if kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
        check_expression(cursor, matcher.value, cursor.span(label, first))
    return matcher


def read_grouping(cursor: Cursor) -> Grouping | None:
    """`by (…)` or `without (…)`, if it stands here."""
    if not cursor.at_keyword("by", "without"):
        return None
    without = cursor.take().keyword == "without"
    return Grouping(read_label_names(cursor), without)


def checked(cursor: Cursor, start: Token, check: Callable[[], object]) -> None:
    """Runs a check that raises HarchError, and says where in the query the mistake is."""
    try:
        check()
    except HarchError as wrong:
        hint = "docs/sentinel/logql.md lists the functions of templates" if wrong.code == "E0641" else wrong.hint
        cursor.fail(cursor.span(start), wrong.message, hint=hint)
