"""Series as a store lends them: shared dictionaries, one flat array with gaps between series, read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harch.sentinel.model.labels import Matcher
from harch.sentinel.model.selection import LabelColumn, Samples, Selection, SeriesExemplars, SeriesTable

Points = Sequence[tuple[int, float]]
_GAP = 3  # places between series that belong to nobody


class ColumnStore:
    """A Queryable over `{labels: [(time_ms, value), …]}`. Counts how often it was asked."""

    def __init__(self, series: Mapping[tuple[tuple[str, str], ...], Points]) -> None:
        self.reads = 0
        self.dictionaries: dict[str, list[str]] = {}
        self._labels = list(series)
        names = sorted({name for labels in series for name, _ in labels})
        self._codes = {name: np.zeros(len(series), np.int32) for name in names}
        for name in names:
            known = self.dictionaries.setdefault(name, [""])
            for place, labels in enumerate(self._labels):
                value = dict(labels).get(name, "")
                if value not in known:
                    known.append(value)
                self._codes[name][place] = known.index(value)
        counts = [len(points) for points in series.values()]
        self._count = np.array(counts, np.int64)
        self._first = np.cumsum(self._count + _GAP) - self._count
        total = int(self._count.sum()) + _GAP * (len(counts) + 1)
        self._times, self._values = np.full(total, -(1 << 60), np.int64), np.full(total, 1e300)
        for first, points in zip(self._first.tolist(), series.values(), strict=True):
            for place, (time_ms, value) in enumerate(points):
                self._times[first + place], self._values[first + place] = time_ms, value
        self._times.flags.writeable = self._values.flags.writeable = False

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        self.reads += 1
        rows = np.array([place for place, labels in enumerate(self._labels) if _fits(matchers, labels)], np.int64)
        columns = {name: LabelColumn(codes[rows], self.dictionaries[name]) for name, codes in self._codes.items()}
        samples = Samples(self._first[rows], self._count[rows], self._times, self._values)
        return Selection(SeriesTable(len(rows), columns), samples)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return self.select(matchers, start, end, limit=1 << 60).series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


def _fits(matchers: Sequence[Matcher], labels: tuple[tuple[str, str], ...]) -> bool:
    return all(matcher.matches(dict(labels).get(matcher.name, "")) for matcher in matchers)


def counters(count: int = 3, samples: int = 20) -> ColumnStore:
    """Counters of several sites, 15 s apart, each as fast as its number."""
    return ColumnStore(
        {
            (("__name__", "made_total"), ("site", f"s{row}")): [(15_000 * n, 1.0 * n * row) for n in range(samples)]
            for row in range(count)
        }
    )
