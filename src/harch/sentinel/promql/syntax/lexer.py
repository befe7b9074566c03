"""Which words and signs is a query made of, and where does one end and the next begin? Text in, tokens out."""

# harch: pure

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from harch.sentinel.promql.syntax.literals import BadEscape, quote, unquote
from harch.sentinel.promql.syntax.nodes import AGGREGATIONS


class TokenKind(Enum):
    NUMBER = "number"
    DURATION = "duration"
    BYTES = "size in bytes"  # of LogQL
    FLAG = "flag"  # of LogQL: `--strict`
    STRING = "string"
    WORD = "identifier"
    METRIC = "metric identifier"  # a word with colons
    SIGN = "sign"
    END = "end of input"
    ERROR = "error"  # `text` is the sentence


WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
FILLS = frozenset({"fill", "fill_left", "fill_right"})
_MODIFIERS = frozenset({"offset", "anchored", "smoothed", "by", "without", "on", "ignoring", "bool", *FILLS})
_GROUPS = frozenset({"group_left", "group_right"})
_QUERY_TIMES = frozenset({"start", "end", "step", "range"})
KEYWORDS = WORD_OPERATORS | AGGREGATIONS | _MODIFIERS | _GROUPS | _QUERY_TIMES | {"max_of", "min_of"}
# The few keywords that cannot stand where a metric's name is expected.
NO_METRIC_NAMES = frozenset({"bool", "on", "ignoring", "atan2"}) | _GROUPS
_EXCERPT_CHARACTERS = 10
_SIGN_OPERATORS = frozenset(
    {"+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "=~", "!~", "@", "</", ">/"}
)


@dataclass(frozen=True, slots=True)
class QueryToken:
    """One word or sign. `start` and `end` count characters; `keyword` is the word in small letters if it is one."""

    kind: TokenKind
    text: str
    start: int
    end: int
    keyword: str = ""

    def described(self) -> str:
        """What messages call it, in Prometheus' words."""
        if self.kind is TokenKind.END:
            return "end of input"
        if self.keyword in AGGREGATIONS:
            return f"<aggr:{self.text}>"
        if self.keyword in WORD_OPERATORS or (self.kind is TokenKind.SIGN and self.text in _SIGN_OPERATORS):
            return f"<op:{self.text}>"
        if self.keyword:
            return f"<{self.text}>"
        if self.kind is TokenKind.SIGN:
            return quote(self.text)
        excerpt = quote(self.text)
        if self.kind not in (TokenKind.WORD, TokenKind.METRIC) and len(self.text) > _EXCERPT_CHARACTERS:
            excerpt = quote(self.text[:_EXCERPT_CHARACTERS]) + "..."
        return f"{self.kind.value} {excerpt}"


# Where does one word end and the next begin? Text in, tokens out.
#
# Braces and brackets change the rules: inside of `{}` no word is a keyword, inside of `[]` a colon separates. Reading
# stops at the first thing that cannot be a token; the last token then is an ERROR, which the parser reports if it gets
# that far, since a mistake before it is the one to show.


SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)+")
WORD = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_WORD_WITH_COLONS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
NUMBER = re.compile(
    r"0[xX]_?[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
    r"|(?:[0-9]+(?:_[0-9]+)*\.?(?:[0-9]+(?:_[0-9]+)*)?|\.[0-9]+(?:_[0-9]+)*)(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?"
)
_DURATION = re.compile(r"[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdw]))*")
_RUN = re.compile(r"[a-zA-Z0-9_.]*")
STRING = {
    '"': re.compile(r'"(?:[^"\\\n]|\\[^\n])*"'),
    "'": re.compile(r"'(?:[^'\\\n]|\\[^\n])*'"),
    "`": re.compile(r"`[^`]*`"),
}
_SIGNS = re.compile(r"==|!=|<=|>=|</|>/|=~|!~|[-+*/%^=<>,(){}\[\]@:]")
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
DIGITS = frozenset("0123456789")
_IN_BRACES = frozenset({"=", "!=", "=~", "!~", ",", "}"})


