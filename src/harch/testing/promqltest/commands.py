"""What does a test file ask for? Load samples, forget them, evaluate a query and expect something."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import Labels


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a sequence. `names_hint`: the histogram's reset hint was written, so it is compared."""

    content: float | Histogram
    names_hint: bool = False


Sequence = tuple[Value | None, ...]  # None: no sample there


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


class Subject(Enum):
    """What an `expect` line speaks of."""

    FAIL = "fail"
    WARN = "warn"
    NO_WARN = "no_warn"
    INFO = "info"
    NO_INFO = "no_info"


@dataclass(frozen=True, slots=True)
class Expectation:
    """`expect warn msg: …`: an exact text, a pattern (`regex`), or neither: anything of that kind."""

    subject: Subject
    text: str | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedSeries:
    labels: Labels
    values: Sequence


@dataclass(frozen=True, slots=True)
class Grid:
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
    grid: Grid
    expectations: tuple[Expectation, ...] = ()
    is_ordered: bool = False
    scalar: float | None = None
    text: str | None = None
    range_vector: Grid | None = None  # the samples of a range vector, expected from an instant query
    series: tuple[ExpectedSeries, ...] = field(default=())

    def expected(self, subject: Subject) -> list[Expectation]:
        return [expectation for expectation in self.expectations if expectation.subject is subject]

    @property
    def has_histograms(self) -> bool:
        """Whether native histograms are expected; whether some are read is known to the runner only."""
        return any(
            isinstance(value.content, Histogram)
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
