"""What stands in a promqltest file? Text in, commands out."""

from __future__ import annotations

import re

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.histograms.arithmetic import add, subtract
from harch.sentinel.promql.histograms.notation import WrittenHistogram, read_histogram
from harch.sentinel.promql.syntax.literals import duration_ms, unquote
from harch.sentinel.promql.syntax.parser import parse_labels
from harch.testing.promqltest.commands import (
    Clear,
    Command,
    Eval,
    EvaluationGrid,
    Expectation,
    ExpectedSeries,
    ExpectedValue,
    ExpectSubject,
    Load,
    ScriptError,
    Sequence,
    SeriesSamples,
)

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
    values: list[ExpectedValue | None] = []
    for word in _words(text):
        if gap := _GAP.fullmatch(word):
            values.extend([None] * _times(gap["times"], 1))
        elif word.startswith("{{"):
            values.extend(_read_histograms(word))
        elif floats := _FLOATS.fullmatch(word):
            values.extend(_read_floats(floats))
        else:
            raise ValueError(f"{word!r} is not a value")
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


def _read_floats(found: re.Match[str]) -> list[ExpectedValue | None]:
    first = STALE if found["first"] == "stale" else float(found["first"])
    if found["times"] is None:
        if found["step"] is not None:
            raise ValueError(f"{found[0]!r} lacks its repetition")
        return [ExpectedValue(first)]
    step = float(found["step"] or 0.0)
    values: list[ExpectedValue | None] = []
    current = first
    for _ in range(_times(found["times"], 0) + 1):
        values.append(ExpectedValue(current))
        current = current if found["step"] is None else current + step
    return values


def _read_histograms(word: str) -> list[ExpectedValue | None]:
    found = _HISTOGRAMS.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is not a histogram")
    try:
        first = read_histogram(found["first"])
        step = None if found["step"] is None else read_histogram(found["step"])
    except HarchError as broken:
        raise ValueError(broken.message) from broken
    if found["times"] is None:
        return [ExpectedValue(first.histogram, first.names_hint)]
    return _repeated(first, step, found["sign"], _times(found["times"], 0))


def _repeated(
    first: WrittenHistogram, step: WrittenHistogram | None, sign: str, times: int
) -> list[ExpectedValue | None]:
    names_hint = first.names_hint if step is None else step.names_hint
    values: list[ExpectedValue | None] = [ExpectedValue(first.histogram, names_hint)]
    current = first.histogram
    for _ in range(times):
        if step is not None:
            combine = add if sign == "+" else subtract
            current = combine(current, step.histogram).histogram
        values.append(ExpectedValue(current, names_hint))
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
            raise ValueError(f"{word!r} is not a start time")
        current, step = _signed_ms(found["first"]), _signed_ms(found["step"] or "0")
        for _ in range(_times(found["times"], 0) + 1):
            offsets.append(current)
            current += step
    return tuple(offsets)


