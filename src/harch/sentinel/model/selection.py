"""What does a query read? Series as label columns, samples as flat arrays: what kernels can walk without objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import Labels, Matcher

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """One label over many series: `values[codes[i]]` is its value in series i; code 0 is "" and means absent."""

    codes: Codes
    values: Sequence[str]  # may hold more values than are used: dictionaries are shared and only grow


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """The labels of `count` series, one column a label name (also `__name__`)."""

    count: int
    columns: Mapping[str, LabelColumn]

    def labels_of(self, place: int) -> Labels:
        """The labels of one series. For results and messages; queries work on the columns."""
        found = ((name, column.values[column.codes[place]]) for name, column in self.columns.items())
        return tuple(sorted((name, value) for name, value in found if value))

    def take(self, places: npt.NDArray[np.integer]) -> SeriesTable:
        """These series, in this order."""
        columns = {name: LabelColumn(column.codes[places], column.values) for name, column in self.columns.items()}
        return SeriesTable(len(places), columns)

    @staticmethod
    def of(series: Sequence[Labels]) -> SeriesTable:
        """The table of these label sets."""
        names = sorted({name for labels in series for name, _ in labels})
        columns: dict[str, LabelColumn] = {}
        for name in names:
            known: dict[str, int] = {"": 0}
            codes = np.zeros(len(series), np.int32)
            for place, labels in enumerate(series):
                value = dict(labels).get(name, "")
                codes[place] = known.setdefault(value, len(known))
            columns[name] = LabelColumn(codes, tuple(known))
        return SeriesTable(len(series), columns)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of many series. Series i owns places `first[i]` to `first[i] + count[i]`, sorted by time, no time twice.

    Regions may have gaps between them, so that a store can lend its own arrays. Readers must not write to them.
    """

    first: Ints
    count: Ints
    timestamps: Ints  # milliseconds since 1970; may be negative
    values: Floats  # stale markers are NaNs of the bits STALE_BITS; histogram samples hold their sum here
    starts: Ints | None = None  # since when the counter counts, milliseconds; 0 = not known
    histogram_at: Codes | None = None  # place in `histograms`, -1 for a float sample; None: floats only
    histograms: Sequence[NativeHistogram] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """What one selector found. Series without samples in the range may be among it."""

    series: SeriesTable
    samples: Samples


_NO_PLACES: Ints = np.empty(0, np.int64)
NOTHING = Selection(SeriesTable(0, {}), Samples(_NO_PLACES, _NO_PLACES, _NO_PLACES, np.empty(0)))


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One example behind a counter or a bucket: mostly the trace that was counted."""

    labels: Labels
    value: float
    timestamp: int


@dataclass(frozen=True, slots=True)
class SeriesExemplars:
    series: Labels
    exemplars: tuple[Exemplar, ...]


class Queryable(Protocol):
    """What PromQL asks of a store, for one tenant. Times are milliseconds, both ends included."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        """Samples of all matching series. Raises E0603 beyond `limit` samples."""
        ...

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        """Labels alone of matching series that have samples in the range."""
        ...

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]: ...


@dataclass(frozen=True, slots=True)
class SeriesBatch:
    """Samples of one series on their way in, by time: the slow way, for rules, scrapes and OTLP.

    `values` holds floats or histograms. Remote-write bodies take the fast way past these objects.
    """

    labels: Labels
    timestamps: Sequence[int]
    values: Sequence[float | NativeHistogram]
    starts: Sequence[int] = ()
    exemplars: Sequence[Exemplar] = field(default=())


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: how many were taken, and why others were not."""

    samples: int = 0
    histograms: int = 0
    exemplars: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # error code -> how many


class Appendable(Protocol):
    """What collectors and rules ask of a store, for one tenant. Returning means that it is durable."""

    def append(self, batches: Sequence[SeriesBatch]) -> Written: ...
