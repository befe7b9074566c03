"""Which series are the same?

Labels as columns of codes: compared, grouped, matched by signatures, merged, and hashed for `limit_ratio`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.context import refuse
from harch.sentinel.promql.evaluate.label_kernels import count_present, first_members, refine_groups
from harch.sentinel.promql.evaluate.values import Bools, Objects, Vector, no_histograms
from harch.sentinel.promql.histograms.buckets import compacted
from harch.sentinel.promql.syntax.literals import quote
from harch.sentinel.promql.syntax.nodes import VectorMatching

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
        strings = [column.values[code] for code in used.tolist()]
        rank = np.empty(len(used), np.int64)
        rank[sorted(range(len(used)), key=lambda place: strings[place].encode(errors="surrogateescape"))] = np.arange(
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


# Which series of two vectors may belong together? Those of the same signature: equal labels, as far as they count.


@dataclass(frozen=True, slots=True)
class Signatures:
    """The signature of every series of both sides, numbered together."""

    left: Ints
    right: Ints
    count: int


def signatures_of(left: SeriesTable, right: SeriesTable, matching: VectorMatching) -> Signatures:
    """`on`: the labels named; otherwise all but those and the metric's name."""
    if matching.on:
        names = [name for name in dict.fromkeys(matching.labels) if name in left.columns or name in right.columns]
    else:
        ignored = {*matching.labels, METRIC_NAME}
        names = [name for name in dict.fromkeys([*left.columns, *right.columns]) if name not in ignored]
    counts = (left.count, right.count)
    columns = (np.concatenate(joint_codes(left.columns.get(name), right.columns.get(name), counts)) for name in names)
    groups = group_rows(left.count + right.count, columns)
    return Signatures(groups.of_row[: left.count], groups.of_row[left.count :], groups.count)


def signature_labels(series: SeriesTable, matching: VectorMatching) -> SeriesTable:
    """The labels that make up the signature."""
    if matching.on:
        return keep_columns(series, matching.labels)
    return drop_columns(series, (*matching.labels, METRIC_NAME))


# What if two series end up with the same labels? One series, unless both have a sample at the same step.


_SAME_LABELS = "vector cannot contain metrics with the same labelset"


def without_empty(vector: Vector) -> Vector:
    """Without series that have no sample at all."""
    filled = vector.present.any(axis=1)
    return vector if filled.all() else vector.take(np.flatnonzero(filled))


def finished(vector: Vector) -> Vector:
    """The vector as it goes out: names that were to be dropped are, and no two series are alike."""
    filled = without_empty(vector)
    series = clear_labels(filled.series, METADATA_LABELS, filled.drops_name)
    kept = np.zeros(filled.count, np.bool_)
    return merge_equal_series(Vector(series, filled.values, filled.present, kept, _without_empty_buckets(filled)))


def _without_empty_buckets(vector: Vector) -> Objects | None:
    there = vector.is_histogram
    if vector.histograms is None or there is None:
        return None
    cells = no_histograms(vector.present.shape)
    for row, step in zip(*np.nonzero(there), strict=True):
        cells[row, step] = compacted(vector.histograms[row, step])
    return cells


def merge_equal_series(vector: Vector) -> Vector:
    """One row for each label set; refuses two samples of one at the same step.

    A series that will lose its name is not the same as one that keeps it.
    """
    if vector.count < 2:
        return vector
    columns = [column.codes for column in vector.series.columns.values()]
    if vector.drops_name.any():
        columns.append(vector.drops_name.astype(np.int32))
    groups = group_rows(vector.count, columns)
    return vector if groups.count == vector.count else _merged(vector, groups)


def _merged(vector: Vector, groups: Groups) -> Vector:
    present = np.zeros((groups.count, vector.steps), np.bool_)
    values = np.zeros(present.shape)
    cells = None if vector.histograms is None else no_histograms(present.shape)
    for row, group in enumerate(groups.of_row.tolist()):
        here = vector.present[row]
        if (present[group] & here).any():
            raise refuse(_SAME_LABELS, hint="keep a label that distinguishes the series, or aggregate over it")
        present[group] |= here
        values[group, here] = vector.values[row, here]
        if cells is not None and vector.histograms is not None:
            cells[group, here] = vector.histograms[row, here]
    return Vector(vector.series.take(groups.first), values, present, vector.drops_name[groups.first], cells)


def counts_by_group(of_row: Ints, group_count: int, present: Bools) -> Ints:
    """How many series of each group are present at each step."""
    counts = np.zeros((group_count, present.shape[1]), np.int64)
    count_present(np.ascontiguousarray(of_row), np.ascontiguousarray(present), counts)
    return counts


# Which series does `limit_ratio` take? Those whose labels hash below the ratio: xxHash64 of their encoded form.


_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def sampling_offset(labels: Labels) -> float:
    """A number from 0 to 1 that is the same for the same labels, always and everywhere."""
    return float(xxhash64(b"".join(_sized(text) for pair in labels for text in pair))) / float(_MASK)


def _sized(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    size = len(data)
    return (bytes([size]) if size < 255 else b"\xff" + size.to_bytes(3, "little")) + data


def xxhash64(data: bytes) -> int:
    """The 64-bit xxHash with seed 0."""
    length, place = len(data), 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while place + 32 <= length:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[place : place + 8], "little"))
                place += 8
        digest = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane_value in lanes:
            digest = ((digest ^ _round(0, lane_value)) * _P1 + _P4) & _MASK
    else:
        digest = _P5
    digest = (digest + length) & _MASK
    while place + 8 <= length:
        digest ^= _round(0, int.from_bytes(data[place : place + 8], "little"))
        digest = (_rotated(digest, 27) * _P1 + _P4) & _MASK
        place += 8
    if place + 4 <= length:
        digest ^= (int.from_bytes(data[place : place + 4], "little") * _P1) & _MASK
        digest = (_rotated(digest, 23) * _P2 + _P3) & _MASK
        place += 4
    for byte in data[place:]:
        digest ^= (byte * _P5) & _MASK
        digest = (_rotated(digest, 11) * _P1) & _MASK
    digest = ((digest ^ (digest >> 33)) * _P2) & _MASK
    digest = ((digest ^ (digest >> 29)) * _P3) & _MASK
    return digest ^ (digest >> 32)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, word: int) -> int:
    return (_rotated((accumulator + word * _P2) & _MASK, 31) * _P1) & _MASK
