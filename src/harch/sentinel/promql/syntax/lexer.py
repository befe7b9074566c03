"""Where does one word end and the next begin? Text in, tokens out.

Braces and brackets change the rules: inside of `{}` no word is a keyword, inside of `[]` a colon separates. Reading
stops at the first thing that cannot be a token; the last token then is an ERROR, which the parser reports if it gets
that far, since a mistake before it is the one to show.
"""

from __future__ import annotations

import re
from typing import Protocol

from harch.sentinel.promql.syntax.quoting import BadEscape, quote, unquote
from harch.sentinel.promql.syntax.tokens import FILLS, KEYWORDS, Kind, Token

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

    def next(self) -> Token:
        space = SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()
        if self.position >= len(self.text):
            return self._end()
        first = self.text[self.position]
        if first in DIGITS or (first == "." and self._peek() in DIGITS and not self.in_braces):
            if self.in_braces:
                raise LexerFailure(self.position, f"unexpected character inside braces: {shown(first)}")
            return self._number()
        if first in STRING:
            return self._string(first)
        if first in LETTERS or (first == ":" and not self.in_brackets and not self.in_braces):
            return self._word()
        return self._sign(first)

    def _peek(self) -> str:
        return self.text[self.position + 1 : self.position + 2]

    def _token(self, kind: Kind, end: int, keyword: str = "") -> Token:
        token = Token(kind, self.text[self.position : end], self.position, end, keyword)
        self.position = end
        return token

    def _end(self) -> Token:
        if self.in_braces:
            raise LexerFailure(self.position, "unexpected end of input inside braces")
        if self.in_brackets:
            raise LexerFailure(self.position, "unclosed left bracket")
        if self.parentheses:
            raise LexerFailure(self.position, "unclosed left parenthesis")
        return Token(Kind.END, "", self.position, self.position)

    def _number(self) -> Token:
        for kind, pattern in ((Kind.NUMBER, NUMBER), (Kind.DURATION, _DURATION)):
            found = pattern.match(self.text, self.position)
            if found is not None and self.text[found.end() : found.end() + 1] not in LETTERS | DIGITS | {"."}:
                return self._token(kind, found.end())
        run = _RUN.match(self.text, self.position)
        raise LexerFailure(self.position, f"bad number or duration syntax: {quote(run[0] if run else '')}")

    def _string(self, opening: str) -> Token:
        found = STRING[opening].match(self.text, self.position)
        if found is None:
            raise LexerFailure(self.position, f"unterminated {'raw' if opening == '`' else 'quoted'} string")
        try:
            unquote(found[0])
        except BadEscape as bad:
            raise LexerFailure(self.position, str(bad)) from bad
        return self._token(Kind.STRING, found.end())

    def _word(self) -> Token:
        colons = not self.in_braces and not self.in_brackets
        found = (_WORD_WITH_COLONS if colons else WORD).match(self.text, self.position)
        if found is None:
            raise LexerFailure(self.position, f"unexpected character: {shown(self.text[self.position])}")
        word = found[0].lower()
        if self.in_braces:
            return self._token(Kind.WORD, found.end())
        if word in ("inf", "nan"):
            return self._token(Kind.NUMBER, found.end())
        if word in KEYWORDS and (word not in FILLS or self._parenthesis_follows(found.end())):
            return self._token(Kind.WORD, found.end(), word)
        return self._token(Kind.METRIC if ":" in word else Kind.WORD, found.end())

    def _parenthesis_follows(self, position: int) -> bool:
        """`fill` is younger than many metrics called so: it is a keyword only before a parenthesis."""
        space = SPACE.match(self.text, position)
        position = position if space is None else space.end()
        return self.text[position : position + 1] == "("

    def _sign(self, first: str) -> Token:
        found = _SIGNS.match(self.text, self.position)
        if found is None:
            where = " inside braces" if self.in_braces else ""
            if first == "!":
                raise LexerFailure(self.position, f"unexpected character after '!'{where}: {shown(self._peek())}")
            raise LexerFailure(self.position, f"unexpected character{where}: {shown(first)}")
        sign = found[0]
        if self.in_braces and sign not in _IN_BRACES:
            if sign == "==":  # two matchers' signs in a row; the parser says what it expected
                return self._token(Kind.SIGN, self.position + 1)
            reason = f"unexpected left brace {shown(first)}" if sign == "{" else ""
            raise LexerFailure(self.position, reason or f"unexpected character inside braces: {shown(first)}")
        if not self.in_braces and sign in ("=~", "!~"):
            raise LexerFailure(self.position, f"unexpected character after '{first}': '~'")
        self._nest(sign)
        return self._token(Kind.SIGN, found.end())

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


def shown(character: str) -> str:
    """A character in single quotes, as Prometheus shows runes."""
    return "'" + quote(character)[1:-1].replace('\\"', '"') + "'" if character else "end of input"


class Lexer(Protocol):
    def next(self) -> Token:
        """Raises LexerFailure where no token begins."""
        ...


def tokenise(text: str) -> list[Token]:
    return tokens_of(_Lexer(text), len(text))


def tokens_of(lexer: Lexer, length: int) -> list[Token]:
    """All tokens of a query; the last one is END or ERROR."""
    tokens: list[Token] = []
    while True:
        try:
            token = lexer.next()
        except LexerFailure as failure:
            tokens.append(Token(Kind.ERROR, failure.reason, failure.start, length))
            return tokens
        tokens.append(token)
        if token.kind is Kind.END:
            return tokens
