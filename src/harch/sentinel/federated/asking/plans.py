"""What is a question over all hubs made of? Parts to send, and the rest of the expression with places for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harch.sentinel.federated.messages import LogPart, MetricPart
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.syntax.nodes import Expr, VectorSelector

QUANTUM_MS = 60_000  # of the times that may be asked abroad, unless an operator there says otherwise
LAG_MS = 60_000  # what is younger is not told abroad: it may still change
PLACE_LABEL = "__place__"  # stands in matchers of the rest only; a series may carry it and means nothing by it


class Joining(Enum):
    """How the answers of hubs to one place become series."""

    ROWS = "rows"  # side by side: an aggregation of the rest puts equal labels together
    SERIES = "series"  # single series: of two with equal labels, one counts
    SPREAD = "spread"  # count, mean and variance of hubs become the variance of all
    DEVIATION = "deviation"  # and its root


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the rest: which parts (numbers of `FederatedPlan.parts`) it is filled from, and on which grid."""

    joining: Joining
    parts: tuple[int, ...]
    grid: Grid


@dataclass(frozen=True, slots=True)
class FederatedPlan:
    """`rest` is a tree bound to the grid, in which selectors with a matcher on `PLACE_LABEL` stand for places."""

    expression: str
    grid: Grid
    lookback_ms: int
    rest: Expr
    places: tuple[Place, ...]
    parts: tuple[MetricPart | LogPart, ...]

    @property
    def is_instant(self) -> bool:
        return self.grid.step_ms == 0


def steps_of(part: MetricPart | LogPart) -> int:
    """How many times a part is evaluated."""
    if isinstance(part, LogPart):
        return (part.end_ns - part.start_ns) // part.step_ns + 1 if part.step_ns else 1
    return (part.end_ms - part.start_ms) // part.step_ms + 1 if part.step_ms else 1


def place_selector(number: int, matchers: tuple[Matcher, ...] = ()) -> VectorSelector:
    """The selector of a place. Other matchers only name labels: `absent` shows those that are asked for by `=`."""
    mark = Matcher(MatchKind.REGEX, PLACE_LABEL, str(number))
    return VectorSelector("", (*matchers, mark))


def place_number(matchers: tuple[Matcher, ...]) -> int | None:
    """The mark stands last: an asker may write a matcher of this name, too."""
    is_place = bool(matchers) and matchers[-1].name == PLACE_LABEL
    return int(matchers[-1].value) if is_place else None


def aligned(grid: Grid, now_ms: int, quantum_ms: int = QUANTUM_MS, lag_ms: int = LAG_MS) -> Grid:
    """The grid as hubs of other countries want it: on multiples of a quantum, no finer, and not up to this moment."""
    latest_ms = (now_ms - lag_ms) // quantum_ms * quantum_ms
    start_ms = min(grid.start_ms // quantum_ms * quantum_ms, latest_ms)
    if grid.step_ms == 0:
        return Grid.instant(start_ms)
    step_ms = -(-grid.step_ms // quantum_ms) * quantum_ms
    return Grid.between(start_ms, max(min(grid.end_ms, latest_ms), start_ms), step_ms)
