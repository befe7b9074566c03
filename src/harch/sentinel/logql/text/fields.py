"""Which fields does a line have?

`<ip> - <_> "<method> <uri>"` as a parser or a filter, parts of JSON lines, keys and values of logfmt.
"""

# harch: pure

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
            raise _wrong(text, "two captures need text between them")
    return pieces


@lru_cache(maxsize=256)
def compiled_pattern(text: str) -> LinePattern:
    """Raises E0685 for a pattern that can name nothing."""
    pieces = _pieces(text)
    names = [name for name in pieces[1::2] if name != _ANY]
    if not names:
        raise _wrong(text, "at least one capture needs a name")
    if len(set(names)) != len(names):
        raise _wrong(text, "capture names must be unique")
    return LinePattern(pieces[0], tuple(zip(pieces[1::2], pieces[2::2], strict=True)))


@lru_cache(maxsize=256)
def pattern_expression(text: str) -> str:
    """The RE2 expression of a pattern filter: the whole line, `<_>` for any text but none. Raises E0685."""
    pieces = _pieces(text)
    if not text:
        raise _wrong(text, "it is empty")
    if any(name != _ANY for name in pieces[1::2]):
        raise _wrong(text, "a filter takes only `<_>`, not names")
    return r"\A" + "(?s:.+)".join(map(escaped, pieces[::2])) + r"\z"


def escaped(text: str) -> str:
    """A text as an RE2 expression that matches it alone."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)


def _wrong(text: str, why: str) -> HarchError:
    hint = "write `<name>` for what to keep and `<_>` for what to skip"
    return HarchError("E0685", f"`{text[:80]}` is not a pattern: {why}", hint=hint)


# Which part of a JSON line? `request.headers["user-agent"]`, `servers[0]`.


Path = tuple[str | int, ...]

_FIRST = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]|\[(?P<place>\d{1,9})\]')
_NEXT = re.compile(r'\.(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]|\[(?P<place>\d{1,9})\]')
PARTS_MAX = 50


@lru_cache(maxsize=1024)
def json_path(expression: str) -> Path:
    """Raises E0685 for what is no path."""
    parts: list[str | int] = []
    position = 0
    while position < len(expression):
        found = (_NEXT if parts else _FIRST).match(expression, position)
        if found is None or len(parts) >= PARTS_MAX:
            break
        if found["place"] is not None:
            parts.append(int(found["place"]))
        else:
            quoted = found["quoted"]
            parts.append(found["name"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        position = found.end()
    if not parts or position < len(expression):
        hint = 'write e.g. `request.method`, `servers[0]` or `headers["user-agent"]`'
        raise HarchError("E0685", f"`{expression[:80]}` is not a path to a field", hint=hint)
    return tuple(parts)


# Which keys and values does a logfmt line have? `level=info msg="it works" took=3ms`.


# A key runs to `=` or a space; a value is quoted, or runs to a space. Possessive, so that no line takes long.
_KEY, _QUOTED, _BARE = r'[^\x00-\x20="]++', r'[^"\\]*+(?:\\.[^"\\]*+)*+', r'[^\x00-\x20"]*+'
_PAIR = re.compile(rf'[\x00-\x20]*+({_KEY})(?:=(?:"({_QUOTED})"|({_BARE})))?', re.DOTALL)
_WHOLE_LINE = re.compile(
    rf'(?:[\x00-\x20]*+{_KEY}(?:=(?:"{_QUOTED}"|{_BARE}))?(?=[\x00-\x20]|\Z))*+[\x00-\x20]*+', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PASSED_OVER = re.compile(r"[\x00-\x20]*[^\x00-\x20]+")
_NO_TEXT = "\ufffd"  # in place of half a character


def logfmt_pairs(line: str, *, strict: bool = False) -> tuple[list[tuple[str, str]], str]:
    """Pairs in order, and what is wrong with the line. A mistake ends the line if `strict`, else it is passed over."""
    if _WHOLE_LINE.fullmatch(line) is not None:
        return [(key, bare or _unescaped(quoted)) for key, quoted, bare in _PAIR.findall(line)], ""
    return _with_mistakes(line, strict=strict)


def _with_mistakes(line: str, *, strict: bool) -> tuple[list[tuple[str, str]], str]:
    pairs: list[tuple[str, str]] = []
    position, end, wrong = 0, len(line.rstrip()), ""
    while position < end:
        found = _PAIR.match(line, position)
        follows = line[found.end() : found.end() + 1] if found is not None else ""
        if found is not None and (not follows or follows <= " "):
            pairs.append((found[1], found[3] or _unescaped(found[2] or "")))
            position = found.end()
            continue
        if not wrong:
            wrong = f"logfmt syntax error at pos {position + 1}: unexpected {line[position : position + 20]!r}"
        if strict:
            break
        passed = _PASSED_OVER.match(line, position)
        position = passed.end() if passed is not None else end
    return pairs, wrong if strict else ""


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if not found[1]:
        return _NAMED.get(found[2], found[2])
    code = int(found[1], 16)
    return _NO_TEXT if 0xD800 <= code < 0xE000 else chr(code)
