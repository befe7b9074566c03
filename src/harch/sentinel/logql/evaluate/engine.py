"""What is the answer to this LogQL query? Text, times and a store of logs in; lines or numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogqlOptions, LogQueryContext, LogQueryOptions, ReadSoFar
from harch.sentinel.logql.evaluate.lines import LineWindow, LogEntry, selected_lines
from harch.sentinel.logql.evaluate.range_aggregation import range_result
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelReplace,
    LogQuery,
    Number,
    Query,
    RangeAggregation,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.syntax.parser import parse
from harch.sentinel.model.labels import Matcher
from harch.sentinel.model.logs import LineOrder, LogReadable, LogRequest
from harch.sentinel.model.selection import Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.aggregates import aggregated
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.binary_operators import binary_result
from harch.sentinel.promql.evaluate.context import EngineOptions, EvaluationContext, QueryBudget
from harch.sentinel.promql.evaluate.engine import at_once, over_steps
from harch.sentinel.promql.evaluate.functions.calls import constant_vector
from harch.sentinel.promql.evaluate.functions.label_functions import replaced_label, sorted_by_value
from harch.sentinel.promql.evaluate.values import QueryValue, Scalar, StepGrid, Value, Vector
from harch.sentinel.promql.syntax.cursor import ParserOptions
from harch.sentinel.promql.syntax.nodes import Aggregate, Binary, NumberLiteral

_ALREADY_KNOWN = NumberLiteral(0.0)  # PromQL's nodes want their operands; here only their values are used


def metric_value(node: Query, grid: StepGrid, work: LogQueryContext, context: EvaluationContext) -> Value:
    """A vector, or one number a step."""
    work.budget.check()
    match node:
        case Number(value=value):
            return np.full(grid.count, value)
        case VectorOf(value=value):
            return constant_vector(np.full(grid.count, value))
        case RangeAggregation():
            return range_result(node, grid, work, context)
        case VectorAggregation():
            return _aggregated(node, grid, work, context)
        case BinaryOperation(left=left, right=right):
            sides = [metric_value(side, grid, work, context) for side in (left, right)]
            binary = Binary(
                node.operator, _ALREADY_KNOWN, _ALREADY_KNOWN, node.matching, node.return_bool, span=node.span
            )
            return binary_result(binary, sides[0], sides[1], context)
        case LabelReplace(expr=expr):
            vector = _vector(expr, grid, work, context)
            return replaced_label(vector, node.target, node.replacement, node.source, node.expression)
        case LogQuery():
            raise HarchError("E0689", "lines are not a number", hint="wrap them in e.g. count_over_time()")


def _vector(node: Query, grid: StepGrid, work: LogQueryContext, context: EvaluationContext) -> Vector:
    return cast(Vector, metric_value(node, grid, work, context))


def _aggregated(node: VectorAggregation, grid: StepGrid, work: LogQueryContext, context: EvaluationContext) -> Vector:
    grouping = node.grouping or Grouping(())
    if node.operator == "sum" and isinstance(node.expr, RangeAggregation):
        vector = range_result(node.expr, grid, work, context, summed_by=grouping)
    else:
        vector = _vector(node.expr, grid, work, context)
    if node.operator in ("sort", "sort_desc"):
        return sorted_by_value(vector, descending=node.operator == "sort_desc")
    parameter: Scalar | None = None
    literal: NumberLiteral | None = None
    if node.parameter is not None:
        parameter = np.full(grid.count, float(node.parameter))
        literal = NumberLiteral(float(node.parameter), span=node.span)
    aggregate = Aggregate(node.operator, _ALREADY_KNOWN, literal, grouping.labels, grouping.without, span=node.span)
    return aggregated(aggregate, vector, parameter, context)


_PARSED_MAX = 512  # dashboards ask the same again and again


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """Lines or a value, with what was read for it."""

    value: list[LogEntry] | QueryValue
    read: ReadSoFar
    warnings: tuple[str, ...] = ()

    @property
    def has_lines(self) -> bool:
        return isinstance(self.value, list)


@lru_cache(maxsize=_PARSED_MAX)
def parsed(query: str, options: ParserOptions) -> Query:
    return parse(query, options)


class _NoSeries:
    """LogQL reads no series: what PromQL's context wants to know and nobody asks."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        raise HarchError("E0689", "LogQL reads lines, not series")

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return SeriesTable(0, {})

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


class LogqlEngine:
    """Answers LogQL queries. Stateless but for caches, so that any number of threads may ask at once."""

    def __init__(self, options: LogqlOptions | None = None, clock: Clock | None = None) -> None:
        self.options = options or LogqlOptions()
        self._clock = clock or SystemClock()

    def tree(self, query: str) -> Query:
        return parsed(query, self.options.parser)

    def lines(
        self, query: LogQuery, window: LineWindow, readable: LogReadable, now_ns: int, options: LogQueryOptions
    ) -> LogAnswer:
        """The lines of a window. Raises E0687 for more than one answer may have."""
        entries_max = self.options.limits.entries_max
        if window.limit > entries_max:
            raise HarchError(
                "E0687",
                f"max entries limit per query exceeded, limit > max_entries_limit ({window.limit} > {entries_max})",
                hint="request fewer, and page with `start` and `end`",
            )
        work = self._work(readable, now_ns, options)
        return LogAnswer(selected_lines(query, window, work), work.read)

    def instant(
        self, query: Query, at_ms: int, readable: LogReadable, now_ns: int, options: LogQueryOptions
    ) -> LogAnswer:
        """The value of a query for numbers at one time."""
        work = self._work(readable, now_ns, options)
        context = self._context(work, at_ms, at_ms, 0)
        value = metric_value(query, StepGrid.instant(at_ms), work, context)
        return LogAnswer(at_once(value, at_ms), work.read)

    def range(
        self,
        query: Query,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        readable: LogReadable,
        now_ns: int,
        options: LogQueryOptions,
    ) -> LogAnswer:
        """The values at all steps from a start to an end, which is included."""
        grid = StepGrid.between(start_ms, end_ms, step_ms)
        work = self._work(readable, now_ns, options)
        work.budget.check_steps(grid.count)
        context = self._context(work, start_ms, end_ms, step_ms)
        return LogAnswer(over_steps(metric_value(query, grid, work, context), grid), work.read)

    def counted(
        self,
        matchers: tuple[Matcher, ...],
        start_ns: int,
        end_ns: int,
        readable: LogReadable,
        now_ns: int,
        options: LogQueryOptions,
    ) -> ReadSoFar:
        """How many lines and bytes the streams have there; no text is looked at."""
        work = self._work(readable, now_ns, options)
        request = LogRequest(
            matchers,
            start_ns,
            end_ns,
            order=LineOrder.ANY,
            with_bodies=False,
            with_metadata=False,
            scanned_bytes_max=self.options.limits.scanned_bytes_max,
        )
        for _ in work.chunks(request):
            pass
        return work.read

    def _work(self, readable: LogReadable, now_ns: int, options: LogQueryOptions) -> LogQueryContext:
        budget = QueryBudget(
            self.options.limits.values,
            monotonic_s=self._clock.monotonic_s,
            timeout_s=options.timeout_s,
            is_cancelled=options.is_cancelled,
        )
        return LogQueryContext(readable, budget, self.options.limits, now_ns)

    def _context(self, work: LogQueryContext, start_ms: int, end_ms: int, step_ms: int) -> EvaluationContext:
        options = EngineOptions(limits=self.options.limits.values)
        return EvaluationContext(
            _NoSeries(), options, work.budget, Annotations(), options.lookback_ms, start_ms, end_ms, step_ms
        )
