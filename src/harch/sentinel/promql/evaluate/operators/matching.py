"""Which samples of two vectors are combined? Series with equal signatures, one to one or many to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.labels.columns import (
    METADATA_LABELS,
    drop_columns,
    group_rows,
    keep_columns,
    labels_text,
    stacked,
    with_column,
)
from harch.sentinel.promql.evaluate.labels.merging import counts_by_group
from harch.sentinel.promql.evaluate.labels.signatures import signature_labels, signatures_of
from harch.sentinel.promql.evaluate.operators.histogram_operators import Side
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints, Objects, Vector
from harch.sentinel.promql.syntax.nodes import ARITHMETIC, Binary, Cardinality, VectorMatching


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of series with the labels of their result; `present` tells at which steps both sides have a sample."""

    series: SeriesTable
    left_side: Side
    right_side: Side
    present: Bools
    drops_name: Bools


@dataclass(frozen=True, slots=True)
class _Sides:
    """The two vectors by their roles: many series of one side may match the same one of the other."""

    many: Vector
    one: Vector
    many_signatures: Ints
    one_signatures: Ints
    signature_count: int
    one_side: str  # for messages


@dataclass(frozen=True, slots=True)
class _Block:
    """Pairs of one origin: both sides, or one side with a fill value for the other."""

    series: SeriesTable
    many: tuple[Floats, Objects | None]
    one: tuple[Floats, Objects | None]
    present: Bools
    signatures: Ints
    drops_name: Bools


def matched_pairs(node: Binary, left: Vector, right: Vector, context: Context) -> Pairs:
    """All pairs; refuses what is ambiguous at any step."""
    matching = node.matching or VectorMatching()
    found = signatures_of(left.series, right.series, matching)
    is_swapped = matching.cardinality is Cardinality.ONE_TO_MANY
    if is_swapped:
        sides = _Sides(right, left, found.right, found.left, found.count, "left")
    else:
        sides = _Sides(left, right, found.left, found.right, found.count, "right")
    _refuse_many_to_many(sides, matching)
    blocks = [_joined(node, matching, sides, context)]
    if matching.fill_right is not None:
        blocks.append(_with_one_filled(node, matching, sides, matching.fill_right))
    if matching.fill_left is not None:
        blocks.append(_with_many_filled(node, matching, sides, matching.fill_left))
    block = blocks[0] if len(blocks) == 1 else _put_together(blocks)
    _refuse_repeated(block, matching, sides.signature_count)
    many, one = Side(*block.many), Side(*block.one)
    sides_in_order = (one, many) if is_swapped else (many, one)
    return Pairs(block.series, *sides_in_order, block.present, block.drops_name)


def _refuse_many_to_many(sides: _Sides, matching: VectorMatching) -> None:
    """At no step may two series of the one side have the same signature, if there is anything to match them with."""
    if len(np.unique(sides.one_signatures)) == sides.one.count:
        return
    counts = counts_by_group(sides.one_signatures, sides.signature_count, sides.one.present)
    has_fill = matching.fill_left is not None or matching.fill_right is not None
    matters = np.ones(sides.one.steps, np.bool_) if has_fill else sides.many.present.any(axis=0)
    for signature, step in np.argwhere((counts > 1) & matters)[:1].tolist():
        rows = np.flatnonzero((sides.one_signatures == signature) & sides.one.present[:, step])[:2]
        first, second = (sides.one.series.labels_of(int(row)) for row in rows)
        group = signature_labels(sides.one.series.take(rows[:1]), matching).labels_of(0)
        raise refuse(
            f"found duplicate series for the match group {labels_text(group)} on the {sides.one_side} hand-side of the "
            f"operation: [{labels_text(first)}, {labels_text(second)}];many-to-many matching not allowed: matching "
            "labels must be unique on one side"
        )


