"""How do samples from several places become one answer? By labels, then by time; what was written later wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.sample_kernels import merge_regions

_MIX = np.uint64(0x9E3779B97F4A7C15)
_NOTHING = np.zeros(0, np.int64)


def empty_selection() -> Selection:
    return Selection(SeriesTable(0, {}), Samples(_NOTHING, _NOTHING, _NOTHING, np.zeros(0)))


def merge_selections(selections: Sequence[Selection]) -> Selection:
    """All series once, with the samples of all. Where several hold a sample of one time, the last selection wins.

    The answer may lend the arrays of a selection that stands alone.
    """
    found = [selection for selection in selections if selection.series.count]
    if not found:
        return empty_selection()
    if len(found) == 1:
        return found[0]
    table, groups = merge_tables([selection.series for selection in found])
    return Selection(table, merge_samples([selection.samples for selection in found], groups, table.count))


def merge_samples(parts: Sequence[Samples], groups: Sequence[Ints], count: int) -> Samples:
    """One region for each of `count` series; `groups` says to which one each region of a part belongs."""
    *earlier, last = (_dense(part) for part in parts)
    a = concatenate(earlier) if len(earlier) != 1 else earlier[0]
    group = np.concatenate(groups)
    order = np.argsort(group, kind="stable")
    regions = np.concatenate([a.first, last.first + len(a.timestamps)]), np.concatenate([a.count, last.count])
    tracked = any(part.starts is not None or part.histogram_at is not None for part in (a, last))
    first, merged, timestamps, values, origin = merge_regions(
        a.timestamps,
        a.values,
        last.timestamps,
        last.values,
        regions[0][order],
        regions[1][order],
        group[order],
        count,
        tracked,
    )
    if not tracked:
        return Samples(first, merged, timestamps, values)
    extras = _extras([a, last])
    return Samples(
        first,
        merged,
        timestamps,
        values,
        None if extras.starts is None else extras.starts[origin],
        None if extras.histogram_at is None else extras.histogram_at[origin],
        extras.histograms,
    )


def take_samples(samples: Samples, first: Ints, count: Ints, places: Ints) -> Samples:
    """The samples at these places, in regions that `first` and `count` name."""
    histogram_at = samples.histogram_at
    return Samples(
        first,
        count,
        samples.timestamps[places],
        samples.values[places],
        None if samples.starts is None else samples.starts[places],
        None if histogram_at is None else histogram_at[places],
        samples.histograms,
    )


def concatenate(parts: Sequence[Samples]) -> Samples:
    """The regions of all parts behind each other, over arrays without the gaps between regions."""
    if not parts:
        return empty_selection().samples
    dense = [_dense(part) for part in parts]
    sizes = np.cumsum([0, *(len(part.timestamps) for part in dense)])
    extras = _extras(dense)
    return Samples(
        np.concatenate([part.first + size for part, size in zip(dense, sizes, strict=False)]),
        np.concatenate([part.count for part in dense]),
        np.concatenate([part.timestamps for part in dense]),
        np.concatenate([part.values for part in dense]),
        extras.starts,
        extras.histogram_at,
        extras.histograms,
    )


@dataclass(frozen=True, slots=True)
class _Extras:
    starts: Ints | None
    histogram_at: Codes | None
    histograms: Sequence[NativeHistogram]


def _extras(dense: Sequence[Samples]) -> _Extras:
    """What some samples have beside times and values, over all places of all parts."""
    histograms: list[NativeHistogram] = []
    places: list[Codes] = []
    for part in dense:
        at = np.full(len(part.timestamps), -1, np.int32) if part.histogram_at is None else part.histogram_at
        places.append(np.where(at >= 0, at + len(histograms), -1).astype(np.int32))
        histograms.extend(part.histograms)
    has_starts = any(part.starts is not None for part in dense)
    starts = [np.zeros(len(part.timestamps), np.int64) if part.starts is None else part.starts for part in dense]
    return _Extras(
        np.concatenate(starts) if has_starts else None, np.concatenate(places) if histograms else None, histograms
    )


def _dense(samples: Samples) -> Samples:
    """A store lends its own arrays, which may be much larger than what was asked for: then only that is copied."""
    total = int(samples.count.sum())
    if total * 2 >= len(samples.timestamps):
        return samples
    first = np.cumsum(samples.count) - samples.count
    return take_samples(samples, first, samples.count, region_places(samples.first, samples.count))


def region_places(first: Ints, count: Ints) -> Ints:
    """All places of all regions, in a row."""
    shift = first - (np.cumsum(count) - count)
    return np.repeat(shift, count) + np.arange(int(count.sum()))


def merge_tables(tables: Sequence[SeriesTable]) -> tuple[SeriesTable, list[Ints]]:
    """One table with every label set once, in order of appearance; and for each table, where its series went."""
    names = sorted({name for table in tables for name in table.columns})
    total = sum(table.count for table in tables)
    columns = {name: _merge_column(name, tables, total) for name in names}
    representative, group = _distinct_rows([column.codes for column in columns.values()], total)
    merged = {name: LabelColumn(column.codes[representative], column.values) for name, column in columns.items()}
    ends = np.cumsum([table.count for table in tables])[:-1]
    return SeriesTable(len(representative), merged), np.split(group, ends)


def _merge_column(name: str, tables: Sequence[SeriesTable], total: int) -> LabelColumn:
    """One dictionary for a label over all tables, with only the values that are used."""
    known: dict[str, int] = {"": 0}
    codes = np.zeros(total, np.int32)
    at = 0
    for table in tables:
        column = table.columns.get(name)
        if column is not None and table.count:
            used = np.zeros(len(column.values), np.bool_)
            used[column.codes] = True
            translation = np.zeros(len(column.values), np.int32)
            for code in np.flatnonzero(used).tolist():
                translation[code] = known.setdefault(column.values[code], len(known))
            codes[at : at + table.count] = translation[column.codes]
        at += table.count
    return LabelColumn(codes, tuple(known))


def _distinct_rows(columns: Sequence[Codes], total: int) -> tuple[Ints, Ints]:
    """The first row of each kind, and of which kind every row is. Rows of equal hash are compared in full."""
    mixed = np.zeros(total, np.uint64)
    for codes in columns:
        mixed = (mixed ^ codes.astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    representative, group = _kinds(mixed)
    if all(np.array_equal(codes[representative][group], codes) for codes in columns):
        return representative, group
    rows = np.stack(columns, axis=1)
    _, group = np.unique(rows, axis=0, return_inverse=True)
    return _kinds(group.reshape(-1))


def _kinds(keys: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse.reshape(-1)]
