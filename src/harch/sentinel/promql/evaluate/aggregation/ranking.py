"""Which series of each group are passed on? The largest, the first, or a fixed share of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harch.sentinel.promql.evaluate.aggregation.aggregate_kernels import first_rows, top_rows
from harch.sentinel.promql.evaluate.chunks import STEPS_LEAST, in_chunks
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.float_text import shortest_general
from harch.sentinel.promql.evaluate.labels.columns import Groups
from harch.sentinel.promql.evaluate.labels.hashing import sampling_offset
from harch.sentinel.promql.evaluate.values import Bools, Floats, Ints, Vector
from harch.sentinel.promql.syntax.nodes import Aggregate, unwrap

_INT64_EDGE = float(1 << 63)


def topped(node: Aggregate, vector: Vector, groups: Groups, limits: Floats, context: Context) -> Vector:
    """`topk` and `bottomk`. A result of one step is ordered, best first, group after group."""
    whole = _whole_limits(limits, vector.count)
    if vector.histograms is not None and whole.max(initial=0) >= 1:
        context.notes.ignored_in_aggregation(node.operator, node.span)
    floats = vector.floats_only()
    sizes = np.minimum(np.bincount(groups.of_row, minlength=groups.count), whole.max(initial=0)).astype(np.int64)
    kept, heaps = np.zeros(vector.present.shape, np.bool_), np.full(int(sizes.sum()) + 1, -1, np.int64)
    values, present = np.ascontiguousarray(floats.values), np.ascontiguousarray(floats.present)
    sign = 1.0 if node.operator == "topk" else -1.0

    def run(start: int, end: int) -> None:
        top_rows(sign, whole, values, present, groups.of_row, sizes, start, end, heaps, kept)

    if len(sizes):
        in_chunks(context.budget, vector.steps, vector.count, run, least=STEPS_LEAST)
    result = _passed_on(floats, kept)
    if vector.steps != 1:
        return result
    return floats.take(_ranked(values[:, 0], heaps, sizes, sign))


def _ranked(values: Floats, heaps: Ints, sizes: Ints, sign: float) -> Ints:
    """The rows of one step from best to worst in each group, NaNs last."""
    rows: list[int] = []
    start = 0
    for size in sizes.tolist():
        members = [row for row in heaps[start : start + size].tolist() if row >= 0]
        members.sort(key=lambda row: (bool(np.isnan(values[row])), -sign * values[row]))
        rows.extend(members)
        start += size
    return np.array(rows, np.int64)


def limited(vector: Vector, groups: Groups, limits: Floats) -> Vector:
    """`limitk`: any k series of each group; here the first."""
    kept = np.zeros(vector.present.shape, np.bool_)
    whole = _whole_limits(limits, vector.count)
    first_rows(whole, np.ascontiguousarray(vector.present), groups.of_row, groups.count, kept)
    return _passed_on(vector, kept)


def sampled(node: Aggregate, vector: Vector, ratios: Floats, context: Context) -> Vector:
    """`limit_ratio`: a share of the series that depends on their labels only; a negative ratio takes the others."""
    if np.isnan(ratios).any():
        raise refuse("Ratio value is NaN")
    if node.parameter is not None:
        span = unwrap(node.parameter).span
        if ratios.max(initial=0) > 1:
            context.notes.invalid_ratio(float(ratios.max()), 1.0, span)
        if ratios.min(initial=0) < -1:
            context.notes.invalid_ratio(float(ratios.min()), -1.0, span)
    capped = np.clip(ratios, -1.0, 1.0)[np.newaxis, :]
    rows = context.budget.watched(range(vector.count))
    offsets = np.array([sampling_offset(vector.series.labels_of(row)) for row in rows])[:, np.newaxis]
    kept = np.where(capped >= 0, offsets < capped, offsets >= 1.0 + capped)
    return _passed_on(vector, kept & vector.present)


def _whole_limits(limits: Floats, count: int) -> Ints:
    """k as integers, no larger than there are series."""
    if np.nanmax(limits, initial=-np.inf) < 1 and not np.isnan(limits).any():
        return np.zeros(len(limits), np.int64)
    if np.isnan(limits).any():
        raise refuse("Parameter value is NaN")
    if limits.min() <= -_INT64_EDGE:
        raise refuse(f"Scalar value {shortest_general(float(limits.min()))} underflows int64")
    if limits.max() >= _INT64_EDGE:
        raise refuse(f"Scalar value {shortest_general(float(limits.max()))} overflows int64")
    return np.clip(np.trunc(limits), 0, count).astype(np.int64)


def _passed_on(vector: Vector, kept: Bools) -> Vector:
    rows = np.flatnonzero(kept.any(axis=1))
    return replace(vector, present=kept).take(rows)
