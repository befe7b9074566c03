"""What do all parts of one LogQL evaluation share? The store, the budget, and what was read so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harch.sentinel.logql.evaluate.options import LogLimits
from harch.sentinel.model.logs import LogChunk, LogReadable, LogRequest
from harch.sentinel.promql.evaluate.budget import Budget


@dataclass(slots=True)
class ReadSoFar:
    """Lines and bytes that the store handed over: those that passed its own filters."""

    chunks: int = 0
    lines: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """One query: where it reads, what it may use up, and when it is."""

    readable: LogReadable
    budget: Budget
    limits: LogLimits
    now_ns: int
    read: ReadSoFar = field(default_factory=ReadSoFar)

    def chunks(self, request: LogRequest, is_done: Callable[[], bool] = lambda: False) -> Iterator[LogChunk]:
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
