"""Which day is it there, and when was that sample? Functions of times; days and months are those of UTC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.selection.selected import moments_of, places_at, read
from harch.sentinel.promql.evaluate.values import Floats, Scalar, Vector
from harch.sentinel.promql.syntax.nodes import VectorSelector

Seconds = npt.NDArray[np.int64]
_DAY_S = 86_400
_SECONDS_MAX = 8e15  # beyond, calendars of 64 bits end

_DATE_PARTS: dict[str, Callable[[Seconds], npt.NDArray[np.integer]]] = {
    "minute": lambda seconds: seconds % 3600 // 60,
    "hour": lambda seconds: seconds % _DAY_S // 3600,
    "day_of_week": lambda seconds: (seconds // _DAY_S + 4) % 7,  # 1970 began on a Thursday
    "day_of_month": lambda seconds: (_days(seconds) - _months(seconds).astype("M8[D]")).astype(np.int64) + 1,
    "day_of_year": lambda seconds: (_days(seconds) - _years(seconds).astype("M8[D]")).astype(np.int64) + 1,
    "days_in_month": lambda seconds: _month_lengths(_months(seconds)),
    "month": lambda seconds: _months(seconds).astype(np.int64) % 12 + 1,
    "year": lambda seconds: _years(seconds).astype(np.int64) + 1970,
}
DATE_FUNCTIONS = frozenset(_DATE_PARTS)


def _days(seconds: Seconds) -> npt.NDArray[np.datetime64]:
    return seconds.astype("M8[s]").astype("M8[D]")


def _months(seconds: Seconds) -> npt.NDArray[np.datetime64]:
    return seconds.astype("M8[s]").astype("M8[M]")


def _years(seconds: Seconds) -> npt.NDArray[np.datetime64]:
    return seconds.astype("M8[s]").astype("M8[Y]")


def _month_lengths(months: npt.NDArray[np.datetime64]) -> npt.NDArray[np.int64]:
    days: npt.NDArray[np.int64] = ((months + 1).astype("M8[D]") - months.astype("M8[D]")).astype(np.int64)
    return days


def date_part(name: str, vector: Vector | None, grid: Grid) -> Vector:
    """A part of the date; without an argument, of the time of evaluation."""
    if vector is None:
        seconds = np.trunc(grid.times / 1000.0)[np.newaxis, :]
        return constant_vector(_part(name, seconds)[0])
    floats = vector.floats_only()
    return floats.with_values(_part(name, floats.values))


def _part(name: str, values: Floats) -> Floats:
    """NaN where the value is no time that a calendar knows."""
    known = np.abs(values) < _SECONDS_MAX
    seconds = np.where(known, values, 0.0).astype(np.int64)
    return np.where(known, _DATE_PARTS[name](seconds).astype(np.float64), np.nan)


def constant_vector(scalar: Scalar) -> Vector:
    """One series without labels."""
    values = np.array(scalar, np.float64)[np.newaxis, :]
    return Vector(SeriesTable(1, {}), values, np.ones(values.shape, np.bool_), np.zeros(1, np.bool_))


def only_float(vector: Vector) -> Scalar:
    """`scalar`: the value of the only float, NaN where there are none or several."""
    there = vector.has_float
    alone = there.sum(axis=0) == 1
    if not vector.count:
        return np.full(vector.steps, np.nan)
    row = there.argmax(axis=0)
    return np.where(alone, vector.values[row, np.arange(vector.steps)], np.nan)


def evaluation_times(vector: Vector, grid: Grid) -> Vector:
    """`timestamp` of an expression: its values are as old as the evaluation."""
    times = np.broadcast_to(grid.times / 1000.0, vector.values.shape)
    return Vector(vector.series, times.copy(), vector.present, np.ones(vector.count, np.bool_))


def sample_times(node: VectorSelector, grid: Grid, context: Context, *, starts: bool = False) -> Vector:
    """`timestamp` of a selector: when the samples were taken, or since when their counters count."""
    moments = moments_of(node, grid)
    selection = read(node, int(moments[0]) - context.lookback_ms + 1, int(moments[-1]), context)
    context.budget.reserve_points(selection.series.count, grid.count)
    places = places_at(selection.samples, moments, context)
    samples, present = selection.samples, places >= 0
    source = samples.timestamps
    if starts:
        source = np.zeros(len(samples.timestamps), np.int64) if samples.starts is None else samples.starts
    values = np.where(present, source[np.where(present, places, 0)] / 1000.0 if len(source) else 0.0, 0.0)
    return Vector(selection.series, values, present, np.ones(selection.series.count, np.bool_))
