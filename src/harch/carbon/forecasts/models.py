"""What is a model of the next 96 hours? The interface, and the models that need no fitting."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from harch.carbon.forecasts.history import HORIZON_H, Floats, Panel
from harch.carbon.forecasts.lags import four_days, lag, mean_before


class Fitted(Protocol):
    """A model after fitting."""

    def predict(self, panel: Panel, rows: slice) -> Floats:
        """96 hours from each of these rows, each from the days before its row; [rows, 96], none below 0."""


class Model(Protocol):
    """One way to forecast."""

    @property
    def name(self) -> str: ...

    @property
    def days_min(self) -> int:
        """Whole days that must be known before the first row it is fitted or tested on makes sense."""

    def fit(self, panel: Panel, end: int) -> Fitted:
        """Learns from the days before row `end` of the panel, and from nothing later."""


class Persistence:
    """Yesterday again, four times."""

    name = "persistence"
    days_min = 1

    def fit(self, panel: Panel, end: int) -> Fitted:
        return self

    def predict(self, panel: Panel, rows: slice) -> Floats:
        return four_days(lag(panel.day, 1)[rows])


class Climatology:
    """The same-hour mean of the last seven days, or of as many as there are."""

    name = "climatology"
    days_min = 2

    def fit(self, panel: Panel, end: int) -> Fitted:
        return self

    def predict(self, panel: Panel, rows: slice) -> Floats:
        means = mean_before(panel.day, 7)
        for row in range(1, min(7, len(means))):  # the first week, while it is not a week yet
            means[row] = panel.day[:row].mean(axis=0)
        return four_days(means[rows])


def flat(level: float) -> Floats:
    """Less than a day is known: the mean of what is, for every hour."""
    return np.full(HORIZON_H, level)
