"""What do functions of vectors and scalars give?

One table from names to functions; those of single floats, of times, and of what is absent are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.labels import METRIC_NAME, MatchKind
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.binary_operators import go_max, go_min
from harch.sentinel.promql.evaluate.context import EvaluationContext
from harch.sentinel.promql.evaluate.functions.histogram_functions import (
    NUMBER_FUNCTIONS,
    fraction_vector,
    number_of,
    quantile_vector,
    quantile_vectors,
)
from harch.sentinel.promql.evaluate.functions.label_functions import (
    joined_labels,
    replaced_label,
    sorted_by_label,
    sorted_by_value,
    with_info,
)
from harch.sentinel.promql.evaluate.selection.instant_vectors import moments_of, places_at, read
from harch.sentinel.promql.evaluate.values import Floats, Scalar, StepGrid, Value, Vector, empty_vector
from harch.sentinel.promql.syntax.literals import as_text
from harch.sentinel.promql.syntax.nodes import Expr, FunctionCall, MatrixSelector, VectorSelector, unwrap

# Functions that change one float at a time: rounding, logarithms, angles, limits.


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg": lambda values: values * 180 / np.pi,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "rad": lambda values: values * np.pi / 180,
    "sgn": _sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def elementwise(name: str, vector: Vector) -> Vector:
    """One of `ELEMENTWISE`; histograms are left out."""
    with np.errstate(all="ignore"):
        return vector.floats_only().with_values(ELEMENTWISE[name](vector.values))


def rounded(vector: Vector, nearest: Scalar | None) -> Vector:
    """To the nearest multiple; ties go up. By the inverse, which loses fewer digits for steps such as 0.1."""
    with np.errstate(all="ignore"):
        inverse = 1.0 if nearest is None else 1.0 / nearest[np.newaxis, :]
        return vector.floats_only().with_values(np.floor(vector.values * inverse + 0.5) / inverse)


def clamped(vector: Vector, lowest: Scalar, highest: Scalar) -> Vector:
    """Between two limits; nothing is left at steps where they are the wrong way round."""
    low, high = lowest[np.newaxis, :], highest[np.newaxis, :]
    floats = vector.floats_only()
    values = go_max(np.broadcast_to(low, floats.values.shape), go_min(high, floats.values))
    possible = ~(high < low)
    result = floats.with_values(values)
    return result.only_where(np.broadcast_to(possible, floats.present.shape))


# Which day is it there, and when was that sample? Functions of times; days and months are those of UTC.


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


def date_part(name: str, vector: Vector | None, grid: StepGrid) -> Vector:
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


def evaluation_times(vector: Vector, grid: StepGrid) -> Vector:
    """`timestamp` of an expression: its values are as old as the evaluation."""
    times = np.broadcast_to(grid.times / 1000.0, vector.values.shape)
    return Vector(vector.series, times.copy(), vector.present, np.ones(vector.count, np.bool_))


def sample_times(node: VectorSelector, grid: StepGrid, context: EvaluationContext, *, starts: bool = False) -> Vector:
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


# Is there nothing? `absent` and `absent_over_time`, with the labels that the selector itself names.


_ONE = np.ones(1, np.int32)


def absent(vector: Vector, argument: Expr) -> Vector:
    """1 at every step without a sample. The labels are the selector's own, so no dictionary of the store is touched."""
    missing = np.logical_not(vector.present.any(axis=0, keepdims=True))
    return Vector(absent_labels(argument), np.ones((1, vector.steps)), missing, np.zeros(1, np.bool_))


