"""Where does one word end and the next begin? The tokens of LogQL; strings, numbers and space are read as in PromQL."""

# harch: pure

from __future__ import annotations

import re

from harch.sentinel.logql.text.values import duration_ns, size_bytes
from harch.sentinel.promql.syntax.lexer import (
    DIGITS,
    LETTERS,
    NUMBER,
    SPACE,
    STRING,
    WORD,
    LexerFailure,
    QueryToken,
    TokenKind,
    quoted_character,
    tokens_of,
)
from harch.sentinel.promql.syntax.literals import BadEscape, quote, unquote

VECTOR_AGGREGATIONS = frozenset(
    {"sum", "avg", "min", "max", "count", "stddev", "stdvar", "topk", "bottomk", "approx_topk", "sort", "sort_desc"}
)
RANGE_FUNCTIONS = frozenset(
    {"rate", "rate_counter", "count_over_time", "bytes_rate", "bytes_over_time", "absent_over_time"}
    | {f"{name}_over_time" for name in ("sum", "avg", "min", "max", "stddev", "stdvar", "quantile", "first", "last")}
)
PARSERS = frozenset({"json", "logfmt", "pattern", "regexp", "unpack"})
ALONE = frozenset({"json", "logfmt", "unpack", "decolorize"})  # stages that need no more than their name
FORMATS = frozenset({"line_format", "label_format", "decolorize", "drop", "keep", "unwrap"})
_OPERATORS = frozenset({"and", "or", "unless"})
_MODIFIERS = frozenset({"by", "without", "on", "ignoring", "bool", "group_left", "group_right", "offset"})
_CALLS = frozenset({"ip", "vector", "label_replace", "duration", "duration_seconds", "bytes"})
KEYWORDS = VECTOR_AGGREGATIONS | RANGE_FUNCTIONS | PARSERS | FORMATS | _OPERATORS | _MODIFIERS | _CALLS

_SIGNS = re.compile(r"\|=|\|~|\|>|!=|!~|!>|=~|==|<=|>=|[-+*/%^=<>,(){}\[\]|]")
_FLAG = re.compile(r"--[a-z][a-z-]*")
_RUN = re.compile(r"[0-9a-zA-Z_.µμ]*")


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def next(self) -> QueryToken:
        space = SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()
        if self.position >= len(self.text):
            return QueryToken(TokenKind.END, "", self.position, self.position)
        first = self.text[self.position]
        if first in DIGITS or (first == "." and self.text[self.position + 1 : self.position + 2] in DIGITS):
            return self._number()
        if first in STRING and first != "'":
            return self._string(first)
        if first in LETTERS:
            found = WORD.match(self.text, self.position)
            word = found[0] if found else first
            if word.lower() in ("inf", "nan"):
                return self._token(TokenKind.NUMBER, self.position + len(word))
            return self._token(TokenKind.WORD, self.position + len(word), word if word in KEYWORDS else "")
        if flag := _FLAG.match(self.text, self.position):
            return self._token(TokenKind.FLAG, flag.end())
        if sign := _SIGNS.match(self.text, self.position):
            return self._token(TokenKind.SIGN, sign.end())
        quoted = " (use double quotes or backticks for strings)" if first == "'" else ""
        raise LexerFailure(self.position, f"unexpected character: {quoted_character(first)}{quoted}")

    def _token(self, kind: TokenKind, end: int, keyword: str = "") -> QueryToken:
        token = QueryToken(kind, self.text[self.position : end], self.position, end, keyword)
        self.position = end
        return token

    def _number(self) -> QueryToken:
        run = _RUN.match(self.text, self.position)
        text = run[0] if run else ""
        end = self.position + len(text)
        number = NUMBER.match(self.text, self.position)
        if number is not None and (number.end() == end or "e" in number[0].lower()) and number.end() >= end:
            return self._token(TokenKind.NUMBER, number.end())
        if duration_ns(text) is not None:
            return self._token(TokenKind.DURATION, end)
        if size_bytes(text) is not None:
            return self._token(TokenKind.BYTES, end)
        raise LexerFailure(self.position, f"bad number, duration or size: {quote(text)}")

    def _string(self, opening: str) -> QueryToken:
        found = STRING[opening].match(self.text, self.position)
        if found is None:
            raise LexerFailure(self.position, f"unterminated {'raw' if opening == '`' else 'quoted'} string")
        try:
            unquote(found[0])
        except BadEscape as bad:
            raise LexerFailure(self.position, str(bad)) from bad
        return self._token(TokenKind.STRING, found.end())


def tokenise(text: str) -> list[QueryToken]:
    return tokens_of(_Lexer(text), len(text))
