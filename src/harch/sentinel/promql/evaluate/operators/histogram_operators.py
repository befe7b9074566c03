"""What do operators do with histograms? One pair of samples at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.operators.arithmetic import compared, computed
from harch.sentinel.promql.evaluate.speaker import ADDITION, SUBTRACTION
from harch.sentinel.promql.evaluate.values import (
    Bools,
    Cell,
    Floats,
    Objects,
    is_filled,
    no_histograms,
    settled_histograms,
)
from harch.sentinel.promql.histograms.arithmetic import (
    IncompatibleHistograms,
    add,
    as_gauge,
    divided,
    scaled,
    subtract,
)
from harch.sentinel.promql.histograms.layout import compacted, same
from harch.sentinel.promql.histograms.trimming import trim_above, trim_below
from harch.sentinel.promql.syntax.nodes import COMPARISONS, TRIMS, Span


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
class Outcome:
    """Where the pairs have a result, which, and where a comparison holds."""

    values: Floats
    present: Bools
    holds: Bools
    histograms: Objects | None


def with_histograms(operator: str, left: Side, right: Side, floats: Outcome, context: Context, span: Span) -> Outcome:
    """Completes the result of floats at those places where a side is a histogram, or where floats make no sense."""
    present, holds = floats.present.copy(), floats.holds.copy()
    values, cells = floats.values.copy(), no_histograms(present.shape)
    odd = floats.present if operator in TRIMS else floats.present & (left.is_histogram | right.is_histogram)
    for row, step in context.budget.watched(zip(*np.nonzero(odd), strict=True)):
        result, keeps = _combined(operator, left.cell(row, step), right.cell(row, step), context.notes, span)
        present[row, step] = result is not None
        holds[row, step] = keeps
        values[row, step] = result if isinstance(result, float) else 0.0
        if isinstance(result, Histogram):
            cells[row, step] = result
    return Outcome(values, present, holds, settled_histograms(cells))


def _combined(operator: str, left: Cell, right: Cell, notes: Annotations, span: Span) -> tuple[Cell | None, bool]:
    """The result of one pair, None if there is none, and whether a comparison holds."""
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        if operator in ("==", "!="):
            return left, same(left, right) == (operator == "==")
        if operator in ("+", "-"):
            return _summed(operator, left, right, notes, span), True
    elif isinstance(left, Histogram) and isinstance(right, float):
        match operator:
            case "*":
                return compacted(scaled(left, right)), True
            case "/":
                return compacted(divided(left, right)), True
            case "</":
                return compacted(trim_above(left, right)), True
            case ">/":
                return compacted(trim_below(left, right)), True
    elif isinstance(left, float) and isinstance(right, Histogram) and operator == "*":
        return compacted(scaled(right, left)), True
    notes.incompatible_types(_kind(left), operator, _kind(right), span)
    return None, False


def _summed(operator: str, left: Histogram, right: Histogram, notes: Annotations, span: Span) -> Histogram | None:
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


def float_outcome(operator: str, left: Floats, right: Floats, present: Bools) -> Outcome:
    """The result as if all samples were floats."""
    if operator in COMPARISONS:
        return Outcome(left, present, compared(operator, left, right), None)
    if operator in TRIMS:
        return Outcome(left, present, np.ones(present.shape, np.bool_), None)
    return Outcome(computed(operator, left, right), present, np.ones(present.shape, np.bool_), None)
