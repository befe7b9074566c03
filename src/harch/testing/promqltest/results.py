"""What did the target answer? The same form for an engine in this process and for JSON from a server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import Labels
from harch.testing.promqltest.commands import Grid, SeriesSamples


@dataclass(frozen=True, slots=True)
class ShownHistogram:
    """A histogram as JSON shows it: no schema, no hint; buckets are (bounds' kind, lower, upper, count)."""

    count: float
    sum: float
    buckets: tuple[tuple[int, float, float, float], ...] = ()


Point = float | Histogram | ShownHistogram


@dataclass(frozen=True, slots=True)
class ResultSeries:
    labels: Labels
    points: tuple[tuple[int, Point], ...]  # milliseconds, value


@dataclass(frozen=True, slots=True)
class Answer:
    """`kind` is vector, matrix, scalar or string. A scalar or a string stands in `value`."""

    kind: str
    series: tuple[ResultSeries, ...] = ()
    value: float | str = math.nan
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


class QueryFailed(Exception):
    """The target refused the query; the text is its message."""


class Target(Protocol):
    """Something that keeps samples and answers queries."""

    def clear(self) -> None:
        """Forget everything, or go on as another tenant."""
        ...

    def load(self, step_ms: int, series: tuple[SeriesSamples, ...]) -> None: ...

    def query(self, text: str, grid: Grid) -> Answer:
        """Raises QueryFailed."""
        ...

    def close(self) -> None: ...