class LexerFailure(Exception):
    def __init__(self, start: int, reason: str) -> None:
        super().__init__(reason)
        self.start = start
        self.reason = reason


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.parentheses = 0
        self.in_braces = False
        self.in_brackets = False

    def next(self) -> QueryToken:
        space = SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()
        if self.position >= len(self.text):
            return self._end()
        first = self.text[self.position]
        if first in DIGITS or (first == "." and self._peek() in DIGITS and not self.in_braces):
            if self.in_braces:
                raise LexerFailure(self.position, f"unexpected character inside braces: {quoted_character(first)}")
            return self._number()
        if first in STRING:
            return self._string(first)
        if first in LETTERS or (first == ":" and not self.in_brackets and not self.in_braces):
            return self._word()
        return self._sign(first)

    def _peek(self) -> str:
        return self.text[self.position + 1 : self.position + 2]

    def _token(self, kind: TokenKind, end: int, keyword: str = "") -> QueryToken:
        token = QueryToken(kind, self.text[self.position : end], self.position, end, keyword)
        self.position = end
        return token

    def _end(self) -> QueryToken:
        if self.in_braces:
            raise LexerFailure(self.position, "unexpected end of input inside braces")
        if self.in_brackets:
            raise LexerFailure(self.position, "unclosed left bracket")
        if self.parentheses:
            raise LexerFailure(self.position, "unclosed left parenthesis")
        return QueryToken(TokenKind.END, "", self.position, self.position)

    def _number(self) -> QueryToken:
        for kind, pattern in ((TokenKind.NUMBER, NUMBER), (TokenKind.DURATION, _DURATION)):
            found = pattern.match(self.text, self.position)
            if found is not None and self.text[found.end() : found.end() + 1] not in LETTERS | DIGITS | {"."}:
                return self._token(kind, found.end())
        run = _RUN.match(self.text, self.position)
        raise LexerFailure(self.position, f"bad number or duration syntax: {quote(run[0] if run else '')}")

    def _string(self, opening: str) -> QueryToken:
        found = STRING[opening].match(self.text, self.position)
        if found is None:
            raise LexerFailure(self.position, f"unterminated {'raw' if opening == '`' else 'quoted'} string")
        try:
            unquote(found[0])
        except BadEscape as bad:
            raise LexerFailure(self.position, str(bad)) from bad
        return self._token(TokenKind.STRING, found.end())

    def _word(self) -> QueryToken:
        colons = not self.in_braces and not self.in_brackets
        found = (_WORD_WITH_COLONS if colons else WORD).match(self.text, self.position)
        if found is None:
            raise LexerFailure(self.position, f"unexpected character: {quoted_character(self.text[self.position])}")
        word = found[0].lower()
        if self.in_braces:
            return self._token(TokenKind.WORD, found.end())
        if word in ("inf", "nan"):
            return self._token(TokenKind.NUMBER, found.end())
        if word in KEYWORDS and (word not in FILLS or self._parenthesis_follows(found.end())):
            return self._token(TokenKind.WORD, found.end(), word)
        return self._token(TokenKind.METRIC if ":" in word else TokenKind.WORD, found.end())

    def _parenthesis_follows(self, position: int) -> bool:
        """`fill` is younger than many metrics called so: it is a keyword only before a parenthesis."""
        space = SPACE.match(self.text, position)
        position = position if space is None else space.end()
        return self.text[position : position + 1] == "("

    def _sign(self, first: str) -> QueryToken:
        found = _SIGNS.match(self.text, self.position)
        if found is None:
            where = " inside braces" if self.in_braces else ""
            if first == "!":
                raise LexerFailure(
                    self.position, f"unexpected character after '!'{where}: {quoted_character(self._peek())}"
                )
            raise LexerFailure(self.position, f"unexpected character{where}: {quoted_character(first)}")
        sign = found[0]
        if self.in_braces and sign not in _IN_BRACES:
            if sign == "==":  # two matchers' signs in a row; the parser says what it expected
                return self._token(TokenKind.SIGN, self.position + 1)
            reason = f"unexpected left brace {quoted_character(first)}" if sign == "{" else ""
            raise LexerFailure(
                self.position, reason or f"unexpected character inside braces: {quoted_character(first)}"
            )
        if not self.in_braces and sign in ("=~", "!~"):
            raise LexerFailure(self.position, f"unexpected character after '{first}': '~'")
        self._nest(sign)
        return self._token(TokenKind.SIGN, found.end())

    def _nest(self, sign: str) -> None:
        match sign:
            case "(":
                self.parentheses += 1
            case ")":
                if self.parentheses == 0:
                    raise LexerFailure(self.position, "unexpected right parenthesis ')'")
                self.parentheses -= 1
            case "{":
                self.in_braces = True
            case "}":
                if not self.in_braces:
                    raise LexerFailure(self.position, "unexpected character: '}'")
                self.in_braces = False
            case "[":
                if self.in_brackets:
                    raise LexerFailure(self.position, "unexpected left bracket '['")
                self.in_brackets = True
            case "]":
                if not self.in_brackets:
                    raise LexerFailure(self.position, "unexpected right bracket ']'")
                self.in_brackets = False
            case ":":
                if not self.in_brackets:
                    raise LexerFailure(self.position, "unexpected character: ':'")


def quoted_character(character: str) -> str:
    """A character in single quotes, as Prometheus shows runes."""
    return "'" + quote(character)[1:-1].replace('\\"', '"') + "'" if character else "end of input"


class Lexer(Protocol):
    def next(self) -> QueryToken:
        """Raises LexerFailure where no token begins."""
        ...


def tokenise(text: str) -> list[QueryToken]:
    return tokens_of(_Lexer(text), len(text))


def tokens_of(lexer: Lexer, length: int) -> list[QueryToken]:
    """All tokens of a query; the last one is END or ERROR."""
    tokens: list[QueryToken] = []
    while True:
        try:
            token = lexer.next()
        except LexerFailure as failure:
            tokens.append(QueryToken(TokenKind.ERROR, failure.reason, failure.start, length))
            return tokens
        tokens.append(token)
        if token.kind is TokenKind.END:
            return tokens
