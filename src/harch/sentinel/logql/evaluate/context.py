"""What do all parts of one LogQL evaluation share?

The store, the budget, how far a query may go, and what was read so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harch.sentinel.model.logs import LineChunk, LogReadable, LogRequest
from harch.sentinel.promql.evaluate.context import QueryBudget, QueryLimits
from harch.sentinel.promql.syntax.cursor import DEFAULT_OPTIONS, ParserOptions


@dataclass(frozen=True, slots=True)
class LogQueryLimits:
    """What one query may take. Beyond a limit it is refused, and nothing of it stays behind."""

    entries_default: int = 100
    entries_max: int = 5_000
    series_max: int = 20_000  # of one range aggregation
    scanned_bytes_max: int = 64 << 30  # raw bytes of lines that the store may look at
    result_bytes_max: int = 64 << 20  # texts and labels of lines in one answer
    values: QueryLimits = field(
        default_factory=QueryLimits
    )  # points, samples, steps, memory and time, as PromQL has them


@dataclass(frozen=True, slots=True)
class LogqlOptions:
    limits: LogQueryLimits = field(default_factory=LogQueryLimits)
    parser: ParserOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class LogQueryOptions:
    """What one query may choose for itself."""

    timeout_s: float | None = None
    is_cancelled: Callable[[], bool] | None = None


# What do all parts of one LogQL evaluation share? The store, the budget, and what was read so far.


@dataclass(slots=True)
class ReadSoFar:
    """Lines and bytes that the store handed over: those that passed its own filters."""

    chunks: int = 0
    lines: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogQueryContext:
    """One query: where it reads, what it may use up, and when it is."""

    readable: LogReadable
    budget: QueryBudget
    limits: LogQueryLimits
    now_ns: int
    read: ReadSoFar = field(default_factory=ReadSoFar)

    def chunks(self, request: LogRequest, is_done: Callable[[], bool] = lambda: False) -> Iterator[LineChunk]:
        """The store's answer. Raises when time is up or nobody waits any more."""

        def stopped() -> bool:
            self.budget.check()
            return is_done()

        self.budget.check()
        for chunk in self.readable.scan(request, stopped):
            self.budget.check()
            self.read.chunks += 1
            self.read.lines += len(chunk)
            self.read.text_bytes += int(chunk.text_bytes.sum())
            yield chunk
            if is_done():
                return
