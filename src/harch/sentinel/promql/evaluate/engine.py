"""What is the answer to this query? Text, times and a store in; a result, or an error with code and hint, out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.sentinel.model.selection import Queryable, SeriesTable
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.budget import Budget
from harch.sentinel.promql.evaluate.context import Context, refuse
from harch.sentinel.promql.evaluate.evaluator import evaluate, range_vector
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.labels.columns import label_order
from harch.sentinel.promql.evaluate.labels.merging import finished
from harch.sentinel.promql.evaluate.options import EngineOptions, QueryOptions
from harch.sentinel.promql.evaluate.results import (
    MatrixResult,
    QueryResult,
    QueryValue,
    SamplesResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from harch.sentinel.promql.evaluate.selection.raw_samples import live_samples
from harch.sentinel.promql.evaluate.values import Value, Vector
from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.nodes import Expr, MatrixSelector, Subquery, VectorSelector, walk
from harch.sentinel.promql.syntax.options import ParserOptions
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.value_types import ValueType

_PARSED_MAX = 512  # dashboards ask the same again and again


@lru_cache(maxsize=_PARSED_MAX)
def _parsed(query: str, options: ParserOptions) -> Expr:
    return parse(query, options)


class Engine:
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
            grid = Grid.between(times.start_ms, times.end_ms, times.step_ms)
            context.budget.check_steps(grid.count)
            return _result(query, over_steps(evaluate(expr, grid, context), grid), context)
        grid = Grid.instant(times.start_ms)
        if expr.type is ValueType.MATRIX:
            return _result(query, _raw(expr, grid, context), context)
        return _result(query, at_once(evaluate(expr, grid, context), times.start_ms), context)

    def _context(self, queryable: Queryable, times: QueryTimes, options: QueryOptions | None) -> Context:
        chosen = options or QueryOptions()
        budget = Budget(
            self.options.limits,
            monotonic_s=self._clock.monotonic_s,
            timeout_s=chosen.timeout_s,
            is_cancelled=chosen.is_cancelled,
        )
        return Context(
            queryable,
            self.options,
            budget,
            Annotations(),
            self.options.lookback_ms if chosen.lookback_ms is None else chosen.lookback_ms,
            times.start_ms,
            times.end_ms,
            times.step_ms,
        )


def _result(query: str, value: QueryValue, context: Context) -> QueryResult:
    notes, budget = context.notes, context.budget
    return QueryResult(value, notes.warnings(query), notes.infos(query), budget.samples_read, budget.points_peak)


def _raw(expr: Expr, grid: Grid, context: Context) -> SamplesResult:
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


def over_steps(value: Value, grid: Grid) -> MatrixResult:
    """What a range query answers."""
    if not isinstance(value, Vector):  # a scalar is one series without labels
        values = np.atleast_2d(np.asarray(value, np.float64))
        return MatrixResult(grid.times, SeriesTable(1, {}), values, np.ones(values.shape, np.bool_), None)
    vector = finished(value)
    ordered = vector.take(label_order(vector.series))
    return MatrixResult(grid.times, ordered.series, ordered.values, ordered.present, ordered.histograms)
