"""How wrong was each model lately, had it been used? A rolling replay over the last days, refitted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import DAYS_AHEAD, HOURS_PER_DAY, Floats, Panel
from harch.carbon.forecasts.lags import ahead
from harch.carbon.forecasts.models import Model

TEST_DAYS_MAX = 60
REFIT_DAYS = 15  # service refits weekly; half as often costs half and ranks the models alike
_SMALL_ACTUAL = 0.05  # of the mean: relative errors of hours near zero would drown all others
_SHARPNESS = 16.0  # how fast a model's weight falls with its error: 10 % worse has about a fifth of the weight

_DAYS_TRUSTED = 28  # from here on errors count fully
_WEIGHT_LEAST = 1e-30  # never 0: the worst model must do when all others cannot be fed


@dataclass(frozen=True, eq=False)
class BackTest:
    """What the models would have said on the tested days, and what came; `actual` is NaN where it is not known."""

    names: tuple[str, ...]
    predicted: Floats  # [models, days, 96]
    actual: Floats  # [days, 96]

    @property
    def days(self) -> int:
        return len(self.actual)

    def errors(self) -> Floats:
        """Mean relative error per model and day ahead; NaN where nothing was observed. [models, 4]"""
        return np.array([relative_error(predicted, self.actual) for predicted in self.predicted])


def back_test_days(days: int) -> int:
    """How many of the known days are tested on: a quarter, so that enough are left to learn from."""
    return min(TEST_DAYS_MAX, max(1, days // 4)) if days >= 2 else 0


def back_test(panel: Panel, models: Sequence[Model]) -> BackTest:
    """Replays every model that had enough days before the tested ones. Each fit sees only days before its row."""
    first = panel.days - back_test_days(panel.days)
    tested = [model for model in models if first >= model.days_min] if first < panel.days else []
    predicted = np.zeros((len(tested), panel.days - first, DAYS_AHEAD * HOURS_PER_DAY))
    for index, model in enumerate(tested):
        for row in range(first, panel.days, REFIT_DAYS):
            rows = slice(row, min(row + REFIT_DAYS, panel.days))
            predicted[index, rows.start - first : rows.stop - first] = model.fit(panel, row).predict(panel, rows)
    seen = np.where(panel.observed, panel.day, np.nan)
    return BackTest(tuple(model.name for model in tested), predicted, ahead(seen)[first : panel.days])


def relative_error(predicted: Floats, actual: Floats) -> Floats:
    """Mean of |predicted - actual| / actual per day ahead, over the hours that were observed. [4]"""
    observed = np.isfinite(actual)
    known = np.where(observed, actual, 0.0)
    level = known.sum() / max(1, int(observed.sum()))
    floor = max(_SMALL_ACTUAL * level, 1e-9)
    relative = np.where(observed, np.abs(predicted - known) / np.maximum(known, floor), 0.0)
    by_day = (len(actual), DAYS_AHEAD, HOURS_PER_DAY)
    total, count = relative.reshape(by_day).sum(axis=(0, 2)), observed.reshape(by_day).sum(axis=(0, 2))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def weights_by_error(errors: Floats, days: int) -> Floats:
    """Weights of the models per day ahead, from their errors over so many tested days; columns sum to 1.

    An average of good models beats the best of them; bad ones fall out by the steep power. A day ahead that was never
    observed takes the weights of the day before it. Few tested days say little: then the weights are more even.
    """
    models, days_ahead = errors.shape
    sharpness = _SHARPNESS * min(1.0, days / _DAYS_TRUSTED)
    weights = np.full((models, days_ahead), 1.0 / models)
    for day in range(days_ahead):
        error = errors[:, day]
        if not np.isfinite(error).all():
            if day:
                weights[:, day] = weights[:, day - 1]
            continue
        raw = np.maximum((np.maximum(error, 1e-9) / max(float(error.min()), 1e-9)) ** -sharpness, _WEIGHT_LEAST)
        weights[:, day] = raw / raw.sum()
    return weights


def combined(weights: Floats, predicted: Floats) -> Floats:
    """The weighted average: weights [models, 4], predicted [models, rows, 96]."""
    average: Floats = np.einsum("mh,mrh->rh", np.repeat(weights, HOURS_PER_DAY, axis=1), predicted)
    return average
