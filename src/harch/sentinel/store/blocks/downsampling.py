"""What remains of old samples? Per window the last one, and smallest, largest, sum, number as series of their own."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.model.selection import Floats, Ints, LabelColumn, Samples, SeriesTable
from harch.sentinel.store.blocks.meta import RAW_MS
from harch.sentinel.store.blocks.sample_kernels import COUNT, LAST, MAX, MIN, SUM, fold_windows, keep_last
from harch.sentinel.store.blocks.sources import BlockSource

AGGREGATE_LABEL = "\0aggregate"  # inside of downsampled blocks only; nobody outside sees it or can ask for it


class WindowAggregate(IntEnum):
    """How a query looks at windows. `LAST` serves instant values and rates; the others serve `..._over_time`."""

    LAST = LAST
    MIN = MIN
    MAX = MAX
    SUM = SUM
    COUNT = COUNT


_VALUES = ("", *(aggregate.name for aggregate in WindowAggregate))


class DownsampledSource:
    """Samples of a finer source, one a window: every series five times, once for each aggregate."""

    def __init__(self, source: BlockSource, resolution_ms: int, *, source_resolution_ms: int) -> None:
        self._source = source
        self._resolution_ms = resolution_ms
        self._is_raw = source_resolution_ms == RAW_MS
        self._series = _five_times(source.series) if self._is_raw else source.series

    @property
    def series(self) -> SeriesTable:
        return self._series

    @property
    def samples(self) -> int:
        return max(1, self._source.samples // 20)  # a scrape every 15 s has 20 in 5 minutes

    def read(self, places: Ints, start: int, end: int) -> Samples:
        """A window that reaches over an edge of the range is not whole: callers ask for ranges of whole windows."""
        column = self._series.columns[AGGREGATE_LABEL]
        aggregates = np.array([WindowAggregate[name] if name else -1 for name in column.values])[column.codes[places]]
        below = places % self._source.series.count if self._is_raw else places
        found = self._source.read(below, start, end)
        first, count = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
        times, values, taken, total = [], [], [], 0
        for aggregate in WindowAggregate:
            mine = np.flatnonzero(aggregates == aggregate)
            part_first, part_count, part_times, part_values, part_taken = self._fold(found, mine, aggregate)
            first[mine], count[mine] = part_first + total, part_count
            times.append(part_times)
            values.append(part_values)
            taken.append(part_taken)
            total += len(part_times)
        origin = np.concatenate(taken)
        kept = origin >= 0
        return Samples(
            first,
            count,
            np.concatenate(times),
            np.concatenate(values),
            None if found.starts is None else np.where(kept, found.starts[origin], 0),
            None if found.histogram_at is None else np.where(kept, found.histogram_at[origin], -1).astype(np.int32),
            found.histograms,
        )

    def _fold(self, found: Samples, mine: Ints, aggregate: WindowAggregate) -> tuple[Ints, Ints, Ints, Floats, Ints]:
        first, count = found.first[mine], found.count[mine]
        if aggregate is WindowAggregate.LAST:
            first, count, taken = keep_last(found.timestamps, found.values, first, count, self._resolution_ms)
            return first, count, found.timestamps[taken], found.values[taken], taken
        way = WindowAggregate.SUM if aggregate is WindowAggregate.COUNT and not self._is_raw else aggregate
        at = found.histogram_at
        skipped = np.zeros(len(found.values), np.bool_) if at is None else at >= 0
        first, count, times, values = fold_windows(
            found.timestamps, found.values, skipped, first, count, self._resolution_ms, int(way)
        )
        return first, count, times, values, np.full(len(times), -1, np.int64)


def aggregate_matchers(matchers: Sequence[Matcher], aggregate: WindowAggregate) -> list[Matcher] | None:
    """What to ask a downsampled block for; None where nothing can match."""
    if any(matcher.name == AGGREGATE_LABEL and not matcher.matches_empty() for matcher in matchers):
        return None
    wanted = [matcher for matcher in matchers if matcher.name != AGGREGATE_LABEL]
    return [*wanted, Matcher(MatchKind.EQUAL, AGGREGATE_LABEL, aggregate.name)]


def without_aggregate(table: SeriesTable) -> SeriesTable:
    """The table as the outside knows it."""
    columns = {name: column for name, column in table.columns.items() if name != AGGREGATE_LABEL}
    return SeriesTable(table.count, columns)


def _five_times(table: SeriesTable) -> SeriesTable:
    times = len(WindowAggregate)
    columns = {name: LabelColumn(np.tile(column.codes, times), column.values) for name, column in table.columns.items()}
    codes = np.repeat(np.arange(1, times + 1, dtype=np.int32), table.count)
    return SeriesTable(times * table.count, {**columns, AGGREGATE_LABEL: LabelColumn(codes, _VALUES)})