def _joined(node: Binary, matching: VectorMatching, sides: _Sides, context: Context) -> _Block:
    order = np.argsort(sides.one_signatures, kind="stable")
    ordered = sides.one_signatures[order]
    begin = np.searchsorted(ordered, sides.many_signatures, side="left")
    number = np.searchsorted(ordered, sides.many_signatures, side="right") - begin
    context.budget.reserve_points(int(number.sum()), sides.many.steps)
    many_rows = np.repeat(np.arange(sides.many.count), number)
    within = np.arange(len(many_rows)) - np.repeat(np.cumsum(number) - number, number)
    one_rows = order[np.repeat(begin, number) + within]
    series = _result_labels(node, matching, sides.many.series.take(many_rows), sides.one.series.take(one_rows))
    return _Block(
        series,
        _cells(sides.many, many_rows),
        _cells(sides.one, one_rows),
        sides.many.present[many_rows] & sides.one.present[one_rows],
        sides.many_signatures[many_rows],
        sides.many.drops_name[many_rows],
    )


def _with_one_filled(node: Binary, matching: VectorMatching, sides: _Sides, fill: float) -> _Block:
    """Series of the many side wherever the one side has nothing for them."""
    has_one = counts_by_group(sides.one_signatures, sides.signature_count, sides.one.present) > 0
    many = sides.many
    series = _result_labels(node, matching, many.series, signature_labels(many.series, matching))
    filled = np.full(many.values.shape, fill)
    present = many.present & ~has_one[sides.many_signatures]
    rows = np.arange(many.count)
    return _Block(series, _cells(many, rows), (filled, None), present, sides.many_signatures, many.drops_name)


def _with_many_filled(node: Binary, matching: VectorMatching, sides: _Sides, fill: float) -> _Block:
    """Series of the one side wherever the many side has nothing for them."""
    has_many = counts_by_group(sides.many_signatures, sides.signature_count, sides.many.present) > 0
    one = sides.one
    series = _result_labels(node, matching, signature_labels(one.series, matching), one.series)
    filled = np.full(one.values.shape, fill)
    present = one.present & ~has_many[sides.one_signatures]
    rows, keeps = np.arange(one.count), np.zeros(one.count, np.bool_)
    return _Block(series, (filled, None), _cells(one, rows), present, sides.one_signatures, keeps)


def _cells(vector: Vector, rows: Ints) -> tuple[Floats, Objects | None]:
    return vector.values[rows], None if vector.histograms is None else vector.histograms[rows]


def _put_together(blocks: list[_Block]) -> _Block:
    kept = [block for block in blocks if block.series.count] or blocks[:1]
    series = kept[0].series
    for block in kept[1:]:
        series = stacked(series, block.series)
    return _Block(
        series,
        _stacked_cells([block.many for block in kept]),
        _stacked_cells([block.one for block in kept]),
        np.concatenate([block.present for block in kept]),
        np.concatenate([block.signatures for block in kept]),
        np.concatenate([block.drops_name for block in kept]),
    )


def _stacked_cells(parts: list[tuple[Floats, Objects | None]]) -> tuple[Floats, Objects | None]:
    values = np.concatenate([part[0] for part in parts])
    if all(part[1] is None for part in parts):
        return values, None
    empty = [np.full(part[0].shape, None, np.object_) if part[1] is None else part[1] for part in parts]
    return values, np.concatenate(empty)


def _result_labels(node: Binary, matching: VectorMatching, many: SeriesTable, one: SeriesTable) -> SeriesTable:
    """The labels of the many side; one to one only those that matched, plus what was asked of the one side."""
    series = drop_columns(many, METADATA_LABELS) if node.operator in ARITHMETIC else many
    if matching.cardinality is Cardinality.ONE_TO_ONE:
        chosen = keep_columns if matching.on else drop_columns
        series = chosen(series, matching.labels)
    for name in matching.include:
        column = one.columns.get(name) or LabelColumn(np.zeros(many.count, np.int32), ("",))
        series = with_column(series, name, column)
    return series


def _refuse_repeated(block: _Block, matching: VectorMatching, signature_count: int) -> None:
    """One to one, a signature may match once; many to one, the results of a signature must differ in labels."""
    if matching.cardinality is Cardinality.ONE_TO_ONE:
        keys, count = block.signatures, signature_count
        reason = "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
    else:
        columns = [block.signatures.astype(np.int32), *(column.codes for column in block.series.columns.values())]
        groups = group_rows(block.series.count, columns)
        keys, count = groups.of_row, groups.count
        reason = "multiple matches for labels: grouping labels must ensure unique matches"
    if len(np.unique(keys)) < len(keys) and (counts_by_group(keys, count, block.present) > 1).any():
        raise refuse(reason)
