"""What do all parts of one evaluation share?"""

from __future__ import annotations

from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.sentinel.model.selection import Queryable
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.evaluate.budget import Budget
from harch.sentinel.promql.evaluate.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Context:
    """One query: where it reads, what it may use up, what it has to say, and the times of the whole query."""

    queryable: Queryable
    options: EngineOptions
    budget: Budget
    notes: Annotations
    lookback_ms: int
    start_ms: int
    end_ms: int
    step_ms: int
    finds_resets: bool = False  # see `reset_hints`
    may_find_resets: bool = True


def refuse(reason: str, *, hint: str = "") -> HarchError:
    """The query is valid, but cannot be answered on this data; the reason is in upstream's words."""
    return HarchError("E0660", reason, hint=hint)
