"""What does a forecast say?

96 hours, who made it, from what, how wrong it was lately, and intervals from quantiles of recent errors.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.carbon.forecasts.history import DAYS_AHEAD, HORIZON_H, HOUR, HOURS_PER_DAY, Floats

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
class CarbonForecast:
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


# How far may the truth be from the forecast? Quantiles of recent errors, and wide guesses while they are few.


_OFFSET = 0.02  # of the level: ratios of hours near zero stay finite
_NEIGHBOURS_H = 2  # errors of adjacent hours stand in for each other
_ROWS_TRUSTED = 28  # from here on the errors speak alone
# Forecasts of later days overlap, so a window holds fewer independent errors of them and its extremes come out too
# small; chosen on January to June 2021, where 90 % intervals without it held 89.6, 88.8, 87.9 and 87.2 % by day.
_WIDER_PER_DAY = 0.025
# Log-ratios of a zone about which nothing is known yet: wide on purpose, for the most changeable grids.
_GUESS = {0.05: -0.5, 0.25: -0.18, 0.75: 0.18, 0.95: 0.5}
_GUESS_GROWTH_PER_DAY = 0.15


@dataclass(frozen=True, eq=False)
class Spread:
    """Quantiles of the log-ratio between truth and forecast, per hour ahead."""

    offset: float
    log_ratio: Mapping[float, Floats]

    def around(self, mean: Floats, stale_h: int = 0) -> dict[float, Floats]:
        """The quantiles around this forecast; none below 0.

        When the last `stale_h` hours are not known, an hour is as uncertain as one that many hours further ahead.
        """
        return {
            level: np.maximum((mean + self.offset) * np.exp(_widest(ratio, stale_h, level)) - self.offset, 0.0)
            for level, ratio in self.log_ratio.items()
        }


def guessed_spread(level: float) -> Spread:
    """Before any error is known."""
    growth = 1.0 + _GUESS_GROWTH_PER_DAY * np.repeat(np.arange(DAYS_AHEAD, dtype=np.float64), HOURS_PER_DAY)
    return Spread(_OFFSET * level, {quantile: guess * growth for quantile, guess in _GUESS.items()})


def spread_of_errors(predicted: Floats, actual: Floats, level: float) -> Spread:
    """From forecasts [rows, 96] and what came (NaN: not known). Few rows are pooled and widened towards the guess."""
    guess = guessed_spread(level)
    offset = guess.offset
    if offset <= 0.0:
        return guess
    ratio = np.log((np.where(np.isfinite(actual), actual, np.nan) + offset) / (predicted + offset))
    rows = np.isfinite(ratio).sum(axis=0)
    quantiles: dict[float, Floats] = {quantile: np.empty(HORIZON_H) for quantile in QUANTILES}
    for hour in range(HORIZON_H):
        # Hours of days that nobody has seen yet borrow the last day that was seen.
        seen = hour
        while seen >= HOURS_PER_DAY and rows[seen] == 0:
            seen -= HOURS_PER_DAY
        reach = _NEIGHBOURS_H if rows[seen] >= _ROWS_TRUSTED else HOURS_PER_DAY
        near = ratio[:, max(0, seen - reach) : seen + reach + 1]
        sample = near[np.isfinite(near)]
        trust = min(1.0, rows[seen] / _ROWS_TRUSTED) if len(sample) else 0.0
        wider = 1.0 + _WIDER_PER_DAY * (hour // HOURS_PER_DAY)
        for quantile, found in zip(QUANTILES, wider * _quantiles(sample), strict=True):
            wide = guess.log_ratio[quantile][hour] * (1.0 - trust)
            quantiles[quantile][hour] = min(found, wide) if quantile < 0.5 else max(found, wide)
    return Spread(offset, quantiles)


def _widest(log_ratio: Floats, stale_h: int, level: float) -> Floats:
    """The farthest from the forecast among each hour and the next `stale_h`."""
    farthest = np.min if level < 0.5 else np.max
    return np.array([farthest(log_ratio[hour : hour + stale_h + 1]) for hour in range(len(log_ratio))])


def _quantiles(sample: Floats) -> Floats:
    return np.quantile(sample, QUANTILES) if len(sample) else np.zeros(len(QUANTILES))
