"""What do operators give?

Between scalars, vectors and histograms: series with equal signatures are combined one to one or many to one; `and`,
`or`, `unless` choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.annotations import ADDITION, SUBTRACTION, Annotations
from harch.sentinel.promql.evaluate.context import EvaluationContext, refuse
from harch.sentinel.promql.evaluate.label_columns import (
    METADATA_LABELS,
    counts_by_group,
    drop_columns,
    group_rows,
    keep_columns,
    labels_text,
    merge_equal_series,
    signature_labels,
    signatures_of,
    stacked,
    with_column,
    without_empty,
)
from harch.sentinel.promql.evaluate.values import (
    Bools,
    Cell,
    Floats,
    Ints,
    Objects,
    Scalar,
    Value,
    Vector,
    is_filled,
    no_histograms,
    settled_histograms,
    stacked_histograms,
)
from harch.sentinel.promql.histograms.arithmetic import (
    IncompatibleHistograms,
    add,
    as_gauge,
    divided,
    scaled,
    subtract,
)
from harch.sentinel.promql.histograms.buckets import compacted, same
from harch.sentinel.promql.histograms.statistics import trim_above, trim_below
from harch.sentinel.promql.syntax.nodes import (
    ARITHMETIC,
    COMPARISONS,
    SET_OPERATORS,
    TRIMS,
    Binary,
    Cardinality,
    TextSpan,
    VectorMatching,
)

_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,  # the sign of the dividend
    "^": np.power,
    "atan2": np.arctan2,
}
_COMPARISONS: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
}


def computed(operator: str, left: Floats, right: Floats) -> Floats:
    """The result of an arithmetic operator."""
    with np.errstate(all="ignore"):
        return _ARITHMETIC[operator](left, right)


def compared(operator: str, left: Floats, right: Floats) -> Bools:
    """Where a comparison holds; NaN equals nothing, itself included."""
    return _COMPARISONS[operator](left, right)


def scalar_result(operator: str, left: Floats, right: Floats) -> Floats:
    """Between scalars comparisons give 1 or 0."""
    if operator in COMPARISONS:
        return compared(operator, left, right).astype(np.float64)
    return computed(operator, left, right)


def go_max(left: Floats, right: Floats) -> Floats:
    """The larger; NaN wins, unless the other is already as large as can be."""
    result = np.maximum(left, right)
    return np.where((left == np.inf) | (right == np.inf), np.inf, result)


def go_min(left: Floats, right: Floats) -> Floats:
    result = np.minimum(left, right)
    return np.where((left == -np.inf) | (right == -np.inf), -np.inf, result)


# What do operators do with histograms? One pair of samples at a time.


@dataclass(frozen=True, slots=True)
class Side:
    """One operand over all pairs and steps: floats, and histograms where there are some."""

    values: Floats
    histograms: Objects | None

    @property
    def is_histogram(self) -> Bools:
        return np.zeros(self.values.shape, np.bool_) if self.histograms is None else is_filled(self.histograms)

    def cell(self, row: int, step: int) -> Cell:
        found = None if self.histograms is None else self.histograms[row, step]
        return found if found is not None else float(self.values[row, step])


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Where the pairs have a result, which, and where a comparison holds."""

    values: Floats
    present: Bools
    holds: Bools
    histograms: Objects | None


def with_histograms(
    operator: str, left: Side, right: Side, floats: OperatorResult, context: EvaluationContext, span: TextSpan
) -> OperatorResult:
    """Completes the result of floats at those places where a side is a histogram, or where floats make no sense."""
    present, holds = floats.present.copy(), floats.holds.copy()
    values, cells = floats.values.copy(), no_histograms(present.shape)
    odd = floats.present if operator in TRIMS else floats.present & (left.is_histogram | right.is_histogram)
    for row, step in context.budget.watched(zip(*np.nonzero(odd), strict=True)):
        result, keeps = _combined(operator, left.cell(row, step), right.cell(row, step), context.notes, span)
        present[row, step] = result is not None
        holds[row, step] = keeps
        values[row, step] = result if isinstance(result, float) else 0.0
        if isinstance(result, NativeHistogram):
            cells[row, step] = result
    return OperatorResult(values, present, holds, settled_histograms(cells))


def _combined(operator: str, left: Cell, right: Cell, notes: Annotations, span: TextSpan) -> tuple[Cell | None, bool]:
    """The result of one pair, None if there is none, and whether a comparison holds."""
    if isinstance(left, NativeHistogram) and isinstance(right, NativeHistogram):
        if operator in ("==", "!="):
            return left, same(left, right) == (operator == "==")
        if operator in ("+", "-"):
            return _summed(operator, left, right, notes, span), True
    elif isinstance(left, NativeHistogram) and isinstance(right, float):
        match operator:
            case "*":
                return compacted(scaled(left, right)), True
            case "/":
                return compacted(divided(left, right)), True
            case "</":
                return compacted(trim_above(left, right)), True
            case ">/":
                return compacted(trim_below(left, right)), True
    elif isinstance(left, float) and isinstance(right, NativeHistogram) and operator == "*":
        return compacted(scaled(right, left)), True
    notes.incompatible_types(_kind(left), operator, _kind(right), span)
    return None, False


def _summed(
    operator: str, left: NativeHistogram, right: NativeHistogram, notes: Annotations, span: TextSpan
) -> NativeHistogram | None:
    try:
        result = add(left, right) if operator == "+" else subtract(left, right)
    except IncompatibleHistograms:
        notes.incompatible_buckets(operator, span)
        return None
    operation = ADDITION if operator == "+" else SUBTRACTION
    if result.resets_collide:
        notes.conflicting_resets(operation, span)
    if result.bounds_reconciled:
        notes.reconciled_buckets(operation, span)
    return compacted(result.histogram if operator == "+" else as_gauge(result.histogram))


