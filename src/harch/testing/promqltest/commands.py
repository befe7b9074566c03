"""What does a test file contain, and what did the target answer?

Commands to load, clear and evaluate; answers in one form for an engine in this process and for JSON from a server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import Labels


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """One value of a sequence. `names_hint`: the histogram's reset hint was written, so it is compared."""

    content: float | NativeHistogram
    names_hint: bool = False


Sequence = tuple[ExpectedValue | None, ...]  # None: no sample there


@dataclass(frozen=True, slots=True)
class SeriesSamples:
    """A series to load: a value a step from 0 on, and since when it counts, relative to each sample."""

    labels: Labels
    values: Sequence
    start_offsets_ms: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    line: int
    step_ms: int
    series: tuple[SeriesSamples, ...]
    with_nhcb: bool = False  # classic histograms are loaded a second time, with custom buckets


@dataclass(frozen=True, slots=True)
class Clear:
    line: int


class ExpectSubject(Enum):
    """What an `expect` line speaks of."""

    FAIL = "fail"
    WARN = "warn"
    NO_WARN = "no_warn"
    INFO = "info"
    NO_INFO = "no_info"


@dataclass(frozen=True, slots=True)
class Expectation:
    """`expect warn msg: …`: an exact text, a pattern (`regex`), or neither: anything of that kind."""

    subject: ExpectSubject
    text: str | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedSeries:
    labels: Labels
    values: Sequence


@dataclass(frozen=True, slots=True)
class EvaluationGrid:
    """Points in time; an instant has one, and no step."""

    start_ms: int
    end_ms: int
    step_ms: int = 0

    @property
    def is_instant(self) -> bool:
        return self.step_ms == 0

    def times(self) -> range:
        return range(self.start_ms, self.end_ms + 1, self.step_ms or 1)


@dataclass(frozen=True, slots=True)
class Eval:
    line: int
    query: str
    grid: EvaluationGrid
    expectations: tuple[Expectation, ...] = ()
    is_ordered: bool = False
    scalar: float | None = None
    text: str | None = None
    range_vector: EvaluationGrid | None = None  # the samples of a range vector, expected from an instant query
    series: tuple[ExpectedSeries, ...] = field(default=())

    def expected(self, subject: ExpectSubject) -> list[Expectation]:
        return [expectation for expectation in self.expectations if expectation.subject is subject]

    @property
    def has_histograms(self) -> bool:
        """Whether native histograms are expected; whether some are read is known to the runner only."""
        return any(
            isinstance(value.content, NativeHistogram)
            for series in self.series
            for value in series.values
            if value is not None
        )


Command = Load | Clear | Eval


class ScriptError(Exception):
    """The file is not a promqltest file; the sentence begins with the line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


# What did the target answer? The same form for an engine in this process and for JSON from a server.


@dataclass(frozen=True, slots=True)
class DisplayedHistogram:
    """A histogram as JSON shows it: no schema, no hint; buckets are (bounds' kind, lower, upper, count)."""

    count: float
    sum: float
    buckets: tuple[tuple[int, float, float, float], ...] = ()


Point = float | NativeHistogram | DisplayedHistogram


@dataclass(frozen=True, slots=True)
class ResultSeries:
    labels: Labels
    points: tuple[tuple[int, Point], ...]  # milliseconds, value


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """`kind` is vector, matrix, scalar or string. A scalar or a string stands in `value`."""

    kind: str
    series: tuple[ResultSeries, ...] = ()
    value: float | str = math.nan
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


class QueryFailed(Exception):
    """The target refused the query; the text is its message."""


class QueryTarget(Protocol):
    """Something that keeps samples and answers queries."""

    def clear(self) -> None:
        """Forget everything, or go on as another tenant."""
        ...

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None: ...

    def query(self, text: str, grid: EvaluationGrid) -> EvaluationResult:
        """Raises QueryFailed."""
        ...

    def close(self) -> None: ...
