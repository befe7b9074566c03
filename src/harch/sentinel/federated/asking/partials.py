"""How does the engine read what hubs told? As a store: every place of the rest is a set of series.

A series has a sample at every step of its grid: what was told, or a marker that there is nothing. So nothing of an
earlier step is ever taken for a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harch.sentinel.federated.asking.moments import joint_variance
from harch.sentinel.federated.asking.plans import Joining, place_number
from harch.sentinel.federated.messages import SeriesTold
from harch.sentinel.model.histograms import STALE, Histogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Floats, Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.grid import Grid


@dataclass(frozen=True, slots=True)
class Rows:
    """Series on a grid: `values[i]` has STALE where nothing is; histograms stand by (row, step)."""

    series: tuple[Labels, ...]
    values: Floats
    histograms: Mapping[tuple[int, int], Histogram]


class PlacesStore:
    """A Queryable with one set of series for each place."""

    def __init__(self, places: Sequence[tuple[Grid, Rows]]) -> None:
        self._selections = [_selection(grid, rows) for grid, rows in places]

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        number = place_number(tuple(matchers))
        return _selection(Grid(0, 0, 0), NOTHING) if number is None else self._selections[number]

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return self.select(matchers, start, end, limit=0).series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


NOTHING = Rows((), np.zeros((0, 0)), {})


def rows_of(told: Sequence[SeriesTold], steps: int) -> Rows:
    """What was told, one row a series, as it came."""
    values = np.full((len(told), steps), STALE)
    histograms: dict[tuple[int, int], Histogram] = {}
    for row, one in enumerate(told):
        values[row, list(one.at)] = one.values
        for step, cell in zip(one.at, one.histograms, strict=False):
            if cell is not None:
                histograms[row, step] = cell
                values[row, step] = cell.sum
    return Rows(tuple(one.labels for one in told), values, histograms)


def distinct_rows(told: Sequence[SeriesTold], steps: int) -> tuple[Rows, int]:
    """One row for every label set, and how many were left out: of two hubs with the same series, the first counts."""
    kept: list[SeriesTold] = []
    seen: set[Labels] = set()
    for one in told:
        if one.labels not in seen:
            kept.append(one)
            seen.add(one.labels)
    return rows_of(kept, steps), len(told) - len(kept)


def spread_rows(hubs: Sequence[Sequence[Sequence[SeriesTold]]], steps: int, joining: Joining) -> Rows:
    """`hubs` have counts, means and variances, each a list of series. What lacks one of them has no variance."""
    groups: dict[Labels, list[Floats]] = {}
    for counts, means, variances in hubs:
        others = [{one.labels: one for one in told} for told in (means, variances)]
        for count in counts:
            cells = np.full((3, steps), np.nan)
            known = np.zeros((3, steps), np.bool_)
            for row, one in enumerate((count, *(side.get(count.labels) for side in others))):
                if one is not None:
                    cells[row, list(one.at)] = one.values
                    known[row, list(one.at)] = True
            cells[0, ~known.all(axis=0)] = 0.0
            groups.setdefault(count.labels, []).append(cells)
    values = np.full((len(groups), steps), STALE)
    for row, cells_of_hubs in enumerate(groups.values()):
        numbers, centres, spreads = np.stack(cells_of_hubs, axis=1)
        result = joint_variance(numbers, centres, spreads)
        there = numbers.sum(axis=0) > 0
        values[row, there] = np.sqrt(result[there]) if joining is Joining.DEVIATION else result[there]
    return Rows(tuple(groups), values, {})


def _selection(grid: Grid, rows: Rows) -> Selection:
    count, steps = len(rows.series), grid.count
    sizes = np.full(count, steps, np.int64)
    times = np.tile(grid.times, count)
    first = np.arange(count, dtype=np.int64) * steps
    values = np.ascontiguousarray(rows.values, np.float64).reshape(-1)
    if not rows.histograms:
        return Selection(SeriesTable.of(rows.series), Samples(first, sizes, times, values))
    histogram_at = np.full(len(values), -1, np.int32)
    for number, (row, step) in enumerate(rows.histograms):
        histogram_at[row * steps + step] = number
    cells = tuple(rows.histograms.values())
    samples = Samples(first, sizes, times, values, histogram_at=histogram_at, histograms=cells)
    return Selection(SeriesTable.of(rows.series), samples)
