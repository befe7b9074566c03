"""How are labels compared, dropped, replaced and ordered, without making a dictionary per series?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.labels.label_kernels import first_members, refine_groups
from harch.sentinel.promql.syntax.quoting import quote

METADATA_LABELS = (METRIC_NAME, "__type__", "__unit__")  # what describes a metric and not what it measures


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each series belongs to, numbered by first appearance, and the first series of every group."""

    of_row: Ints
    first: Ints

    @property
    def count(self) -> int:
        return len(self.first)


def group_rows(count: int, columns: Iterable[Codes]) -> Groups:
    """Series with equal codes in all columns make a group."""
    of_row = np.zeros(count, np.int64)
    found = min(count, 1)
    for codes in columns:
        found = refine_groups(of_row, np.ascontiguousarray(codes, np.int32))
        if found == count:
            break
    return Groups(of_row, first_members(of_row, found))


def group_by_labels(series: SeriesTable, names: Iterable[str]) -> Groups:
    """Groups by these labels; a label that no series has tells none apart."""
    wanted = dict.fromkeys(names)
    return group_rows(series.count, (series.columns[name].codes for name in wanted if name in series.columns))


def group_without_labels(series: SeriesTable, names: Iterable[str]) -> Groups:
    """Groups by all labels but these."""
    left_out = set(names)
    return group_rows(series.count, (column.codes for name, column in series.columns.items() if name not in left_out))


def keep_columns(series: SeriesTable, names: Iterable[str]) -> SeriesTable:
    wanted = set(names)
    return SeriesTable(series.count, {name: column for name, column in series.columns.items() if name in wanted})


def drop_columns(series: SeriesTable, names: Iterable[str]) -> SeriesTable:
    unwanted = set(names)
    return SeriesTable(series.count, {name: column for name, column in series.columns.items() if name not in unwanted})


def clear_labels(series: SeriesTable, names: Iterable[str], rows: npt.NDArray[np.bool_]) -> SeriesTable:
    """Takes labels away from some of the series."""
    if rows.all():
        return drop_columns(series, names)
    if not rows.any():
        return series
    columns = dict(series.columns)
    for name in names:
        if name in columns:
            codes = np.where(rows, np.int32(0), columns[name].codes)
            columns[name] = LabelColumn(codes.astype(np.int32, copy=False), columns[name].values)
    return SeriesTable(series.count, columns)


def column_values(series: SeriesTable, name: str) -> list[str]:
    """The value of one label in every series."""
    column = series.columns.get(name)
    if column is None:
        return [""] * series.count
    values = column.values
    return [values[code] for code in column.codes.tolist()]


def with_column(series: SeriesTable, name: str, column: LabelColumn) -> SeriesTable:
    return SeriesTable(series.count, {**series.columns, name: column})


def column_of(values: Sequence[str]) -> LabelColumn:
    """A column of these values, with a dictionary of its own."""
    known: dict[str, int] = {"": 0}
    codes = np.fromiter((known.setdefault(value, len(known)) for value in values), np.int32, len(values))
    return LabelColumn(codes, tuple(known))


def mapped_column(column: LabelColumn, change: Callable[[str], str]) -> LabelColumn:
    """Every value changed, worked out once a distinct value."""
    used, inverse = np.unique(column.codes, return_inverse=True)
    changed = column_of([change(column.values[code]) for code in used.tolist()])
    return LabelColumn(changed.codes[inverse].astype(np.int32, copy=False), changed.values)


def constant_column(count: int, value: str) -> LabelColumn:
    return LabelColumn(np.full(count, 1 if value else 0, np.int32), ("", value))


def joint_codes(left: LabelColumn | None, right: LabelColumn | None, counts: tuple[int, int]) -> tuple[Codes, Codes]:
    """Codes of one label in two tables that are equal where the values are."""
    if left is None or right is None:
        zeros = tuple(np.zeros(count, np.int32) for count in counts)
        return (zeros[0] if left is None else left.codes, zeros[1] if right is None else right.codes)
    if left.values is right.values:
        return left.codes, right.codes
    known: dict[str, int] = {"": 0}
    return _recoded(left, known), _recoded(right, known)


def _recoded(column: LabelColumn, known: dict[str, int]) -> Codes:
    used, inverse = np.unique(column.codes, return_inverse=True)
    values = column.values
    table = np.fromiter((known.setdefault(values[code], len(known)) for code in used.tolist()), np.int32, len(used))
    return table[inverse]


def stacked(upper: SeriesTable, lower: SeriesTable) -> SeriesTable:
    """One table below the other."""
    columns: dict[str, LabelColumn] = {}
    counts = (upper.count, lower.count)
    for name in dict.fromkeys([*upper.columns, *lower.columns]):
        above, below = upper.columns.get(name), lower.columns.get(name)
        if above is not None and below is not None and above.values is not below.values:
            known: dict[str, int] = {"": 0}
            codes = (_recoded(above, known), _recoded(below, known))
            values: Sequence[str] = tuple(known)
        else:
            codes = joint_codes(above, below, counts)
            given = above if above is not None else below
            values = given.values if given is not None else ("",)
        columns[name] = LabelColumn(np.concatenate(codes), values)
    return SeriesTable(upper.count + lower.count, columns)


def label_order(series: SeriesTable) -> Ints:
    """The places of the series sorted by labels, as results of range queries are: name by name, value by value.

    A series that lacks a label comes after those that have it, unless it has no labels left: then it is a prefix.
    """
    names = sorted(series.columns)
    has_later = np.zeros(series.count, np.bool_)
    keys: list[npt.NDArray[np.integer]] = []
    for name in reversed(names):
        column = series.columns[name]
        used, inverse = np.unique(column.codes, return_inverse=True)
        texts = [column.values[code] for code in used.tolist()]
        rank = np.empty(len(used), np.int64)
        rank[sorted(range(len(used)), key=lambda place: texts[place].encode(errors="surrogateescape"))] = np.arange(
            1, len(used) + 1
        )
        absent = column.codes == 0
        keys.append(np.where(absent, np.where(has_later, len(used) + 1, 0), rank[inverse]))
        has_later |= ~absent
    return np.lexsort(keys) if keys else np.arange(series.count)


def labels_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Labels as messages show them, the name among them."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return "{" + ", ".join(f"{name}={quote(value)}" for name, value in sorted(pairs)) + "}"
