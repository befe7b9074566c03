"""What does a whole page of metrics say? Samples of all lines, and what is told about the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.sentinel.collect.text.lines import SampleLine, TextError, read_number, read_sample, unescaped
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.model.metadata import Metadata, MetricType
from harch.sentinel.model.selection import Exemplar, SeriesBatch

OPENMETRICS = "application/openmetrics-text"
_CREATED = "_created"
_COUNTED = ("_total", "_count", "_sum", "_bucket", "")


@dataclass(frozen=True, slots=True)
class Page:
    samples: tuple[SeriesBatch, ...]
    metadata: dict[str, Metadata]


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
    text: str, at_ms: int, *, openmetrics: bool = False, honor_timestamps: bool = True, limit: int = 1_000_000
) -> Page:
    """Every sample of the page, at its own time or `at_ms`. Raises E0670 with the line that cannot be read."""
    reading = _Reading(at_ms, honor_timestamps, limit)
    ended = False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if not stripped:
            continue
        try:
            if ended:
                raise TextError("something follows `# EOF`")
            if stripped[0] == "#":
                ended = _comment(stripped, reading) and openmetrics
            else:
                _sample(read_sample(stripped), reading, openmetrics)
        except TextError as problem:
            raise HarchError("E0670", f"line {number} of the page: {problem}") from problem
    if openmetrics and not ended:
        raise HarchError("E0670", "the page does not end with `# EOF`: it may be cut short")
    names = {*reading.types, *reading.units, *reading.helps}
    known = {
        name: Metadata(
            reading.types.get(name, MetricType.UNKNOWN), reading.units.get(name, ""), reading.helps.get(name, "")
        )
        for name in names
    }
    return Page(tuple(_with_starts(reading)), known)


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
    said = words[2] if len(words) > 2 else ""
    if keyword == "TYPE":
        kind = "unknown" if said == "untyped" else said
        if kind not in set(MetricType):
            raise TextError(f"`{said}` is no type of metric")
        reading.types[name] = MetricType(kind)
    elif keyword == "UNIT":
        reading.units[name] = said
    else:
        reading.helps[name] = unescaped(said)
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
    if len(reading.batches) >= reading.limit:
        raise TextError(f"more than {reading.limit} samples on one page")
    exemplars: tuple[Exemplar, ...] = ()
    if line.exemplar is not None:
        pairs, value, when = line.exemplar
        exemplars = (Exemplar(labels(pairs), value, _milliseconds(when, True) if when else at),)
    named = labels([*line.pairs, (METRIC_NAME, line.name)])
    reading.batches.append(SeriesBatch(named, (at,), (line.value,), exemplars=exemplars))


def _milliseconds(word: str, in_seconds: bool) -> int:
    value = read_number(word)
    if value != value or abs(value) > 1e15:
        raise TextError(f"`{word}` is no time")
    return round(value * 1000) if in_seconds else int(value)


def _with_starts(reading: _Reading) -> list[SeriesBatch]:
    """OpenMetrics tells in a line of its own since when a counter counts; samples carry it from here on."""
    if not reading.created:
        return reading.batches
    told = []
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
        told.append(
            SeriesBatch(batch.labels, batch.timestamps, batch.values, (start,), batch.exemplars) if start else batch
        )
    return told