def _kind(cell: Cell) -> str:
    return "float" if isinstance(cell, float) else "histogram"


def needs_objects(operator: str, left: Side, right: Side) -> bool:
    """Must this operator look at samples one by one?"""
    return left.histograms is not None or right.histograms is not None or operator in TRIMS


def float_outcome(operator: str, left: Floats, right: Floats, present: Bools) -> OperatorResult:
    """The result as if all samples were floats."""
    if operator in COMPARISONS:
        return OperatorResult(left, present, compared(operator, left, right), None)
    if operator in TRIMS:
        return OperatorResult(left, present, np.ones(present.shape, np.bool_), None)
    return OperatorResult(computed(operator, left, right), present, np.ones(present.shape, np.bool_), None)


# Which samples of two vectors are combined? Series with equal signatures, one to one or many to one.


@dataclass(frozen=True, slots=True)
class SeriesPairs:
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


def matched_pairs(node: Binary, left: Vector, right: Vector, context: EvaluationContext) -> SeriesPairs:
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
    return SeriesPairs(block.series, *sides_in_order, block.present, block.drops_name)


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


def _joined(node: Binary, matching: VectorMatching, sides: _Sides, context: EvaluationContext) -> _Block:
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


# `and`, `or`, `unless`: which samples of one vector pass, given what the other has at the same step?


def set_operation(node: Binary, left: Vector, right: Vector) -> Vector:
    found = signatures_of(left.series, right.series, node.matching or VectorMatching())
    if node.operator == "or":
        in_left = counts_by_group(found.left, found.count, left.present) > 0
        rest = replace(right, present=right.present & ~in_left[found.right])
        return _either(without_empty(left), without_empty(rest))
    in_right = counts_by_group(found.right, found.count, right.present) > 0
    passes = in_right[found.left] if node.operator == "and" else ~in_right[found.left]
    return replace(left, present=left.present & passes)


def _either(upper: Vector, lower: Vector) -> Vector:
    if not lower.count:
        return upper
    if not upper.count:
        return lower
    return merge_equal_series(
        Vector(
            stacked(upper.series, lower.series),
            np.concatenate([upper.values, lower.values]),
            np.concatenate([upper.present, lower.present]),
            np.concatenate([upper.drops_name, lower.drops_name]),
            stacked_histograms([upper, lower]),
        )
    )


# What do operators give? Between scalars, between a vector and a scalar, and between vectors that match.


def binary_result(node: Binary, left: Value, right: Value, context: EvaluationContext) -> Value:
    """The value of `left operator right`."""
    if isinstance(left, Vector) and isinstance(right, Vector):
        if node.operator in SET_OPERATORS:
            return set_operation(node, left, right)
        return _between_vectors(node, left, right, context)
    if isinstance(left, Vector) and isinstance(right, np.ndarray):
        return _with_scalar(node, left, right, False, context)
    if isinstance(right, Vector) and isinstance(left, np.ndarray):
        return _with_scalar(node, right, left, True, context)
    return scalar_result(node.operator, np.asarray(left), np.asarray(right))


def _with_scalar(node: Binary, vector: Vector, scalar: Scalar, is_swapped: bool, context: EvaluationContext) -> Vector:
    """A comparison passes on the vector's sample, whichever side it stands on."""
    numbers = np.broadcast_to(scalar, vector.values.shape)
    ours, theirs = Side(vector.values, vector.histograms), Side(numbers, None)
    left, right = (theirs, ours) if is_swapped else (ours, theirs)
    outcome = _outcome(node, left, right, vector, context)
    values, histograms, present = outcome.values, outcome.histograms, outcome.present
    if node.operator in COMPARISONS:
        if node.return_bool:
            return Vector(vector.series, outcome.holds.astype(np.float64), present, np.ones(vector.count, np.bool_))
        return replace(vector, present=present & outcome.holds)
    drops = node.operator in ARITHMETIC
    result = replace(vector, values=values, present=present & outcome.holds, histograms=histograms)
    return replace(result, drops_name=np.ones(vector.count, np.bool_)) if drops else result


def _outcome(node: Binary, left: Side, right: Side, where: Vector, context: EvaluationContext) -> OperatorResult:
    floats = float_outcome(node.operator, left.values, right.values, where.present)
    if not needs_objects(node.operator, left, right):
        return floats
    return with_histograms(node.operator, left, right, floats, context, node.span)


def _between_vectors(node: Binary, left: Vector, right: Vector, context: EvaluationContext) -> Vector:
    pairs = matched_pairs(node, left, right, context)
    sides = (pairs.left_side, pairs.right_side)
    floats = float_outcome(node.operator, sides[0].values, sides[1].values, pairs.present)
    outcome = floats
    if needs_objects(node.operator, *sides):
        outcome = with_histograms(node.operator, *sides, floats, context, node.span)
    return merge_equal_series(_labelled(node, pairs, outcome))


def _labelled(node: Binary, pairs: SeriesPairs, outcome: OperatorResult) -> Vector:
    series = pairs.series
    if node.operator in COMPARISONS and node.return_bool:
        values = outcome.holds.astype(np.float64)
        return Vector(series, values, outcome.present, np.ones(series.count, np.bool_))
    return Vector(series, outcome.values, outcome.present & outcome.holds, pairs.drops_name, outcome.histograms)
