"""How far may a query about logs go?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harch.sentinel.promql.evaluate.options import Limits
from harch.sentinel.promql.syntax.options import DEFAULT_OPTIONS, ParserOptions


@dataclass(frozen=True, slots=True)
class LogLimits:
    """What one query may take. Beyond a limit it is refused, and nothing of it stays behind."""

    entries_default: int = 100
    entries_max: int = 5_000
    series_max: int = 20_000  # of one range aggregation
    scanned_bytes_max: int = 64 << 30  # raw bytes of lines that the store may look at
    result_bytes_max: int = 64 << 20  # texts and labels of lines in one answer
    values: Limits = field(default_factory=Limits)  # points, samples, steps, memory and time, as PromQL has them


@dataclass(frozen=True, slots=True)
class LogqlOptions:
    limits: LogLimits = field(default_factory=LogLimits)
    parser: ParserOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class LogQueryOptions:
    """What one query may choose for itself."""

    timeout_s: float | None = None
    is_cancelled: Callable[[], bool] | None = None
