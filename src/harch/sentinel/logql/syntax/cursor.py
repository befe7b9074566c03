"""What do all parts of the LogQL parser read, and what is wrong with a query, and where?

Strings, names, durations and sizes at the cursor.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable

from harch.base.errors import HarchError
from harch.sentinel.logql.syntax.lexer import tokenise
from harch.sentinel.logql.syntax.nodes import Grouping, children
from harch.sentinel.logql.text.values import duration_ns, size_bytes
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.promql.syntax.clauses import check_expression, read_label_names
from harch.sentinel.promql.syntax.cursor import DEFAULT_OPTIONS, Language, ParserOptions, TokenCursor
from harch.sentinel.promql.syntax.errors import line_and_column
from harch.sentinel.promql.syntax.lexer import QueryToken, TokenKind
from harch.sentinel.promql.syntax.literals import as_text, number, unquote
from harch.sentinel.promql.syntax.nodes import TextSpan

SYNTAX = "E0685"


class LogqlSyntaxError(HarchError):
    """The text is no valid query. `reason` is the sentence alone, `span` the bytes it speaks of."""

    def __init__(self, query: str, span: TextSpan, reason: str, *, code: str = SYNTAX, hint: str = "") -> None:
        self.position = line_and_column(query, span.start)
        self.span = span
        self.reason = reason
        super().__init__(code, f"{self.position}: parse error: {reason}", hint=hint)


# What do all parts of the LogQL parser read? Texts, names, durations and sizes at the cursor.


_LOGQL = Language(tokenise, children, LogqlSyntaxError)
_KINDS = {kind.value: kind for kind in MatchKind}


def cursor_of(query: str, options: ParserOptions = DEFAULT_OPTIONS) -> TokenCursor:
    return TokenCursor(query, options, _LOGQL)


def read_text(cursor: TokenCursor, context: str) -> str:
    """A string literal."""
    if cursor.token.kind is not TokenKind.STRING:
        cursor.unexpected(context, "a quoted string")
    return as_text(unquote(cursor.take().text))


def read_name(cursor: TokenCursor, context: str) -> str:
    """A label's name; nearly every keyword may be one."""
    if cursor.token.kind is not TokenKind.WORD:
        cursor.unexpected(context, "a label's name")
    return cursor.take().text


def read_number(cursor: TokenCursor, context: str) -> float:
    """A number, with or without a sign."""
    sign = cursor.take() if cursor.at_sign("+", "-") else None
    if cursor.token.kind is not TokenKind.NUMBER:
        cursor.unexpected(context, "a number")
    token = cursor.take()
    value = number(token.text)
    if value is None:
        cursor.fail(cursor.span(token), f'"{token.text}" is not a number')
    return -value if sign is not None and sign.text == "-" and value == value else value


def read_duration(cursor: TokenCursor, context: str) -> int:
    """Nanoseconds, without a sign."""
    if cursor.token.kind is not TokenKind.DURATION:
        cursor.unexpected(context, "a duration such as 5m")
    token = cursor.take()
    ns = duration_ns(token.text)
    if ns is None:
        cursor.fail(cursor.span(token), f"not a valid duration: {token.text}")
    return ns


def read_size(cursor: TokenCursor) -> int:
    token = cursor.take()
    size = size_bytes(token.text)
    if size is None:
        cursor.fail(cursor.span(token), f"not a valid size: {token.text}")
    return size


def read_matcher_after(cursor: TokenCursor, label: QueryToken) -> Matcher:
    """The sign and the value of a matcher whose label was read."""
    if not cursor.at_sign(*_KINDS):
        cursor.unexpected("label matching", "=, !=, =~ or !~")
    kind = _KINDS[cursor.take().text]
    first = cursor.token
    matcher = Matcher(kind, label.text, read_text(cursor, "label matching"))
    if kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
        check_expression(cursor, matcher.value, cursor.span(label, first))
    return matcher


def read_grouping(cursor: TokenCursor) -> Grouping | None:
    """`by (…)` or `without (…)`, if it stands here."""
    if not cursor.at_keyword("by", "without"):
        return None
    without = cursor.take().keyword == "without"
    return Grouping(read_label_names(cursor), without)


def checked(cursor: TokenCursor, start: QueryToken, check: Callable[[], object]) -> None:
    """Runs a check that raises HarchError, and says where in the query the mistake is."""
    try:
        check()
    except HarchError as wrong:
        hint = "docs/sentinel/logql.md lists the functions of templates" if wrong.code == "E0641" else wrong.hint
        cursor.fail(cursor.span(start), wrong.message, hint=hint)
