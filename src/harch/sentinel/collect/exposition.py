"""What does a page of metrics say? The Prometheus text format and OpenMetrics, line by line and as a whole."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Labels, MetricMetadata, MetricType, labels
from harch.sentinel.model.selection import Exemplar, SeriesBatch

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
        raise TextError(f"`{word}` is not a number")
    try:
        return float(text)
    except ValueError:
        if text.lower().lstrip("+-").startswith("0x"):
            try:
                return float.fromhex(text)
            except (ValueError, OverflowError):
                pass
        raise TextError(f"`{word}` is not a number") from None


def unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found.group(1), found.group()), text)


def _exemplar(line: str, at: int) -> tuple[tuple[tuple[str, str], ...], float, str]:
    if line[at] != "#":
        raise TextError(f"unexpected `{line[at : at + 20]}` after the value")
    at = _skip(line, at + 1)
    if line[at : at + 1] != "{":
        raise TextError("an exemplar must start with its labels")
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
                raise TextError(f"the value of label `{name}` is not quoted, or the quote is not closed")
            pairs.append((name, unescaped(value.group(1))))
            at = _skip(line, value.end())
        elif quoted_name and not pairs:
            pairs.append((METRIC_NAME, name))
        else:
            raise TextError(f"label `{name}` has no value")
        if line[at : at + 1] == ",":
            at = _skip(line, at + 1)
        elif line[at : at + 1] != "}":
            raise TextError("the labels are not closed")
    if quoted_name and (not pairs or pairs[0][0] != METRIC_NAME):
        raise TextError("no metric name")
    return tuple(pairs), at + 1


def _label_name(line: str, at: int) -> tuple[str, int]:
    quoted = _QUOTED.match(line, at)
    if quoted is not None:
        return unescaped(quoted.group(1)), quoted.end()
    plain = _LABEL_NAME.match(line, at)
    if plain is None:
        raise TextError(f"`{line[at : at + 20]}` is not a label name")
    return plain.group(), plain.end()


def _word(line: str, at: int) -> tuple[str, int]:
    found = _WORD.match(line, _skip(line, at))
    if found is None:
        raise TextError("the line ends where a number was expected")
    return found.group(), found.end()


def _skip(line: str, at: int) -> int:
    found = _SPACE.match(line, at)
    return found.end() if found is not None else at


# What does a whole page of metrics say? Samples of all lines, and the metadata of the metrics.


OPENMETRICS = "application/openmetrics-text"
_CREATED = "_created"
_COUNTED = ("_total", "_count", "_sum", "_bucket", "")


K = TypeVar("K", bound=Hashable)


class PageCache(Generic[K]):
    """The labels that followed from a part of the last page of a target; a page mostly repeats the one before it.

    As large as that page: what a page does not repeat is forgotten with the next one.
    """

    def __init__(self) -> None:
        self._before: dict[K, Labels] = {}
        self._now: dict[K, Labels] = {}

    def begin(self) -> None:
        """Another page."""
        self._before, self._now = self._now, {}

    def get(self, part: K) -> Labels | None:
        found = self._before.get(part)
        if found is None:
            return self._now.get(part)
        self._now[part] = found
        return found

    def put(self, part: K, found: Labels) -> None:
        self._now[part] = found


@dataclass(frozen=True, slots=True)
class ExpositionPage:
    samples: tuple[SeriesBatch, ...]
    metadata: dict[str, MetricMetadata]


@dataclass(slots=True)
class _Reading:
    """What was read so far."""

    at_ms: int
    honor_timestamps: bool
    limit: int
    batches: list[SeriesBatch] = field(default_factory=list)
    types: dict[str, MetricType] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    created: dict[tuple[str, Labels], int] = field(default_factory=dict)  # metric and labels -> since when it counts


def read_page(
    text: str,
    at_ms: int,
    *,
    openmetrics: bool = False,
    honor_timestamps: bool = True,
    limit: int = 1_000_000,
    known: PageCache[str] | None = None,
) -> ExpositionPage:
    """Every sample of the page, at its own time or `at_ms`. Raises E0670 with the line that cannot be read.

    `known` remembers the series of the target's last page by their text, which takes most of the time to read.
    """
    reading = _Reading(at_ms, honor_timestamps, limit)
    known = known if known is not None else PageCache()
    known.begin()
    ended = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if not stripped:
            continue
        try:
            if ended:
                raise TextError("data after `# EOF`")
            if stripped[0] == "#":
                ended = _comment(stripped, reading) and openmetrics
                continue
            series, value = _plain_line(stripped)
            named = known.get(series)
            if named is not None and value:
                _append(SeriesBatch(named, (at_ms,), (read_number(value),)), reading)
                continue
            before = len(reading.batches)
            _sample(read_sample(stripped), reading, openmetrics)
            if value and len(reading.batches) > before:
                known.put(series, reading.batches[-1].labels)
        except TextError as problem:
            raise HarchError("E0670", f"line {number} of the page: {problem}") from problem
    if openmetrics and not ended:
        raise HarchError("E0670", "the page does not end with `# EOF`: it may be truncated")
    names = {*reading.types, *reading.units, *reading.helps}
    metadata = {
        name: MetricMetadata(
            reading.types.get(name, MetricType.UNKNOWN), reading.units.get(name, ""), reading.helps.get(name, "")
        )
        for name in names
    }
    return ExpositionPage(tuple(_with_starts(reading)), metadata)


def _plain_line(line: str) -> tuple[str, str]:
    """A line without time and exemplar, as series and value; two empty texts for any other one.

    Lines that say when a counter began are samples or not depending on the rest of the page, so they are no plain ones.
    """
    if "#" in line:
        return "", ""
    end = line.rfind("}") + 1 or len(line.split(None, 1)[0])
    series, rest = line[:end], line[end:].split()
    if len(rest) != 1 or _CREATED in series:
        return "", ""
    return series, rest[0]


def _comment(line: str, reading: _Reading) -> bool:
    """Takes in TYPE, HELP and UNIT; other comments say nothing to us. True for the mark of the end."""
    words = line[1:].strip().split(None, 2)
    if words == ["EOF"]:
        return True
    if len(words) < 2 or words[0] not in {"TYPE", "HELP", "UNIT"}:
        return False
    keyword, name = words[0], words[1]
    if name.startswith('"'):
        quoted, _, rest = line[1:].strip()[len(keyword) :].strip()[1:].partition('"')
        name, words = unescaped(quoted), [keyword, quoted, rest.strip()]
    argument = words[2] if len(words) > 2 else ""
    if keyword == "TYPE":
        kind = "unknown" if argument == "untyped" else argument
        if kind not in set(MetricType):
            raise TextError(f"`{argument}` is not a metric type")
        reading.types[name] = MetricType(kind)
    elif keyword == "UNIT":
        reading.units[name] = argument
    else:
        reading.helps[name] = unescaped(argument)
    return False


def _sample(line: SampleLine, reading: _Reading, openmetrics: bool) -> None:
    at = reading.at_ms
    if line.timestamp and reading.honor_timestamps:
        at = _milliseconds(line.timestamp, openmetrics)
    names = [name for name, _ in line.pairs]
    if len(set(names)) != len(names):
        raise TextError("a label occurs twice")
    base = line.name.removesuffix(_CREATED)
    if openmetrics and base != line.name and reading.types.get(base) is not None:
        reading.created[(base, labels(line.pairs))] = round(line.value * 1000)
        return
    exemplars: tuple[Exemplar, ...] = ()
    if line.exemplar is not None:
        pairs, value, when = line.exemplar
        exemplars = (Exemplar(labels(pairs), value, _milliseconds(when, True) if when else at),)
    named = labels([*line.pairs, (METRIC_NAME, line.name)])
    _append(SeriesBatch(named, (at,), (line.value,), exemplars=exemplars), reading)


def _append(batch: SeriesBatch, reading: _Reading) -> None:
    if len(reading.batches) >= reading.limit:
        raise TextError(f"more than {reading.limit} samples on one page")
    reading.batches.append(batch)


def _milliseconds(word: str, in_seconds: bool) -> int:
    value = read_number(word)
    if value != value or abs(value) > 1e15:
        raise TextError(f"`{word}` is not a time")
    return round(value * 1000) if in_seconds else int(value)


def _with_starts(reading: _Reading) -> list[SeriesBatch]:
    """OpenMetrics tells in a line of its own since when a counter counts; samples carry it from here on."""
    if not reading.created:
        return reading.batches
    collected = []
    for batch in reading.batches:
        pairs = dict(batch.labels)
        name = pairs.pop(METRIC_NAME)
        pairs.pop("le", None)
        pairs.pop("quantile", None)
        rest = labels(pairs)
        start = 0
        for ending in _COUNTED:
            if name.endswith(ending):
                start = reading.created.get((name.removesuffix(ending), rest), 0)
            if start:
                break
        collected.append(
            SeriesBatch(batch.labels, batch.timestamps, batch.values, (start,), batch.exemplars) if start else batch
        )
    return collected
