"""What does a query answer? Values with their times, and what should be known besides."""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.model.selection import Ints, Samples, SeriesTable
from harch.sentinel.promql.evaluate.values import Bools, Floats, Objects


@dataclass(frozen=True, slots=True)
class ScalarResult:
    """One number at one time."""

    time_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class StringResult:
    time_ms: int
    value: str


@dataclass(frozen=True, slots=True)
class VectorResult:
    """Series at one time, in the order that sort functions asked for."""

    time_ms: int
    series: SeriesTable
    values: Floats  # [series]; of no meaning where a histogram is
    histograms: Objects | None  # [series], None where the sample is a float; None as a whole: floats only


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Series over the steps of a range query, sorted by labels; every series has at least one sample."""

    times: Ints  # [step], milliseconds
    series: SeriesTable
    values: Floats  # [series, step]; of no meaning where nothing is present or where a histogram is
    present: Bools  # [series, step]
    histograms: Objects | None  # [series, step]


@dataclass(frozen=True, slots=True)
class SamplesResult:
    """The samples of a range selector asked for by an instant query, each with its own time; no stale markers."""

    series: SeriesTable
    samples: Samples


QueryValue = ScalarResult | StringResult | VectorResult | MatrixResult | SamplesResult


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer, with warnings and infos in upstream's words, and what it cost."""

    value: QueryValue
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    samples_read: int = 0
    points_peak: int = 0
