"""What is the answer to this LogQL query? Text, times and a store of logs in; lines or numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.lines import Entry, Window, selected_lines
from harch.sentinel.logql.evaluate.metrics import metric_value
from harch.sentinel.logql.evaluate.options import LogqlOptions, LogQueryOptions
from harch.sentinel.logql.evaluate.work import ReadSoFar, Work
from harch.sentinel.logql.syntax.nodes import LogQuery, Query
from harch.sentinel.logql.syntax.parser import parse
from harch.sentinel.model.logs import LogReadable, LogRequest, Order
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.budget import Budget
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.engine import at_once, over_steps
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.options import EngineOptions
from harch.sentinel.promql.evaluate.results import QueryValue
from harch.sentinel.promql.syntax.options import ParserOptions

_PARSED_MAX = 512  # dashboards ask the same again and again


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """Lines or a value, with what was read for it."""

    value: list[Entry] | QueryValue
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
        self, query: LogQuery, window: Window, readable: LogReadable, now_ns: int, options: LogQueryOptions
    ) -> LogAnswer:
        """The lines of a window. Raises E0687 for more than one answer may have."""
        entries_max = self.options.limits.entries_max
        if window.limit > entries_max:
            raise HarchError(
                "E0687",
                f"max entries limit per query exceeded, limit > max_entries_limit ({window.limit} > {entries_max})",
                hint="ask for fewer, and for the next ones with `start` and `end`",
            )
        work = self._work(readable, now_ns, options)
        return LogAnswer(selected_lines(query, window, work), work.read)

    def instant(
        self, query: Query, at_ms: int, readable: LogReadable, now_ns: int, options: LogQueryOptions
    ) -> LogAnswer:
        """The value of a query for numbers at one time."""
        work = self._work(readable, now_ns, options)
        context = self._context(work, at_ms, at_ms, 0)
        value = metric_value(query, Grid.instant(at_ms), work, context)
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
        grid = Grid.between(start_ms, end_ms, step_ms)
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
            order=Order.ANY,
            with_texts=False,
            with_metadata=False,
            scanned_bytes_max=self.options.limits.scanned_bytes_max,
        )
        for _ in work.chunks(request):
            pass
        return work.read

    def _work(self, readable: LogReadable, now_ns: int, options: LogQueryOptions) -> Work:
        budget = Budget(
            self.options.limits.values,
            monotonic_s=self._clock.monotonic_s,
            timeout_s=options.timeout_s,
            is_cancelled=options.is_cancelled,
        )
        return Work(readable, budget, self.options.limits, now_ns)

    def _context(self, work: Work, start_ms: int, end_ms: int, step_ms: int) -> Context:
        options = EngineOptions(limits=self.options.limits.values)
        return Context(_NoSeries(), options, work.budget, Annotations(), options.lookback_ms, start_ms, end_ms, step_ms)
