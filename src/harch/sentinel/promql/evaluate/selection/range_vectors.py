"""Which samples does a range mean? Those of a selector, or the steps of a subquery, with a window for every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.model.selection import Ints, Samples, SeriesTable
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.selection.reset_hints import inside_subquery
from harch.sentinel.promql.evaluate.selection.selected import moments_of, read
from harch.sentinel.promql.evaluate.values import Bools, Value, Vector
from harch.sentinel.promql.syntax.nodes import Expr, MatrixSelector, RangeMode, Span, Subquery

Evaluate = Callable[[Expr, Grid, Context], Value]


@dataclass(frozen=True, slots=True)
class RangeVector:
    """Series with samples, and for every step the window `(end - range, end]` of those that count."""

    series: SeriesTable
    samples: Samples
    drops_name: Bools
    ends: Ints
    range_ms: int
    mode: RangeMode
    span: Span

    @property
    def before_ms(self) -> int:
        """Samples at or before this time are in no window."""
        return int(self.ends[0]) - self.range_ms

    @property
    def until_ms(self) -> int:
        return int(self.ends[-1])


def selected_range(node: MatrixSelector, grid: Grid, context: Context) -> RangeVector:
    """The range of a selector. `anchored` and `smoothed` need samples around it, too."""
    ends = moments_of(node.selector, grid)
    mode = node.selector.range_mode
    before = 0 if mode is RangeMode.PLAIN else context.lookback_ms
    after = context.lookback_ms if mode is RangeMode.SMOOTHED else 0
    start_ms = int(ends[0]) - node.range_ms - before + 1
    selection = read(node.selector, start_ms, int(ends[-1]) + after, context)
    if not context.options.start_timestamps and selection.samples.starts is not None:
        selection = replace(selection, samples=replace(selection.samples, starts=None))
    drops_name = np.zeros(selection.series.count, np.bool_)
    return RangeVector(selection.series, selection.samples, drops_name, ends, node.range_ms, mode, node.span)


def subquery_range(node: Subquery, grid: Grid, context: Context, evaluate: Evaluate) -> RangeVector:
    """The range of a subquery: its expression at multiples of its step, each value a sample."""
    ends = moments_of(node, grid)
    inner = subquery_grid(int(ends[0]) - node.range_ms, int(ends[-1]), node, context)
    context.budget.check_steps(inner.count)
    vector = evaluate(node.expr, inner, inside_subquery(context)) if inner.count else None
    if vector is None or isinstance(vector, str):
        return _without_series(node, ends)
    if not isinstance(vector, Vector):  # a scalar is one series without labels
        values = vector[np.newaxis, :]
        vector = Vector(SeriesTable(1, {}), values, np.ones(values.shape, np.bool_), np.zeros(1, np.bool_))
    samples = _samples_of(vector, inner.times)
    return RangeVector(vector.series, samples, vector.drops_name, ends, node.range_ms, RangeMode.PLAIN, node.span)


def subquery_grid(after_ms: int, until_ms: int, node: Subquery, context: Context) -> Grid:
    """The first multiple of the step after the range's open left end, and all that follow."""
    step_ms = node.step_ms or context.options.subquery_step_ms
    start_ms = -(-after_ms // step_ms) * step_ms if after_ms < 0 else after_ms // step_ms * step_ms  # towards 0
    if start_ms <= after_ms:
        start_ms += step_ms
    return Grid.between(start_ms, until_ms, step_ms)


def _without_series(node: Subquery, ends: Ints) -> RangeVector:
    none = np.zeros(0, np.int64)
    samples = Samples(none, none, none, np.zeros(0))
    return RangeVector(
        SeriesTable(0, {}), samples, np.zeros(0, np.bool_), ends, node.range_ms, RangeMode.PLAIN, node.span
    )


def _samples_of(vector: Vector, times: Ints) -> Samples:
    """The places that are filled, row after row, as samples. Start times do not pass through expressions."""
    count = vector.present.sum(axis=1, dtype=np.int64)
    first = np.cumsum(count) - count
    timestamps = np.broadcast_to(times, vector.present.shape)[vector.present]
    values = vector.values[vector.present]
    if vector.histograms is None:
        return Samples(first, count, timestamps, values)
    cells = vector.histograms[vector.present]
    histograms: list[Histogram] = []
    histogram_at = np.full(len(cells), -1, np.int32)
    for place, cell in enumerate(cells):
        if cell is not None:
            histogram_at[place] = len(histograms)
            histograms.append(_without_known_resets(cell))
    return Samples(first, count, timestamps, values, histogram_at=histogram_at, histograms=histograms)


def _without_known_resets(histogram: Histogram) -> Histogram:
    """Between steps samples may be missing or repeated, so what the hint says of the one before is no longer true."""
    if histogram.reset_hint in (ResetHint.RESET, ResetHint.NOT_RESET):
        return replace(histogram, reset_hint=ResetHint.UNKNOWN)
    return histogram
