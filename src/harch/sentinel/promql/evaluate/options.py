"""How far may a query go, and which parts of the language may it use?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harch.sentinel.promql.syntax.options import DEFAULT_OPTIONS, ParserOptions

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may take. Beyond a limit it is refused, and nothing of it stays behind."""

    samples_max: int = 50_000_000  # read from the store, over all selectors
    points_max: int = 50_000_000  # series times steps of any one value on the way
    steps_max: int = 100_000
    memory_bytes_max: int = 2 << 30  # estimated: the matrices that are alive at once
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What all queries of an engine share."""

    limits: Limits = Limits()
    lookback_ms: int = 5 * MINUTE_MS
    subquery_step_ms: int = MINUTE_MS  # of `[range:]`, without a step
    type_and_unit_labels: bool = False  # trust `__type__` instead of names when asking whether a metric counts
    start_timestamps: bool = True  # let counters' start times tell resets
    parser: ParserOptions = DEFAULT_OPTIONS  # which experimental parts of the language are on


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What one query may choose for itself; None: as the engine has it."""

    lookback_ms: int | None = None
    timeout_s: float | None = None
    is_cancelled: Callable[[], bool] | None = None
