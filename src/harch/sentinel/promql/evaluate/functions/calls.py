"""What do functions of vectors and scalars give? One table from names to the modules that know."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.functions.absence import absent
from harch.sentinel.promql.evaluate.functions.histogram_functions import (
    NUMBER_FUNCTIONS,
    fraction_vector,
    number_of,
    quantile_vector,
    quantile_vectors,
)
from harch.sentinel.promql.evaluate.functions.info import with_info
from harch.sentinel.promql.evaluate.functions.label_functions import (
    joined_labels,
    replaced_label,
    sorted_by_label,
    sorted_by_value,
)
from harch.sentinel.promql.evaluate.functions.math_functions import ELEMENTWISE, clamped, elementwise, rounded
from harch.sentinel.promql.evaluate.functions.time_functions import (
    DATE_FUNCTIONS,
    constant_vector,
    date_part,
    evaluation_times,
    only_float,
)
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.operators.arithmetic import go_max, go_min
from harch.sentinel.promql.evaluate.values import Scalar, Value, Vector, empty_vector
from harch.sentinel.promql.syntax.nodes import Call
from harch.sentinel.promql.syntax.quoting import as_text

_Handler = Callable[[Call, list[Value], Grid, Context], Value]


def _vector(value: Value) -> Vector:
    return cast(Vector, value)


def _scalar(value: Value) -> Scalar:
    return cast(Scalar, value)


def _numbers(grid: Grid, number: float) -> Scalar:
    return np.full(grid.count, number)


def _clamp(call: Call, given: list[Value], grid: Grid, context: Context) -> Value:
    lowest, highest = _numbers(grid, -np.inf), _numbers(grid, np.inf)
    if call.function != "clamp_max":
        lowest = _scalar(given[1])
    if call.function != "clamp_min":
        highest = _scalar(given[-1])
    return clamped(_vector(given[0]), lowest, highest)


def _sort(call: Call, given: list[Value], grid: Grid, context: Context) -> Value:
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


def call_result(call: Call, arguments: list[Value], grid: Grid, context: Context) -> Value:
    """The value of a function whose arguments are known; none of them is a range."""
    return _HANDLERS[call.function](call, arguments, grid, context)
