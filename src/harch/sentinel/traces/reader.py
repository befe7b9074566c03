"""Where does one part of a query for traces end and the next begin? A place in the text that moves forward."""

from __future__ import annotations

import math
import re
from contextlib import suppress

from harch.sentinel.model.spans import AttributeValue, Comparison
from harch.sentinel.promql.syntax.quoting import BadEscape, unquote
from harch.sentinel.traces.durations import DURATION, parse_duration_ns
from harch.sentinel.traces.failures import SYNTAX, TraceQueryError
from harch.sentinel.traces.fields import SCOPES, Literal

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\s{}()=~!<>&|^,\"'`]+")
_COMPARISON = re.compile(r"=~|!~|!=|>=|<=|=|>|<")
_STRING = {
    '"': re.compile(r'"(?:[^"\\\n]|\\[^\n])*"'),
    "'": re.compile(r"'(?:[^'\\\n]|\\[^\n])*'"),
    "`": re.compile(r"`[^`]*`"),
}
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_VALUE = re.compile(r"[^\s{}()=~!<>&|^,\"'`]+")
_WORD_VALUE = re.compile(r"\S+")
_INT_MAX = 2**63 - 1
_KEYWORDS: dict[str, AttributeValue | None] = {"true": True, "false": False, "nil": None}


class Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def mark(self) -> int:
        """The place where the next part begins, for messages."""
        self.space()
        return self._at

    def rest(self, characters: int) -> str:
        return self._text[self._at : self._at + characters]

    def space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def take(self, sign: str) -> bool:
        self.space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def expect(self, sign: str, expected: str = "") -> None:
        if not self.take(sign):
            raise self.failure(f"expected {expected or f'`{sign}`'}, found {self._found()}")

    def name(self) -> tuple[str, bool]:
        """The name of a field or attribute, and whether a part of it stood in quotes."""
        self.space()
        found = _NAME.match(self._text, self._at)
        start, name = self._at, found[0] if found is not None else ""
        after = self._at + len(name)
        if name in SCOPES and self._text[after : after + 1] in _STRING:
            self._at = after
            attribute = self._string()
            if not attribute:
                raise self.failure("an attribute has a name", at=start)
            return name + attribute, True
        if not name:
            raise self.failure(f"expected a field, found {self._found()}", hint="e.g. `name`, `status` or `.gpus`")
        self._at = after
        return name, False

    def comparison(self) -> Comparison:
        self.space()
        found = _COMPARISON.match(self._text, self._at)
        if found is None:
            known = ", ".join(f"`{one.value}`" for one in Comparison)
            raise self.failure(f"expected a comparison, found {self._found()}", hint=f"one of {known}")
        self._at = found.end()
        return Comparison(found[0])

    def value(self) -> Literal:
        """A value inside of braces: texts are in quotes, words are those that TraceQL knows."""
        self.space()
        if self.rest(1) in _STRING:
            return Literal(self._string())
        found = _VALUE.match(self._text, self._at)
        if found is None:
            raise self.failure(f"expected a value, found {self._found()}")
        start, text = self._at, found[0]
        if text in _KEYWORDS:
            literal = Literal(_KEYWORDS[text])
        elif _NUMBER.fullmatch(text):
            literal = Literal(self._number(text, start))
        elif DURATION.fullmatch(text):
            literal = self._duration(text, start)
        elif text.isalpha():
            literal = Literal(text)  # a status or a kind; where they are not meant, texts need quotes
        else:
            raise self.failure(f"`{text[:40]}` is no value", hint="texts stand in quotes", at=start)
        self._at = found.end()
        return literal

    def word_value(self) -> Literal:
        """A value of plain words: up to the next space, or in quotes. Numbers are those that look like one."""
        if self.rest(1) in _STRING:
            return Literal(self._string())
        found = _WORD_VALUE.match(self._text, self._at)
        if found is None:
            return Literal("")
        self._at = found.end()
        text = found[0]
        if DURATION.fullmatch(text) and (duration_ns := parse_duration_ns(text)) is not None:
            return Literal(duration_ns, is_duration=True, text=text)
        return Literal(_plain_number(text), text=text)

    def failure(self, reason: str, *, at: int | None = None, code: str = SYNTAX, hint: str = "") -> TraceQueryError:
        return TraceQueryError(self._text, self._at if at is None else at, reason, code=code, hint=hint)

    def _string(self) -> str:
        found = _STRING[self.rest(1)].match(self._text, self._at)
        if found is None:
            raise self.failure("the quotes are not closed")
        try:
            text = unquote(found[0])
            text.encode()
        except BadEscape as bad:
            raise self.failure(str(bad)) from bad
        except UnicodeEncodeError:
            raise self.failure("the bytes of this text are no UTF-8") from None
        self._at = found.end()
        return text

    def _number(self, text: str, start: int) -> int | float:
        number: int | float = float(text)
        with suppress(ValueError):
            number = int(text) if len(text) <= 20 else number
        if not math.isfinite(number) or (isinstance(number, int) and abs(number) > _INT_MAX):
            raise self.failure(f"`{text[:40]}` is too large", at=start)
        return number

    def _duration(self, text: str, start: int) -> Literal:
        duration_ns = parse_duration_ns(text)
        if duration_ns is None:
            raise self.failure(f"`{text[:40]}` is longer than 292 years", at=start)
        return Literal(duration_ns, is_duration=True)

    def _found(self) -> str:
        return "the end" if self.at_end else f"`{self.rest(10)}`"


def _plain_number(text: str) -> int | float | str:
    """The number that the text is exactly; `08` and `1e3` stay texts, because ids look like this, too."""
    if _NUMBER.fullmatch(text) is None:
        return text
    number: int | float = int(text) if text.lstrip("-").isdigit() and len(text) < 19 else float(text)
    return number if math.isfinite(number) and str(number) == text else text