def _signed_ms(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    return sign * (0 if digits == "0" else duration_ms(digits) or 0)


_LOAD = re.compile(r"load(?P<nhcb>_with_nhcb)?\s+(?P<step>\S+)")
_INSTANT = re.compile(r"eval(?:_(?P<kind>fail|warn|info|ordered))?\s+instant\s+(?:at\s+(?P<time>\S+))?\s*(?P<query>.*)")
_RANGE = re.compile(
    r"eval(?:_(?P<kind>fail|warn|info))?\s+range\s+from\s+(?P<start>\S+)\s+to\s+(?P<end>\S+)\s+step\s+(?P<step>\S+)\s+(?P<query>.*)"
)
_EXPECT = re.compile(
    r"expect\s+(?P<subject>ordered|fail|warn|no_warn|info|no_info)(?:\s+(?P<how>msg|regex)\s*:\s*(?P<what>.*?))?\s*"
)
_EXPECT_STRING = re.compile(r"expect\s+string\s+(?P<text>.*)")
_EXPECT_RANGE = re.compile(
    r"expect\s+range\s+vector\s+from\s+(?P<start>\S+)\s+to\s+(?P<end>\S+)\s+step\s+(?P<step>\S+)"
)
_OLD_MESSAGE = re.compile(r"expected_fail_(?P<how>message|regexp)\s+(?P<what>.*)")
_SERIES = re.compile(
    r"(?P<series>[a-zA-Z_:][a-zA-Z0-9_:]*(?:\s*\{(?!\{)(?:[^\"'`}]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)*\})?"
    r"|\{(?!\{)(?:[^\"'`}]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`)*\})(?P<start>@st)?(?:\s+(?P<values>.*))?"
)


def read_script(text: str) -> list[Command]:
    """The commands of a file, in order. Raises ScriptError at the first line that is none."""
    lines = [line.strip() for line in text.splitlines()]
    commands: list[Command] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if not line or line.startswith("#"):
            number += 1
            continue
        block = _block(lines, number + 1)
        if line == "clear":
            commands.append(Clear(number + 1))
            number += 1
            continue
        if line.startswith("load"):
            commands.append(_read_load(number + 1, line, block))
        elif line.startswith("eval"):
            commands.append(_read_eval(number + 1, line, block))
        else:
            raise ScriptError(number + 1, f"unknown command {line.split()[0]!r}")
        number = block[-1][0] if block else number + 1
    return commands


def _block(lines: list[str], first: int) -> list[tuple[int, str]]:
    """The lines below a command up to an empty one, with their numbers from 1; comments are left out."""
    block = []
    for place in range(first, len(lines)):
        if not lines[place]:
            break
        if not lines[place].startswith("#"):
            block.append((place + 1, lines[place]))
    return block


def _read_load(number: int, line: str, block: list[tuple[int, str]]) -> Load:
    command = _LOAD.fullmatch(line)
    if command is None:
        raise ScriptError(number, "expected `load STEP`")
    values = {}
    starts: dict[Labels, tuple[int | None, ...]] = {}
    for place, text in block:
        series, is_start, rest = _read_series(place, text)
        try:
            if is_start:
                starts[series] = read_start_offsets(rest)
            else:
                values[series] = read_values(rest)
        except ValueError as wrong:
            raise ScriptError(place, str(wrong)) from wrong
    loaded = tuple(SeriesSamples(series, sequence, starts.get(series, ())) for series, sequence in values.items())
    return Load(number, _duration(number, command["step"]), loaded, command["nhcb"] is not None)


def _read_series(number: int, line: str) -> tuple[Labels, bool, str]:
    found = _SERIES.fullmatch(line)
    if found is None:
        raise ScriptError(number, f"expected a series and its values: {line[:60]!r}")
    try:
        return parse_labels(found["series"]), found["start"] is not None, found["values"] or ""
    except HarchError as broken:
        raise ScriptError(number, broken.message) from broken


def _duration(number: int, text: str) -> int:
    """A time or step: a duration, or seconds; times may be negative."""
    sign, unsigned = (-1, text[1:]) if text.startswith("-") else (1, text)
    ms = duration_ms(unsigned)
    if ms is None:
        try:
            ms = round(float(unsigned) * 1000)
        except ValueError as wrong:
            raise ScriptError(number, f"{text!r} is not a duration") from wrong
    return sign * ms


def _read_eval(number: int, line: str, block: list[tuple[int, str]]) -> Eval:
    if instant := _INSTANT.fullmatch(line):
        time_ms = _duration(number, instant["time"] or "0")
        command = Eval(number, instant["query"].strip(), EvaluationGrid(time_ms, time_ms))
        kind = instant["kind"]
    elif found := _RANGE.fullmatch(line):
        start, end, step = (_duration(number, found[name]) for name in ("start", "end", "step"))
        command = Eval(number, found["query"].strip(), EvaluationGrid(start, end, step))
        kind = found["kind"]
    else:
        raise ScriptError(number, "expected `eval instant at TIME QUERY` or `eval range from … to … step … QUERY`")
    return _with_expectations(command, kind, block)


def _with_expectations(command: Eval, kind: str | None, block: list[tuple[int, str]]) -> Eval:
    expectations = [Expectation(ExpectSubject(kind))] if kind in ("fail", "warn", "info") else []
    is_ordered, scalar, text, range_vector = kind == "ordered", None, None, None
    series = []
    for number, line in block:
        if found := _EXPECT.fullmatch(line):
            if found["subject"] == "ordered":
                is_ordered = True
            else:
                expectations.append(_expectation(ExpectSubject(found["subject"]), found["how"], found["what"]))
        elif found := _EXPECT_STRING.fullmatch(line):
            text = unquote(found["text"].strip())
        elif found := _EXPECT_RANGE.fullmatch(line):
            range_vector = EvaluationGrid(*(_duration(number, found[name]) for name in ("start", "end", "step")))
        elif found := _OLD_MESSAGE.fullmatch(line):
            how = "msg" if found["how"] == "message" else "regex"
            expectations = [_expectation(ExpectSubject.FAIL, how, found["what"].strip())]
        elif (value := _number(line)) is not None:
            scalar = value
        else:
            series.append(_read_expected(number, line))
    return Eval(
        command.line,
        command.query,
        command.grid,
        tuple(expectations),
        is_ordered,
        scalar,
        text,
        range_vector,
        tuple(series),
    )


def _expectation(subject: ExpectSubject, how: str | None, what: str | None) -> Expectation:
    return Expectation(subject, what if how == "msg" else None, what if how == "regex" else None)


def _number(line: str) -> float | None:
    try:
        return float(line)
    except ValueError:
        return None


def _read_expected(number: int, line: str) -> ExpectedSeries:
    labels, _, rest = _read_series(number, line)
    try:
        return ExpectedSeries(labels, read_values(rest))
    except ValueError as wrong:
        raise ScriptError(number, str(wrong)) from wrong
