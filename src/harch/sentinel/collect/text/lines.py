"""How is one line of a page of metrics read? Name, labels, value, and what may follow."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harch.sentinel.model.labels import METRIC_NAME

_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*")
_SPACE = re.compile(r"[ \t]*")
_WORD = re.compile(r"[^ \t#]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_NUMBERS = {"+inf": "inf", "inf": "inf", "-inf": "-inf", "nan": "nan", "+infinity": "inf", "-infinity": "-inf"}


class TextError(ValueError):
    """Says what is wrong with a line; the reader of the page adds where."""


@dataclass(frozen=True, slots=True)
class SampleLine:
    """`name{labels} value timestamp # {exemplar labels} exemplar value exemplar timestamp`."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    value: float
    timestamp: str  # as written: milliseconds in the Prometheus format, seconds in OpenMetrics; "" if there is none
    exemplar: tuple[tuple[tuple[str, str], ...], float, str] | None


def read_sample(line: str) -> SampleLine:
    """Raises TextError. Takes both `name{a="b"} 1` and `{"quoted.name", a="b"} 1`."""
    name, at = "", 0
    plain = _PLAIN_NAME.match(line)
    if plain is not None:
        name, at = plain.group(), plain.end()
    at = _skip(line, at)
    pairs: tuple[tuple[str, str], ...] = ()
    if line[at : at + 1] == "{":
        pairs, at = _braces(line, at, quoted_name=not name)
        if not name:
            (_, name), *rest = pairs or (("", ""),)
            pairs = tuple(rest)
    if not name:
        raise TextError("no metric name")
    word, at = _word(line, at)
    value = read_number(word)
    timestamp, exemplar = "", None
    at = _skip(line, at)
    if at < len(line) and line[at] != "#":
        timestamp, at = _word(line, at)
        at = _skip(line, at)
    if at < len(line):
        exemplar = _exemplar(line, at)
    return SampleLine(name, pairs, value, timestamp, exemplar)


def read_number(word: str) -> float:
    text = _NUMBERS.get(word.lower(), word)
    if "_" in text:
        raise TextError(f"`{word}` is no number")
    try:
        return float(text)
    except ValueError:
        if text.lower().lstrip("+-").startswith("0x"):
            try:
                return float.fromhex(text)
            except (ValueError, OverflowError):
                pass
        raise TextError(f"`{word}` is no number") from None


def unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found.group(1), found.group()), text)


def _exemplar(line: str, at: int) -> tuple[tuple[tuple[str, str], ...], float, str]:
    if line[at] != "#":
        raise TextError(f"unexpected `{line[at : at + 20]}` after the value")
    at = _skip(line, at + 1)
    if line[at : at + 1] != "{":
        raise TextError("an exemplar begins with its labels")
    pairs, at = _braces(line, at, quoted_name=False)
    word, at = _word(line, at)
    timestamp = ""
    at = _skip(line, at)
    if at < len(line):
        timestamp, at = _word(line, at)
    return pairs, read_number(word), timestamp


def _braces(line: str, at: int, *, quoted_name: bool) -> tuple[tuple[tuple[str, str], ...], int]:
    """The pairs between braces, and the place behind them. A quoted name without value is the metric's."""
    pairs: list[tuple[str, str]] = []
    at = _skip(line, at + 1)
    while line[at : at + 1] != "}":
        name, at = _label_name(line, at)
        at = _skip(line, at)
        if line[at : at + 1] == "=":
            value = _QUOTED.match(line, _skip(line, at + 1))
            if value is None:
                raise TextError(f"the value of label `{name}` is not in quotes, or they do not end")
            pairs.append((name, unescaped(value.group(1))))
            at = _skip(line, value.end())
        elif quoted_name and not pairs:
            pairs.append((METRIC_NAME, name))
        else:
            raise TextError(f"label `{name}` has no value")
        if line[at : at + 1] == ",":
            at = _skip(line, at + 1)
        elif line[at : at + 1] != "}":
            raise TextError("the labels do not end")
    if quoted_name and (not pairs or pairs[0][0] != METRIC_NAME):
        raise TextError("no metric name")
    return tuple(pairs), at + 1


def _label_name(line: str, at: int) -> tuple[str, int]:
    quoted = _QUOTED.match(line, at)
    if quoted is not None:
        return unescaped(quoted.group(1)), quoted.end()
    plain = _LABEL_NAME.match(line, at)
    if plain is None:
        raise TextError(f"`{line[at : at + 20]}` is no label name")
    return plain.group(), plain.end()


def _word(line: str, at: int) -> tuple[str, int]:
    found = _WORD.match(line, _skip(line, at))
    if found is None:
        raise TextError("the line ends where a number was expected")
    return found.group(), found.end()


def _skip(line: str, at: int) -> int:
    found = _SPACE.match(line, at)
    return found.end() if found is not None else at