def absent_labels(argument: Expr) -> SeriesTable:
    """The labels that are asked for by `=` exactly once."""
    node = unwrap(argument)
    if isinstance(node, MatrixSelector):
        node = node.selector
    if not isinstance(node, VectorSelector):
        return SeriesTable(1, {})
    seen: set[str] = set()
    found: dict[str, str] = {}
    for matcher in node.matchers:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.kind is MatchKind.EQUAL and matcher.name not in seen:
            found[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            found.pop(matcher.name, None)
    return SeriesTable(1, {name: LabelColumn(_ONE, ("", value)) for name, value in found.items() if value})


# What do functions of vectors and scalars give? One table from names to the modules that know.


_Handler = Callable[[FunctionCall, list[Value], StepGrid, EvaluationContext], Value]


def _vector(value: Value) -> Vector:
    return cast(Vector, value)


def _scalar(value: Value) -> Scalar:
    return cast(Scalar, value)


def _numbers(grid: StepGrid, number: float) -> Scalar:
    return np.full(grid.count, number)


def _clamp(call: FunctionCall, given: list[Value], grid: StepGrid, context: EvaluationContext) -> Value:
    lowest, highest = _numbers(grid, -np.inf), _numbers(grid, np.inf)
    if call.function != "clamp_max":
        lowest = _scalar(given[1])
    if call.function != "clamp_min":
        highest = _scalar(given[-1])
    return clamped(_vector(given[0]), lowest, highest)


def _sort(call: FunctionCall, given: list[Value], grid: StepGrid, context: EvaluationContext) -> Value:
    if grid.count > 1:
        context.notes.sort_in_range_query(call.span)
    descending = call.function.endswith("_desc")
    if "by_label" not in call.function:
        return sorted_by_value(_vector(given[0]), descending=descending)
    return sorted_by_label(_vector(given[0]), [str(name) for name in given[1:]], descending=descending)


_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(ELEMENTWISE, lambda call, given, *_: elementwise(call.function, _vector(given[0]))),
    **dict.fromkeys(
        NUMBER_FUNCTIONS, lambda call, given, _, context: number_of(call.function, _vector(given[0]), context)
    ),
    **dict.fromkeys(
        DATE_FUNCTIONS,
        lambda call, given, grid, _: date_part(call.function, _vector(given[0]) if given else None, grid),
    ),
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min"), _clamp),
    **dict.fromkeys(("sort", "sort_desc", "sort_by_label", "sort_by_label_desc"), _sort),
    "absent": lambda call, given, *_: absent(_vector(given[0]), call.arguments[0]),
    "end": lambda call, given, grid, context: _numbers(grid, context.end_ms / 1000),
    "histogram_fraction": lambda call, given, grid, context: fraction_vector(
        call, _scalar(given[0]), _scalar(given[1]), _vector(given[2]), grid, context
    ),
    "histogram_quantile": lambda call, given, grid, context: quantile_vector(
        call, _scalar(given[0]), _vector(given[1]), grid, context
    ),
    "histogram_quantiles": lambda call, given, grid, context: quantile_vectors(
        call, _vector(given[0]), str(given[1]), [_scalar(value) for value in given[2:]], grid, context
    ),
    "info": lambda call, given, grid, context: with_info(call, _vector(given[0]), grid, context),
    "label_join": lambda call, given, *_: joined_labels(
        _vector(given[0]), str(given[1]), as_text(str(given[2])), [str(name) for name in given[3:]]
    ),
    "label_replace": lambda call, given, *_: replaced_label(
        _vector(given[0]), str(given[1]), as_text(str(given[2])), str(given[3]), str(given[4])
    ),
    "max_of": lambda call, given, *_: go_max(_scalar(given[0]), _scalar(given[1])),
    "min_of": lambda call, given, *_: go_min(_scalar(given[0]), _scalar(given[1])),
    "pi": lambda call, given, grid, _: _numbers(grid, np.pi),
    "range": lambda call, given, grid, context: _numbers(grid, (context.end_ms - context.start_ms) / 1000),
    "round": lambda call, given, *_: rounded(_vector(given[0]), _scalar(given[1]) if len(given) > 1 else None),
    "scalar": lambda call, given, *_: only_float(_vector(given[0])),
    "start": lambda call, given, grid, context: _numbers(grid, context.start_ms / 1000),
    # Start times do not pass through expressions; of a selector they are read before this table is asked.
    "start_timestamp": lambda call, given, grid, _: empty_vector(grid.count),
    "step": lambda call, given, grid, context: _numbers(grid, context.step_ms / 1000),
    "time": lambda call, given, grid, _: grid.times / 1000.0,
    "timestamp": lambda call, given, grid, _: evaluation_times(_vector(given[0]), grid),
    "vector": lambda call, given, *_: constant_vector(_scalar(given[0])),
}


def call_result(call: FunctionCall, arguments: list[Value], grid: StepGrid, context: EvaluationContext) -> Value:
    """The value of a function whose arguments are known; none of them is a range."""
    return _HANDLERS[call.function](call, arguments, grid, context)
