"""How are sequences of values written? `1 2 3`, `0+10x5`, `_x3`, `stale`, `{{…}}+{{…}}x4`."""

from __future__ import annotations

import re

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE
from harch.sentinel.promql.histograms.arithmetic import add, subtract
from harch.sentinel.promql.histograms.notation import WrittenHistogram, read_histogram
from harch.sentinel.promql.syntax.numbers import duration_ms
from harch.testing.promqltest.commands import Sequence, Value

VALUES_MAX = 1_000_000  # of one series; a mistyped repetition must not fill the memory
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF]|[nN][aA][nN]"
_FLOATS = re.compile(rf"(?P<first>[+-]?(?:{_NUMBER}|stale))(?:(?P<step>[+-](?:{_NUMBER})))?(?:x(?P<times>[0-9]+))?")
_GAP = re.compile(r"_(?:x(?P<times>[0-9]+))?")
_HISTOGRAMS = re.compile(
    r"(?P<first>\{\{.*?\}\})(?:(?P<sign>[+-])(?P<step>\{\{.*?\}\}))?(?:x(?P<times>[0-9]+))?", re.DOTALL
)
_DURATION = r"[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdwy]))*|0"
_STARTS = re.compile(rf"(?P<first>[+-]?(?:{_DURATION}))(?:(?P<step>[+-](?:{_DURATION})))?(?:x(?P<times>[0-9]+))?")


def read_values(text: str) -> Sequence:
    """The values of a series, in order. Raises ValueError with the word that is none."""
    values: list[Value | None] = []
    for word in _words(text):
        if gap := _GAP.fullmatch(word):
            values.extend([None] * _times(gap["times"], 1))
        elif word.startswith("{{"):
            values.extend(_read_histograms(word))
        elif floats := _FLOATS.fullmatch(word):
            values.extend(_read_floats(floats))
        else:
            raise ValueError(f"{word!r} is no value")
        if len(values) > VALUES_MAX:
            raise ValueError(f"a series may have {VALUES_MAX} values")
    return tuple(values)


def _words(text: str) -> list[str]:
    """Split at spaces, except inside of `{{…}}`."""
    return re.findall(r"(?:\{\{.*?\}\}|[^\s{])+|\S+", text.strip())


def _times(written: str | None, default: int) -> int:
    times = default if written is None else int(written)
    if times > VALUES_MAX:
        raise ValueError(f"a series may have {VALUES_MAX} values")
    return times


def _read_floats(found: re.Match[str]) -> list[Value | None]:
    first = STALE if found["first"] == "stale" else float(found["first"])
    if found["times"] is None:
        if found["step"] is not None:
            raise ValueError(f"{found[0]!r} lacks its repetition")
        return [Value(first)]
    step = float(found["step"] or 0.0)
    values: list[Value | None] = []
    current = first
    for _ in range(_times(found["times"], 0) + 1):
        values.append(Value(current))
        current = current if found["step"] is None else current + step
    return values


def _read_histograms(word: str) -> list[Value | None]:
    found = _HISTOGRAMS.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is no histogram")
    try:
        first = read_histogram(found["first"])
        step = None if found["step"] is None else read_histogram(found["step"])
    except HarchError as broken:
        raise ValueError(broken.message) from broken
    if found["times"] is None:
        return [Value(first.histogram, first.names_hint)]
    return _repeated(first, step, found["sign"], _times(found["times"], 0))


def _repeated(first: WrittenHistogram, step: WrittenHistogram | None, sign: str, times: int) -> list[Value | None]:
    names_hint = first.names_hint if step is None else step.names_hint
    values: list[Value | None] = [Value(first.histogram, names_hint)]
    current = first.histogram
    for _ in range(times):
        if step is not None:
            combine = add if sign == "+" else subtract
            current = combine(current, step.histogram).histogram
        values.append(Value(current, names_hint))
    return values


def read_start_offsets(text: str) -> tuple[int | None, ...]:
    """Start times relative to their samples: `_ -30s-1mx2` is none, then 30 s, 90 s and 150 s before."""
    offsets: list[int | None] = []
    for word in text.split():
        if gap := _GAP.fullmatch(word):
            offsets.extend([None] * _times(gap["times"], 1))
            continue
        found = _STARTS.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} is no start time")
        current, step = _signed_ms(found["first"]), _signed_ms(found["step"] or "0")
        for _ in range(_times(found["times"], 0) + 1):
            offsets.append(current)
            current += step
    return tuple(offsets)


def _signed_ms(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    return sign * (0 if digits == "0" else duration_ms(digits) or 0)
