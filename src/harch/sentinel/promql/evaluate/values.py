"""What does an expression give, and at which times?

Steps from a start, all alike; matrices of series and steps on the way; values with their times as the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.selection import Samples, SeriesTable

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Vector:
    """An instant vector at every step: `values[i, j]` is what series i has at step j, if `present[i, j]`.

    `histograms` holds the histogram of a place, or None where the sample is a float; None as a whole: floats only.
    NaN is a value like any other. A series whose `drops_name` is set loses its name (and type and unit) at the end.
    """

    series: SeriesTable
    values: Floats
    present: Bools
    drops_name: Bools
    histograms: Objects | None = None

    @property
    def count(self) -> int:
        return self.series.count

    @property
    def steps(self) -> int:
        return int(self.present.shape[1])

    @property
    def is_histogram(self) -> Bools | None:
        """Where histograms are; None if there are none at all."""
        if self.histograms is None:
            return None
        return is_filled(self.histograms) & self.present

    @property
    def has_float(self) -> Bools:
        """Where floats are."""
        mask = self.is_histogram
        return self.present if mask is None else self.present & ~mask

    def take(self, rows: npt.NDArray[np.integer]) -> Vector:
        """These series, in this order."""
        histograms = None if self.histograms is None else self.histograms[rows]
        return Vector(self.series.take(rows), self.values[rows], self.present[rows], self.drops_name[rows], histograms)

    def floats_only(self) -> Vector:
        """Without the histograms, which most functions pass over."""
        return self if self.histograms is None else replace(self, present=self.has_float, histograms=None)

    def with_values(self, values: Floats, *, drops_name: bool = True) -> Vector:
        """Other values for the same series and places; their names go, unless told otherwise."""
        drops = np.ones(self.count, np.bool_) if drops_name else self.drops_name
        return replace(self, values=values, drops_name=drops)

    def only_where(self, mask: Bools) -> Vector:
        """The samples at these places only."""
        return replace(self, present=self.present & mask)

    def spread(self, steps: int) -> Vector:
        """One step, repeated: what does not depend on time is computed once."""
        if self.steps == steps:
            return self
        histograms = None if self.histograms is None else np.repeat(self.histograms, steps, axis=1)
        return replace(
            self,
            values=np.repeat(self.values, steps, axis=1),
            present=np.repeat(self.present, steps, axis=1),
            histograms=histograms,
        )


Scalar = Floats  # one number a step
Value = Vector | Scalar | str


def empty_vector(steps: int) -> Vector:
    return Vector(SeriesTable(0, {}), np.zeros((0, steps)), np.zeros((0, steps), np.bool_), np.zeros(0, np.bool_))


def stacked_histograms(parts: list[Vector]) -> Objects | None:
    """The histograms of vectors put below each other."""
    if all(part.histograms is None for part in parts):
        return None
    return np.concatenate([histogram_cells(part) for part in parts])


def histogram_cells(vector: Vector) -> Objects:
    """The histograms as a matrix of objects, also where there are none."""
    return no_histograms(vector.present.shape) if vector.histograms is None else vector.histograms


def no_histograms(shape: tuple[int, ...]) -> Objects:
    return np.full(shape, None, dtype=np.object_)


def is_filled(histograms: Objects) -> Bools:
    """Where histograms are."""
    none: Any = None
    mask: Bools = np.not_equal(histograms, none)
    return mask


def settled_histograms(histograms: Objects) -> Objects | None:
    """None in place of a matrix in which nothing is left, so that what follows takes the fast way."""
    return histograms if is_filled(histograms).any() else None


Cell = float | NativeHistogram


# At which times is an expression evaluated? Steps from a start, all alike.


@dataclass(frozen=True, slots=True)
class StepGrid:
    """`count` times, `step_ms` apart. An instant query has one, and its step is 0."""

    start_ms: int
    step_ms: int
    count: int

    @staticmethod
    def instant(at_ms: int) -> StepGrid:
        return StepGrid(at_ms, 0, 1)

    @staticmethod
    def between(start_ms: int, end_ms: int, step_ms: int) -> StepGrid:
        """All steps up to the end, which is included; none if it lies before the start."""
        return StepGrid(start_ms, step_ms, max((end_ms - start_ms) // step_ms + 1, 0))

    @property
    def end_ms(self) -> int:
        """The last time of the grid."""
        return self.start_ms + max(self.count - 1, 0) * self.step_ms

    @property
    def times(self) -> Ints:
        return self.start_ms + np.arange(self.count, dtype=np.int64) * self.step_ms

    @property
    def first_only(self) -> StepGrid:
        return StepGrid(self.start_ms, self.step_ms, min(self.count, 1))


# What does a query answer? Values with their times, and what should be known besides.


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
