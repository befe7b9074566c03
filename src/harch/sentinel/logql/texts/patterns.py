"""What stands between known texts? `<ip> - <_> "<method> <uri>"` as a parser, `<_>level=error<_>` as a filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from harch.base.errors import HarchError

_CAPTURE = re.compile(r"<([a-zA-Z_][a-zA-Z0-9_]*)>")
_ANY = "_"
_SPECIAL = frozenset(r"\.+*?()|[]{}^$")


@dataclass(frozen=True, slots=True)
class LinePattern:
    """Captures and literal texts in turn: `first`, then (name, text that ends it); an empty text: the line's end."""

    first: str
    captures: Sequence[tuple[str, str]]

    def captured(self, line: str) -> list[tuple[str, str]]:
        """Names with what stands there. A text that is missing ends the search: its capture takes the rest."""
        if not line or not line.startswith(self.first):
            return []
        found: list[tuple[str, str]] = []
        position = len(self.first)
        for name, ending in self.captures:
            end = line.find(ending, position) if ending else -1
            if name != _ANY:
                found.append((name, line[position:] if end < 0 else line[position:end]))
            if end < 0:
                break
            position = end + len(ending)
        return found


def _pieces(text: str) -> list[str]:
    """Literals at even places, names of captures at odd ones."""
    pieces = _CAPTURE.split(text)
    for literal in pieces[2:-1:2]:
        if not literal:
            raise _wrong(text, "two captures need a text between them")
    return pieces


@lru_cache(maxsize=256)
def compiled_pattern(text: str) -> LinePattern:
    """Raises E0685 for a pattern that can name nothing."""
    pieces = _pieces(text)
    names = [name for name in pieces[1::2] if name != _ANY]
    if not names:
        raise _wrong(text, "at least one capture needs a name")
    if len(set(names)) != len(names):
        raise _wrong(text, "a name stands for one capture only")
    return LinePattern(pieces[0], tuple(zip(pieces[1::2], pieces[2::2], strict=True)))


@lru_cache(maxsize=256)
def pattern_expression(text: str) -> str:
    """The RE2 expression of a pattern filter: the whole line, `<_>` for any text but none. Raises E0685."""
    pieces = _pieces(text)
    if not text:
        raise _wrong(text, "it is empty")
    if any(name != _ANY for name in pieces[1::2]):
        raise _wrong(text, "a filter takes `<_>` only, no names")
    return r"\A" + "(?s:.+)".join(map(escaped, pieces[::2])) + r"\z"


def escaped(text: str) -> str:
    """A text as an RE2 expression that matches it alone."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)


def _wrong(text: str, why: str) -> HarchError:
    hint = "write `<name>` for what is to be kept and `<_>` for what is not"
    return HarchError("E0685", f"`{text[:80]}` is no pattern: {why}", hint=hint)
