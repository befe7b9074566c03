"""What does a forecast say? 96 hours with intervals, who made it, from what, and how wrong it was lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.carbon.forecasts.history import HOUR, Floats

QUANTILES = (0.05, 0.25, 0.75, 0.95)


@dataclass(frozen=True)
class ForecastError:
    """Mean absolute error in % of the actual value, per day ahead, over the last `days` days; NaN: not known yet."""

    days: int
    by_day_pct: tuple[float, ...]
    persistence_by_day_pct: tuple[float, ...]

    @property
    def ratio_to_persistence(self) -> float:
        """Of the first day; below 1 the model earns its keep."""
        ours, theirs = self.by_day_pct[0], self.persistence_by_day_pct[0]
        return ours / theirs if theirs > 0 else float("nan")


@dataclass(frozen=True)
class TrainedOn:
    """The hours that a model learned from."""

    start: datetime
    end: datetime
    hours_observed: int


@dataclass(frozen=True, eq=False)
class Forecast:
    """Values of the hours from `start` on, in the unit of the history; never negative.

    `mean` is the weighted average of the chosen models. `quantiles` are calibrated on their recent errors.
    """

    start: datetime
    mean: Floats
    quantiles: Mapping[float, Floats]
    model: str
    weights: Mapping[str, tuple[float, ...]]  # of each model, per day ahead
    error: ForecastError
    trained_on: TrainedOn
    notes: tuple[str, ...] = ()
    step: timedelta = HOUR

    def index(self, at: datetime) -> int:
        """Which hour of the forecast holds this moment? Raises `LookupError` outside of it."""
        hour = (at - self.start) // self.step
        if not 0 <= hour < len(self.mean):
            raise LookupError(f"{at} is not within the {len(self.mean)} hours from {self.start}")
        return hour

    def at(self, moment: datetime) -> float:
        return float(self.mean[self.index(moment)])

    def between(self, moment: datetime, *, low: float = 0.05, high: float = 0.95) -> tuple[float, float]:
        """The prediction interval of the hour that holds this moment."""
        hour = self.index(moment)
        return float(self.quantiles[low][hour]), float(self.quantiles[high][hour])


def model_name(weights: Mapping[str, Floats]) -> str:
    """The models by their mean weight, largest first; those below 5 % are left out of the name."""
    shares = sorted(((float(np.mean(weight)), name) for name, weight in weights.items()), reverse=True)
    named = [(share, name) for share, name in shares if share >= 0.05]
    return named[0][1] if len(named) == 1 else " + ".join(f"{share:.2f} {name}" for share, name in named)
