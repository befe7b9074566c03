"""What is a query over all hubs made of?

Parts to send, the rest of the expression with placeholders for them, and how variances of parts combine.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from harch.sentinel.federated.messages import LogPart, MetricPart
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.promql.evaluate.values import StepGrid
from harch.sentinel.promql.syntax.nodes import Expr, VectorSelector

QUANTUM_MS = 60_000  # of the times that may be asked abroad, unless an operator there says otherwise
LAG_MS = 60_000  # what is younger is not disclosed: it may still change
PLACE_LABEL = "__place__"  # stands in matchers of the rest only; a series may carry it and means nothing by it


class Joining(Enum):
    """How the answers of hubs to one place become series."""

    ROWS = "rows"  # side by side: an aggregation of the rest puts equal labels together
    SERIES = "series"  # single series: of two with equal labels, one counts
    SPREAD = "spread"  # count, mean and variance of hubs become the variance of all
    DEVIATION = "deviation"  # and its root


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A place in the rest: which parts (numbers of `FederatedPlan.parts`) it is filled from, and on which grid."""

    joining: Joining
    parts: tuple[int, ...]
    grid: StepGrid


@dataclass(frozen=True, slots=True)
class FederatedPlan:
    """`rest` is a tree bound to the grid, in which selectors with a matcher on `PLACE_LABEL` stand for places."""

    expression: str
    grid: StepGrid
    lookback_ms: int
    rest: Expr
    places: tuple[Placeholder, ...]
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


def aligned(grid: StepGrid, now_ms: int, quantum_ms: int = QUANTUM_MS, lag_ms: int = LAG_MS) -> StepGrid:
    """The grid as hubs of other countries want it: on multiples of a quantum, no finer, and not up to this moment."""
    latest_ms = (now_ms - lag_ms) // quantum_ms * quantum_ms
    start_ms = min(grid.start_ms // quantum_ms * quantum_ms, latest_ms)
    if grid.step_ms == 0:
        return StepGrid.instant(start_ms)
    step_ms = -(-grid.step_ms // quantum_ms) * quantum_ms
    return StepGrid.between(start_ms, max(min(grid.end_ms, latest_ms), start_ms), step_ms)


# What is the variance of all, when each hub tells count, mean and variance of its own?


Floats = npt.NDArray[np.float64]


def joint_variance(counts: Floats, means: Floats, variances: Floats) -> Floats:
    """Columns of hubs `[hub, step]`, counts 0 where a hub has nothing; NaN where no hub has anything.

    Squares of distances from the common mean are added, so nothing is lost where the mean is large.
    """
    there = counts > 0
    total = counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.where(there, counts / total * means, 0.0).sum(axis=0)
        distances = np.where(there, counts * (variances + (means - mean) ** 2), 0.0)
        result: Floats = distances.sum(axis=0) / total
    return result
