"""In which order do series lie in a block? By labels, the metric's name first: what is asked together lies together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, SeriesTable


@dataclass(frozen=True, slots=True)
class SortedSeries:
    """`order` lists places of the table it was made from; the columns are in that order, their values sorted."""

    order: Ints
    columns: Mapping[str, LabelColumn]

    @property
    def count(self) -> int:
        return len(self.order)


def sort_series(table: SeriesTable, places: Ints) -> SortedSeries:
    """These series of a table by label values, with dictionaries that hold only what is used."""
    columns = {name: _ranked(table.columns[name], places) for name in _label_order(table)}
    used = {name: column for name, column in columns.items() if len(column.values) > 1}
    if not used:
        return SortedSeries(places, {})
    order = np.lexsort([column.codes for column in reversed(used.values())])
    ordered = {name: LabelColumn(column.codes[order], column.values) for name, column in used.items()}
    return SortedSeries(places[order], ordered)


def _label_order(table: SeriesTable) -> list[str]:
    return sorted(table.columns, key=lambda name: (name != METRIC_NAME, name))


def _ranked(column: LabelColumn, places: Ints) -> LabelColumn:
    """The same column with codes that sort as their values do."""
    codes = column.codes[places]
    used = np.zeros(len(column.values), np.bool_)
    used[codes] = True
    used[0] = False
    found = sorted((column.values[code], code) for code in np.flatnonzero(used).tolist())
    translation: Codes = np.zeros(len(column.values), np.int32)
    for rank, (_, code) in enumerate(found, start=1):
        translation[code] = rank
    return LabelColumn(translation[codes], ("", *(value for value, _ in found)))
