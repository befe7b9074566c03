"""Which models does this zone get, and what do they say? Trains, decides when to do so again, and forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.carbon.forecasts.backtest import BackTest, back_test, combined, relative_error, weights_by_error
from harch.carbon.forecasts.forecast import Forecast, ForecastError, TrainedOn, model_name
from harch.carbon.forecasts.fuel_models import FuelByFuel
from harch.carbon.forecasts.history import DAYS_AHEAD, HOURS_PER_DAY, Floats, History, Panel, panel, usable_hours
from harch.carbon.forecasts.intervals import Spread, guessed_spread, spread_of_errors
from harch.carbon.forecasts.lags import WARM_UP_DAYS
from harch.carbon.forecasts.models import Climatology, Fitted, Model, Persistence, flat
from harch.carbon.forecasts.ridge_models import RidgeOnDeviations, RidgeOnDifferences, RidgeOnLevels

ALWAYS: tuple[Model, ...] = (Persistence(), Climatology())
FROM_VALUES: tuple[Model, ...] = (RidgeOnLevels(), RidgeOnDifferences(), RidgeOnDeviations())
FROM_MIX: tuple[Model, ...] = (RidgeOnDeviations(with_mix=True), FuelByFuel(coupled=False), FuelByFuel(coupled=True))
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


def train(history: History) -> Trained:
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


def forecast(trained: Trained, history: History) -> Forecast:
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
    return Forecast(
        start=known.end,
        mean=mean,
        quantiles=trained.spread.around(mean, known.stale_h),
        model=model_name(by_name),
        weights={name: tuple(map(float, weight)) for name, weight in by_name.items()},
        error=trained.error,
        trained_on=trained.trained_on,
        notes=(*known.notes, *notes),
    )


def train_and_forecast(history: History) -> Forecast:
    return forecast(train(history), history)


def _usable_models(trained: Trained, known: Panel) -> tuple[list[int], tuple[str, ...]]:
    """Indices of the models that this history can feed, and what has to be said about the others."""
    notes = []
    if known.days < 1:
        notes.append("less than one day of history: one level for all hours, with guessed intervals")
    elif trained.days < _SHORT_DAYS:
        notes.append(f"only {trained.days} days of history: naive models weigh more and intervals are wider")
    if trained.fuel_names and known.fuel_names != trained.fuel_names:
        notes.append("the generation mix does not name the fuels of the training: forecast without it")
    from_mix = {model.name for model in FROM_MIX} if known.fuel_names != trained.fuel_names else set()
    naive = {model.name for model in ALWAYS}
    usable = [
        index
        for index, (name, _) in enumerate(trained.models)
        if name not in from_mix and known.days >= (1 if name in naive else WARM_UP_DAYS)
    ]
    weighty = [index for index in usable if trained.weights[index].max() >= _WEIGHT_MIN]
    return weighty or usable, tuple(notes)


def _spread(known: Panel, history: History, tested: BackTest, weights: Floats) -> Spread:
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


def _trained_on(history: History) -> TrainedOn:
    return TrainedOn(history.start, history.end, int(usable_hours(history.values).sum()))


def _level(history: History) -> float:
    """The mean of the last usable hours, a week's worth at most."""
    usable = history.values[usable_hours(history.values)][-7 * HOURS_PER_DAY :]
    return float(usable.mean()) if len(usable) else 0.0
