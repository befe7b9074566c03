"""Which series are the buckets of one histogram? Groups of series that differ in `le` only, sorted by bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.evaluate.annotations import ForcedMonotonicity
from harch.sentinel.promql.evaluate.chunks import in_chunks
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.functions.bucket_kernels import (
    BUCKET_MAX,
    BUCKET_MIN,
    DIFFERENCE_MAX,
    FIRST_STEP,
    LAST_STEP,
    SAMPLES,
    classic_fractions,
    classic_quantiles,
)
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.labels.columns import column_values, drop_columns, group_without_labels
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints, Scalar, Vector
from harch.sentinel.promql.syntax.nodes import Span


@dataclass(frozen=True, slots=True)
class Buckets:
    """Classic histograms: group g has the rows `order[limits[g]:limits[g + 1]]`, by upper bound."""

    series: SeriesTable  # of the groups, without `le`
    order: Ints
    uppers: Floats
    limits: Ints
    values: Floats
    present: Bools

    @property
    def count(self) -> int:
        return len(self.limits) - 1


def classic_buckets(vector: Vector, span: Span, context: Context) -> Buckets:
    """The buckets among the floats; series without a usable bound are reported and left out."""
    column = vector.series.columns.get(BUCKET_LABEL)
    codes = np.zeros(vector.count, np.int32) if column is None else column.codes
    used, inverse = np.unique(codes, return_inverse=True)
    texts = ["" if column is None else column.values[code] for code in used.tolist()]
    parsed = [bound_of(text) for text in texts]
    floats = np.ascontiguousarray(vector.has_float)
    has_floats = floats.any(axis=1)
    usable = np.array([bound is not None for bound in parsed], np.bool_)[inverse] & has_floats
    _report_bad(vector, [texts[at] for at in inverse], has_floats & ~usable, span, context)
    rows = np.flatnonzero(usable)
    bounds = np.array([math.nan if bound is None else bound for bound in parsed])[inverse][rows]
    series = vector.series.take(rows)
    groups = group_without_labels(series, (BUCKET_LABEL,))
    order = np.lexsort((bounds, groups.of_row))
    limits = np.searchsorted(groups.of_row[order], np.arange(groups.count + 1)).astype(np.int64)
    labels = drop_columns(series.take(groups.first), (BUCKET_LABEL,))
    values = np.ascontiguousarray(vector.values)
    return Buckets(labels, rows[order].astype(np.int64), bounds[order], limits, values, floats)


def bound_of(text: str) -> float | None:
    """The upper bound that `le` names; None if it is no number."""
    if not text or text != text.strip() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _report_bad(vector: Vector, texts: list[str], bad: Bools, span: Span, context: Context) -> None:
    rows = np.flatnonzero(bad).tolist()
    if rows:
        metrics = column_values(vector.series, METRIC_NAME)
        for metric, text in dict.fromkeys((metrics[row], texts[row]) for row in rows):
            context.notes.bad_bucket_label(metric, text, span)


def quantiles_of(buckets: Buckets, quantiles: Scalar, span: Span, grid: Grid, context: Context) -> tuple[Floats, Bools]:
    """One quantile of every classic histogram at every step; says where buckets had to be mended."""
    shape = (buckets.count, grid.count)
    out, filled = np.empty(shape), np.empty(shape, np.bool_)
    mended = np.zeros((buckets.count, 6))
    mended[:, BUCKET_MIN], mended[:, BUCKET_MAX] = np.inf, -np.inf
    given = np.ascontiguousarray(quantiles)
    matrices = (buckets.values, buckets.present, buckets.order, buckets.uppers, buckets.limits)

    def run(start: int, end: int) -> None:
        classic_quantiles(given, *matrices, start, end, out, filled, mended)

    in_chunks(context.budget, buckets.count, _work(buckets, grid), run)
    for group in np.flatnonzero(mended[:, SAMPLES]).tolist():
        note, times = mended[group], grid.times
        detail = ForcedMonotonicity(
            samples=int(note[SAMPLES]),
            first_ms=int(times[int(note[FIRST_STEP])]),
            last_ms=int(times[int(note[LAST_STEP])]),
            bucket_min=float(note[BUCKET_MIN]),
            bucket_max=float(note[BUCKET_MAX]),
            difference_max=float(note[DIFFERENCE_MAX]),
        )
        metric = column_values(buckets.series.take(np.array([group])), METRIC_NAME)[0]
        context.notes.forced_monotonicity(metric, detail, span)
    return out, filled


def fractions_of(
    buckets: Buckets, lowers: Scalar, highers: Scalar, grid: Grid, context: Context
) -> tuple[Floats, Bools]:
    """The share of observations between two values, of every classic histogram at every step."""
    shape = (buckets.count, grid.count)
    out, filled = np.empty(shape), np.empty(shape, np.bool_)
    low, high = np.ascontiguousarray(lowers), np.ascontiguousarray(highers)
    matrices = (buckets.values, buckets.present, buckets.order, buckets.uppers, buckets.limits)

    def run(start: int, end: int) -> None:
        classic_fractions(low, high, *matrices, start, end, out, filled)

    in_chunks(context.budget, buckets.count, _work(buckets, grid), run)
    return out, filled


def _work(buckets: Buckets, grid: Grid) -> int:
    return len(buckets.order) // max(buckets.count, 1) * grid.count
