"""What is wrong with a query, and where? Offsets of bytes, as editors and Prometheus count them."""

# harch: pure

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.promql.syntax.nodes import NOWHERE, TextSpan


class QueryText:
    """A query's text. The lexer counts characters; spans count the bytes of the UTF-8 form."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._bytes_before: list[int] | None = None
        if not text.isascii():
            total, before = 0, []
            for character in text:
                before.append(total)
                total += _width(character)
            self._bytes_before = [*before, total]

    def span(self, start: int, end: int) -> TextSpan:
        """The span of the characters from start up to end."""
        if self._bytes_before is None:
            return TextSpan(start, end)
        return TextSpan(self._bytes_before[start], self._bytes_before[end])


def _width(character: str) -> int:
    """Bytes of one character in UTF-8."""
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def line_and_column(query: str, offset: int) -> str:
    """`line:column` of a byte, both counted from 1, as messages and annotations show it."""
    before = query.encode()[:offset]
    return f"{before.count(10) + 1}:{len(before) - before.rfind(10)}"


# What is wrong with a query, and where?


SYNTAX = "E0620"  # not PromQL, or types that do not fit
TOO_LARGE = "E0621"  # beyond a limit of the parser
NOT_ENABLED = "E0622"  # experimental, and its feature is not switched on


class PromqlSyntaxError(HarchError):
    """The text is no valid query. `reason` is the sentence alone, `span` the bytes it speaks of."""

    def __init__(self, query: str, span: TextSpan, reason: str, *, code: str = SYNTAX, hint: str = "") -> None:
        self.position = line_and_column(query, span.start)
        self.span = span
        self.reason = reason
        super().__init__(code, f"{self.position}: parse error: {reason}", hint=hint)


def too_large(query: str, what: str, hint: str, span: TextSpan = NOWHERE) -> PromqlSyntaxError:
    return PromqlSyntaxError(query, span, what, code=TOO_LARGE, hint=hint)
