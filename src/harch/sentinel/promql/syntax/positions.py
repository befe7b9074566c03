"""Where in the query is that? Offsets of bytes, as people's editors and Prometheus' messages count them."""

from __future__ import annotations

from harch.sentinel.promql.syntax.nodes import Span


class Source:
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

    def span(self, start: int, end: int) -> Span:
        """The span of the characters from start up to end."""
        if self._bytes_before is None:
            return Span(start, end)
        return Span(self._bytes_before[start], self._bytes_before[end])


def _width(character: str) -> int:
    """Bytes of one character in UTF-8."""
    code = ord(character)
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def line_and_column(query: str, offset: int) -> str:
    """`line:column` of a byte, both counted from 1, as messages and annotations show it."""
    before = query.encode()[:offset]
    return f"{before.count(10) + 1}:{len(before) - before.rfind(10)}"
