"""Where is a value going? A rolling history of means per key, by default of four hours, and a Holt trend through it.

Holt's method keeps a level and a trend, both by exponential weights. It is computed anew from the history each time
that a step is complete, so that what is older than the span is forgotten for good; in between the last answer stands.
It knows no seasons: over an hour it serves as a warning, not as a plan. Means are kept in 32 bits, half the checkpoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harch.base.errors import InvariantBroken
from harch.pipelines.sense.kernels import COUNT, SUM, holt
from harch.pipelines.sense.settings import ForecastSettings

FEATURES = ("level", "trend_per_s", "forecast")
_NOT_STARTED = -1
Matrix = NDArray[np.float64]


class Forecast:
    """Histories of all keys of one partition."""

    def __init__(self, settings: ForecastSettings, keys: int, pane_ns: int) -> None:
        self._settings = settings
        self._panes_per_step = settings.step_ns // pane_ns
        self.history: NDArray[np.float32] = np.full((settings.steps, keys), np.nan, np.float32)
        self.step = _NOT_STARTED  # the one that is being filled
        self.filled = 0
        self.count: Matrix = np.zeros(keys)
        self.sum: Matrix = np.zeros(keys)
        self._trend: Matrix = np.full((keys, 3), np.nan)

    def pane_closed(self, pane: int, cells: Matrix) -> None:
        """Adds a pane that takes no more events; completes the step before it."""
        step = pane // self._panes_per_step
        if self.step == _NOT_STARTED:
            self.step = step
        if step > self.step:
            self._complete(step)
        self.count += cells[:, COUNT]
        self.sum += cells[:, SUM]

    def columns(self) -> Matrix:
        """Level, trend per second, and the value expected at the horizon; NaN until two steps have values."""
        settings = self._settings
        answer = np.full((len(self._trend), len(FEATURES)), np.nan)
        known = self._trend[:, 2] >= 2
        level, trend_per_s = self._trend[known, 0], self._trend[known, 1] / settings.step_s
        answer[known] = np.column_stack((level, trend_per_s, level + trend_per_s * settings.horizon_s))
        return answer

    def refresh(self) -> None:
        """Computes the trends from the history; also needed after a history was restored."""
        size = self._settings.steps
        oldest = (self.step - self.filled) % size if self.filled else 0
        weights = self._settings.level_weight, self._settings.trend_weight
        if holt(self.history, oldest, self.filled, *weights, self._trend) < 0:
            raise InvariantBroken("a history has as many keys as its windows", self.history.shape)

    def _complete(self, next_step: int) -> None:
        size = self._settings.steps
        with np.errstate(invalid="ignore", divide="ignore"):
            self.history[self.step % size] = np.where(self.count > 0, self.sum / self.count, np.nan)
        for empty in range(self.step + 1, min(next_step, self.step + 1 + size)):
            self.history[empty % size] = np.nan
        self.filled = min(size, self.filled + next_step - self.step)
        self.step = next_step
        self.count[:] = 0.0
        self.sum[:] = 0.0
        self.refresh()
