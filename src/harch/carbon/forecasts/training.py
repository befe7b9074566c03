"""Which models does this zone get, and how wrong was each lately?

Trains, replays the last days, decides when to train again, and forecasts.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.carbon.forecasts.forecast import (
    CarbonForecast,
    ForecastError,
    Spread,
    TrainedOn,
    guessed_spread,
    model_name,
    spread_of_errors,
)
from harch.carbon.forecasts.fuel_models import FuelByFuel
from harch.carbon.forecasts.history import (
    DAYS_AHEAD,
    HOURS_PER_DAY,
    Floats,
    HourPanel,
    SeriesHistory,
    panel,
    usable_hours,
)
from harch.carbon.forecasts.models import (
    WARM_UP_DAYS,
    Climatology,
    Fitted,
    ForecastModel,
    Persistence,
    RidgeOnDeviations,
    RidgeOnDifferences,
    RidgeOnLevels,
    ahead,
    flat,
)

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


def back_test(panel: HourPanel, models: Sequence[ForecastModel]) -> BackTest:
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


# Which models does this zone get, and what do they say? Trains, decides when to do so again, and forecasts.


ALWAYS: tuple[ForecastModel, ...] = (Persistence(), Climatology())
FROM_VALUES: tuple[ForecastModel, ...] = (RidgeOnLevels(), RidgeOnDifferences(), RidgeOnDeviations())
FROM_MIX: tuple[ForecastModel, ...] = (
    RidgeOnDeviations(with_mix=True),
    FuelByFuel(coupled=False),
    FuelByFuel(coupled=True),
)
RETRAIN_EVERY = timedelta(days=7)
RETRAIN_WHILE_SHORT = timedelta(days=1)
_SHORT_DAYS = 60  # below, each new day adds much
_WEIGHT_MIN = 0.005  # models below are not even asked


@dataclass(frozen=True, eq=False)
class Trained:
    """All that a forecast needs besides the history. It holds for histories that end at this hour of the day."""

    end: datetime
    days: int
    fuel_names: tuple[str, ...]
    models: tuple[tuple[str, Fitted], ...]
    weights: Floats  # [models, 4]
    spread: Spread
    error: ForecastError
    trained_on: TrainedOn


def train(history: SeriesHistory) -> Trained:
    """Back-tests all candidates on the last days, weighs them by their errors, and fits them on everything.

    Works from one usable hour on (`NothingKnown` below that): with less than a day the level alone is known, with less
    than five weeks the naive models stand in for the others.
    """
    known = panel(history)
    candidates = ALWAYS + FROM_VALUES + (FROM_MIX if known.fuel_names else ())
    tested = back_test(known, candidates)
    chosen = [model for model in candidates if model.name in tested.names] or list(ALWAYS[: min(1, known.days)])
    weights = weights_by_error(tested.errors(), tested.days) if tested.names else np.ones((len(chosen), DAYS_AHEAD))
    return Trained(
        end=known.end,
        days=known.days,
        fuel_names=known.fuel_names,
        models=tuple((model.name, model.fit(known, known.days)) for model in chosen),
        weights=weights,
        spread=_spread(known, history, tested, weights),
        error=_error(tested, weights),
        trained_on=_trained_on(history),
    )


def due(trained: Trained | None, end: datetime) -> str | None:
    """Why a zone must be trained before it is forecast from `end`; None while what is there will do."""
    if trained is None:
        return "never trained"
    if trained.end.hour != end.hour:
        return f"trained for forecasts from {trained.end.hour:02}:00, not from {end.hour:02}:00 UTC"
    every = RETRAIN_EVERY if trained.days >= _SHORT_DAYS else RETRAIN_WHILE_SHORT
    if end - trained.end >= every:
        return f"trained {(end - trained.end).days} days ago"
    return "trained on later hours" if end < trained.end else None


def forecast(trained: Trained, history: SeriesHistory) -> CarbonForecast:
    """The 96 hours after the history. Raises `ValueError` when `trained` holds for another hour of the day."""
    if trained.end.hour != history.end.hour:
        raise ValueError(str(due(trained, history.end)))
    known = panel(history)
    usable, notes = _usable_models(trained, known)
    if usable:
        weights = trained.weights[usable] / trained.weights[usable].sum(axis=0)
        recent = known.tail(WARM_UP_DAYS)
        row = slice(recent.days, recent.days + 1)
        predicted = np.array([trained.models[index][1].predict(recent, row) for index in usable])
        mean = combined(weights, predicted)[0]
        by_name = {trained.models[index][0]: weights[place] for place, index in enumerate(usable)}
    else:
        mean, by_name = flat(_level(history)), {"level": np.ones(DAYS_AHEAD)}
    return CarbonForecast(
        start=known.end,
        mean=mean,
        quantiles=trained.spread.around(mean, known.stale_h),
        model=model_name(by_name),
        weights={name: tuple(map(float, weight)) for name, weight in by_name.items()},
        error=trained.error,
        trained_on=trained.trained_on,
        notes=(*known.notes, *notes),
    )


def train_and_forecast(history: SeriesHistory) -> CarbonForecast:
    return forecast(train(history), history)


def _usable_models(trained: Trained, known: HourPanel) -> tuple[list[int], tuple[str, ...]]:
    """Indices of the models that this history can feed, and what has to be said about the others."""
    notes = []
    if known.days < 1:
        notes.append("less than one day of history: constant forecast, with default intervals")
    elif trained.days < _SHORT_DAYS:
        notes.append(f"only {trained.days} days of history: naive models weighted up, intervals widened")
    if trained.fuel_names and known.fuel_names != trained.fuel_names:
        notes.append("the generation mix lacks the fuels used in training: forecast without it")
    from_mix = {model.name for model in FROM_MIX} if known.fuel_names != trained.fuel_names else set()
    naive = {model.name for model in ALWAYS}
    usable = [
        index
        for index, (name, _) in enumerate(trained.models)
        if name not in from_mix and known.days >= (1 if name in naive else WARM_UP_DAYS)
    ]
    weighty = [index for index in usable if trained.weights[index].max() >= _WEIGHT_MIN]
    return weighty or usable, tuple(notes)


def _spread(known: HourPanel, history: SeriesHistory, tested: BackTest, weights: Floats) -> Spread:
    level = _level(history)
    if not tested.names:
        return guessed_spread(level)
    return spread_of_errors(combined(weights, tested.predicted), tested.actual, float(known.day.mean()))


def _error(tested: BackTest, weights: Floats) -> ForecastError:
    if not tested.names:
        unknown = (float("nan"),) * DAYS_AHEAD
        return ForecastError(0, unknown, unknown)
    ours = relative_error(combined(weights, tested.predicted), tested.actual)
    theirs = relative_error(tested.predicted[tested.names.index(ALWAYS[0].name)], tested.actual)
    return ForecastError(tested.days, tuple(map(float, 100.0 * ours)), tuple(map(float, 100.0 * theirs)))


def _trained_on(history: SeriesHistory) -> TrainedOn:
    return TrainedOn(history.start, history.end, int(usable_hours(history.values).sum()))


def _level(history: SeriesHistory) -> float:
    """The mean of the last usable hours, a week's worth at most."""
    usable = history.values[usable_hours(history.values)][-7 * HOURS_PER_DAY :]
    return float(usable.mean()) if len(usable) else 0.0
