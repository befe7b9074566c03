"""Which samples does a selector mean at each step? Reads the store and finds the latest of each series."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.selection import Ints, Samples, Selection
from harch.sentinel.promql.evaluate.chunks import in_chunks
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.selection.points import lent_samples
from harch.sentinel.promql.evaluate.selection.reset_hints import with_found_resets
from harch.sentinel.promql.evaluate.selection.selection_kernels import latest_places, latest_values
from harch.sentinel.promql.evaluate.selection.smoothing import smoothed_vector
from harch.sentinel.promql.evaluate.values import Bools, Objects, Vector, no_histograms, settled_histograms
from harch.sentinel.promql.syntax.nodes import RangeMode, Subquery, VectorSelector


def moments_of(node: VectorSelector | Subquery, grid: Grid) -> Ints:
    """The times that a selector looks at, one a step: `offset` moves them, `@` makes them all the same."""
    times = grid.times if node.at_ms is None else np.full(grid.count, node.at_ms, np.int64)
    return times - node.offset_ms


def read(node: VectorSelector, start_ms: int, end_ms: int, context: Context) -> Selection:
    """The series of a selector with their samples between two times, both included."""
    context.budget.check()
    from_ms = start_ms - context.lookback_ms if context.finds_resets else start_ms  # the sample before tells of a reset
    selection = context.queryable.select(node.matchers, from_ms, end_ms, limit=context.budget.samples_left)
    context.budget.count_samples(int(selection.samples.count.sum()))
    return with_found_resets(selection, context)


def instant_vector(node: VectorSelector, grid: Grid, context: Context) -> Vector:
    """The value of every series at every step: its latest sample, unless it is stale or too old."""
    moments = moments_of(node, grid)
    is_smoothed = node.range_mode is RangeMode.SMOOTHED
    reach = context.lookback_ms if is_smoothed else 0
    selection = read(node, int(moments[0]) - context.lookback_ms + 1, int(moments[-1]) + reach, context)
    context.budget.reserve_points(selection.series.count, grid.count)
    if is_smoothed:
        return smoothed_vector(selection, moments, node.span, context)
    if selection.samples.histogram_at is not None:
        return vector_at(selection, places_at(selection.samples, moments, context))
    values = np.empty((selection.series.count, grid.count))
    present = np.empty(values.shape, np.bool_)
    arrays = lent_samples(selection.samples)

    def run(start: int, end: int) -> None:
        latest_values(*arrays, moments, context.lookback_ms, start, end, values, present)

    in_chunks(context.budget, selection.series.count, grid.count, run)
    return Vector(selection.series, values, present, np.zeros(selection.series.count, np.bool_))


def places_at(samples: Samples, moments: Ints, context: Context) -> Ints:
    """The place of the sample that counts at each moment, -1 where none does."""
    places = np.empty((len(samples.first), len(moments)), np.int64)
    arrays = lent_samples(samples)

    def run(start: int, end: int) -> None:
        latest_places(*arrays, moments, context.lookback_ms, start, end, places)

    in_chunks(context.budget, len(samples.first), len(moments), run)
    return places


def vector_at(selection: Selection, places: Ints) -> Vector:
    """The samples at these places, floats and histograms."""
    samples = selection.samples
    present = places >= 0
    at = np.where(present, places, 0)
    values = samples.values[at] if len(samples.values) else np.zeros(places.shape)
    return Vector(
        selection.series,
        np.where(present, values, 0.0),
        present,
        np.zeros(selection.series.count, np.bool_),
        _histograms_at(samples, at, present),
    )


def _histograms_at(samples: Samples, at: Ints, present: Bools) -> Objects | None:
    if samples.histogram_at is None or not len(samples.histogram_at):
        return None
    which = np.where(present, samples.histogram_at[at], -1)
    cells = no_histograms(which.shape)
    for row, step in zip(*np.nonzero(which >= 0), strict=True):
        cells[row, step] = samples.histograms[which[row, step]]
    return settled_histograms(cells)
