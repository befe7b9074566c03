"""What is the answer to this query?

Text, times and a store in; the walk over the tree, where what does not depend on the step is evaluated once; a result
or an error out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.sentinel.model.selection import Queryable, SeriesTable
from harch.sentinel.promql.evaluate.aggregates import aggregated
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.binary_operators import binary_result
from harch.sentinel.promql.evaluate.context import EngineOptions, EvaluationContext, QueryBudget, QueryOptions, refuse
from harch.sentinel.promql.evaluate.functions.calls import absent, call_result, sample_times
from harch.sentinel.promql.evaluate.label_columns import finished, label_order
from harch.sentinel.promql.evaluate.ranges.range_functions import range_function
from harch.sentinel.promql.evaluate.selection.instant_vectors import inside_call, instant_vector
from harch.sentinel.promql.evaluate.selection.range_vectors import (
    RangeVector,
    live_samples,
    selected_range,
    subquery_range,
)
from harch.sentinel.promql.evaluate.values import (
    MatrixResult,
    Objects,
    QueryResult,
    QueryValue,
    SamplesResult,
    Scalar,
    ScalarResult,
    StepGrid,
    StringResult,
    Value,
    Vector,
    VectorResult,
    empty_vector,
    no_histograms,
)
from harch.sentinel.promql.histograms.arithmetic import scaled
from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.cursor import ParserOptions
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
    children,
    unwrap,
    walk,
)
from harch.sentinel.promql.syntax.parser import parse

# Their results follow the time of evaluation, even if their arguments do not.
_TIME_DEPENDENT = frozenset(
    {"days_in_month", "day_of_month", "day_of_week", "day_of_year", "hour", "minute", "month", "year"}
    | {"predict_linear", "time", "timestamp"}
)


def is_invariant(node: Expr) -> bool:
    """True if every step gives the same: all selectors are pinned by `@`, and no function asks for the time."""
    match node:
        case NumberLiteral() | StringLiteral():
            return True
        case VectorSelector() | Subquery():
            return node.at_ms is not None
        case MatrixSelector(selector=selector):
            return selector.at_ms is not None
        case FunctionCall(function=name) if name in _TIME_DEPENDENT:
            return False
        case _:
            return all(map(is_invariant, children(node)))


# What is an expression worth at each step? The walk over the tree; every node has its own module.


def evaluate(node: Expr, grid: StepGrid, context: EvaluationContext) -> Value:
    """The value of a bound expression on a grid. Raises HarchError."""
    context.budget.check()
    if grid.count > 1 and not isinstance(node, NumberLiteral | StringLiteral) and is_invariant(node):
        value = _spread(_evaluated(node, grid.first_only, context), grid.count, context)
    else:
        value = _evaluated(node, grid, context)
    if isinstance(value, Vector):
        context.budget.hold(value.values)
    return value


def _spread(value: Value, steps: int, context: EvaluationContext) -> Value:
    if isinstance(value, Vector):
        context.budget.reserve_points(value.count, steps)
        return value.spread(steps)
    return value if isinstance(value, str) else np.repeat(value, steps)


def _evaluated(node: Expr, grid: StepGrid, context: EvaluationContext) -> Value:
    match node:
        case NumberLiteral(value=number):
            return np.full(grid.count, number)
        case StringLiteral(value=text):
            return text
        case Paren(expr=inner):
            return evaluate(inner, grid, context)
        case VectorSelector():
            return instant_vector(node, grid, context)
        case Unary():
            return _signed(node, evaluate(node.expr, grid, context))
        case Binary():
            left, right = (evaluate(side, grid, context) for side in (node.left, node.right))
            return binary_result(node, left, right, context)
        case Aggregate():
            parameter = None if node.parameter is None else evaluate(node.parameter, grid, context)
            vector = cast(Vector, evaluate(node.expr, grid, context))
            return aggregated(node, vector, parameter, context)
        case FunctionCall():
            return _called(node, grid, context)
        case MatrixSelector() | Subquery():
            raise refuse("a range vector has no value at a step", hint="wrap it in a function such as rate()")


def _signed(node: Unary, value: Value) -> Value:
    if node.operator == "+" or isinstance(value, str):
        return value
    if not isinstance(value, Vector):
        return -value
    negated = value.with_values(-value.values)
    return replace(negated, histograms=_negated(value)) if value.histograms is not None else negated


def _negated(vector: Vector) -> Objects:
    cells = no_histograms(vector.present.shape)
    there = vector.is_histogram
    if there is not None and vector.histograms is not None:
        for row, step in zip(*np.nonzero(there), strict=True):
            cells[row, step] = scaled(vector.histograms[row, step], -1.0)
    return cells


def _called(call: FunctionCall, grid: StepGrid, outside: EvaluationContext) -> Value:
    context = inside_call(call, outside)
    at_range = next((place for place, each in enumerate(call.arguments) if each.type is ValueType.MATRIX), None)
    if at_range is not None:
        return _over_range(call, at_range, grid, context)
    if call.function in ("timestamp", "start_timestamp"):
        argument = unwrap(call.arguments[0])
        if isinstance(argument, VectorSelector):
            if call.function == "start_timestamp":
                known = context.options.start_timestamps
                return sample_times(argument, grid, context, starts=True) if known else empty_vector(grid.count)
            return sample_times(argument, grid, context)
    if call.function == "info":  # its second argument is a set of matchers, not something to read
        return call_result(call, [evaluate(call.arguments[0], grid, context)], grid, context)
    return call_result(call, [evaluate(each, grid, context) for each in call.arguments], grid, context)


def _over_range(call: FunctionCall, at_range: int, grid: StepGrid, context: EvaluationContext) -> Vector:
    ranges = range_vector(call.arguments[at_range], grid, context)
    others = [each for place, each in enumerate(call.arguments) if place != at_range]
    parameters = [cast(Scalar, evaluate(each, grid, context)) for each in others]
    result = range_function(call, ranges, parameters, grid, context)
    return absent(result, call.arguments[at_range]) if call.function == "absent_over_time" else result


def range_vector(node: Expr, grid: StepGrid, context: EvaluationContext) -> RangeVector:
    """The samples and windows of a range selector or a subquery."""
    inner = unwrap(node)
    if isinstance(inner, MatrixSelector):
        return selected_range(inner, grid, context)
    if isinstance(inner, Subquery):
        return subquery_range(inner, grid, context, evaluate)
    raise refuse("expected a range vector")


# What is the answer to this query? Text, times and a store in; a result, or an error with code and hint, out.


_PARSED_MAX = 512  # dashboards ask the same again and again


@lru_cache(maxsize=_PARSED_MAX)
def _parsed(query: str, options: ParserOptions) -> Expr:
    return parse(query, options)


class QueryEngine:
    """Answers PromQL queries. Stateless but for caches, so that any number of threads may ask at once."""

    def __init__(self, options: EngineOptions | None = None, clock: Clock | None = None) -> None:
        self.options = options or EngineOptions()
        self._clock = clock or SystemClock()

    def instant(self, query: str, at_ms: int, queryable: Queryable, options: QueryOptions | None = None) -> QueryResult:
        """The value of a query at one time."""
        times = QueryTimes(at_ms, at_ms)
        return self.of_tree(query, bind(query, _parsed(query, self.options.parser), times), times, queryable, options)

    def momentary(self, query: str) -> Sequence[VectorSelector] | None:
        """What an instant query reads, if it does not look back, else None. Raises as the query would."""
        nodes = list(walk(_parsed(query, self.options.parser)))
        found = [node for node in nodes if isinstance(node, VectorSelector)]
        looks_back = any(isinstance(node, MatrixSelector | Subquery) for node in nodes) or any(
            node.offset_ms or node.offset_expr or node.at_ms is not None or node.at_edge for node in found
        )
        return None if looks_back else found

    def range(
        self,
        query: str,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        queryable: Queryable,
        options: QueryOptions | None = None,
    ) -> QueryResult:
        """The values of a query at all steps from a start to an end, which is included."""
        if step_ms <= 0:
            raise refuse("zero or negative query resolution step widths are not accepted", hint="try a positive step")
        if end_ms < start_ms:
            raise refuse("end timestamp must not be before start time")
        times = QueryTimes(start_ms, end_ms, step_ms)
        parsed = _parsed(query, self.options.parser)
        if parsed.type not in (ValueType.SCALAR, ValueType.VECTOR):
            raise refuse(
                f'invalid expression type "{parsed.type.words}" for range query, must be Scalar or instant Vector'
            )
        return self.of_tree(query, bind(query, parsed, times), times, queryable, options)

    def of_tree(
        self,
        query: str,
        expr: Expr,
        times: QueryTimes,
        queryable: Queryable,
        options: QueryOptions | None = None,
    ) -> QueryResult:
        """The value of a tree that is bound to its times; `query` is the text that its places refer to.

        A step of 0 asks for the start alone.
        """
        context = self._context(queryable, times, options)
        if times.step_ms:
            grid = StepGrid.between(times.start_ms, times.end_ms, times.step_ms)
            context.budget.check_steps(grid.count)
            return _result(query, over_steps(evaluate(expr, grid, context), grid), context)
        grid = StepGrid.instant(times.start_ms)
        if expr.type is ValueType.MATRIX:
            return _result(query, _raw(expr, grid, context), context)
        return _result(query, at_once(evaluate(expr, grid, context), times.start_ms), context)

    def _context(self, queryable: Queryable, times: QueryTimes, options: QueryOptions | None) -> EvaluationContext:
        chosen = options or QueryOptions()
        budget = QueryBudget(
            self.options.limits,
            monotonic_s=self._clock.monotonic_s,
            timeout_s=chosen.timeout_s,
            is_cancelled=chosen.is_cancelled,
        )
        return EvaluationContext(
            queryable,
            self.options,
            budget,
            Annotations(),
            self.options.lookback_ms if chosen.lookback_ms is None else chosen.lookback_ms,
            times.start_ms,
            times.end_ms,
            times.step_ms,
        )


def _result(query: str, value: QueryValue, context: EvaluationContext) -> QueryResult:
    notes, budget = context.notes, context.budget
    return QueryResult(value, notes.warnings(query), notes.infos(query), budget.samples_read, budget.points_peak)


def _raw(expr: Expr, grid: StepGrid, context: EvaluationContext) -> SamplesResult:
    """The samples of a range as they are."""
    ranges = range_vector(expr, grid, context)
    series, samples = live_samples(ranges, context)
    return SamplesResult(series, samples)


def at_once(value: Value, at_ms: int) -> QueryValue:
    """What an instant query answers."""
    if isinstance(value, str):
        return StringResult(at_ms, value)
    if not isinstance(value, Vector):
        return ScalarResult(at_ms, float(value[0]))
    vector = finished(value)
    histograms = None if vector.histograms is None else vector.histograms[:, 0]
    return VectorResult(at_ms, vector.series, vector.values[:, 0], histograms)


def over_steps(value: Value, grid: StepGrid) -> MatrixResult:
    """What a range query answers."""
    if not isinstance(value, Vector):  # a scalar is one series without labels
        values = np.atleast_2d(np.asarray(value, np.float64))
        return MatrixResult(grid.times, SeriesTable(1, {}), values, np.ones(values.shape, np.bool_), None)
    vector = finished(value)
    ordered = vector.take(label_order(vector.series))
    return MatrixResult(grid.times, ordered.series, ordered.values, ordered.present, ordered.histograms)
