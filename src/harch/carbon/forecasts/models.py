"""What is a model of the next 96 hours?

The interface, models that need no fitting, and ridge regression on lags, on raw values and on deviations in the
logarithm.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from harch.carbon.forecasts.history import DAYS_AHEAD, HORIZON_H, Floats, HourPanel

WARM_UP_DAYS = 14  # rows before this one lack some lag
_YEAR_DAYS = 365.25
_DAY_S = 86_400

# How much a standardised input may matter before it is penalised; chosen on January to June 2021 of 13 zones, for all
# zones alike. The last hours say most; the shape of a week ago says little beyond the mean of the week.
_LAST_HOUR, _LAST_HOURS, _WEEK_AGO, _WEEK_MEAN, _FORTNIGHT = 27.0, 9.0, 0.165, 0.3, 2.7
_HALF_YEAR, _WEEKDAY = 1.5, 3.0
_SEEN_MIN = 0.75  # of the hours that a row should predict


def lag(day: Floats, days: int) -> Floats:
    """Row `i` is day `i - days`; one row longer than `day`, for the first unknown day. Rows without it are NaN."""
    shifted = np.full((len(day) + 1, day.shape[1]), np.nan)
    shifted[days:] = day[: max(0, len(day) + 1 - days)]
    return shifted


def mean_before(day: Floats, days: int) -> Floats:
    """Same-hour mean of the `days` days before each row; NaN where fewer are known."""
    means = np.full((len(day) + 1, day.shape[1]), np.nan)
    rows = len(day) + 1 - days
    if rows > 0:  # a running sum would be faster, and wrong for days after a huge reading
        means[days:] = sum((day[first : first + rows] / days for first in range(1, days)), day[:rows] / days)
    return means


def ahead(day: Floats) -> Floats:
    """Row `i` is what a forecast from row `i` should say: days `i` to `i + 3`, NaN where not yet known."""
    rows = len(day) + 1
    padded = np.vstack([day, np.full((DAYS_AHEAD, day.shape[1]), np.nan)])
    return np.hstack([padded[step : step + rows] for step in range(DAYS_AHEAD)])


def four_days(day: Floats) -> Floats:
    """The same 24 hours for each of the four days ahead."""
    return np.tile(day, DAYS_AHEAD)


@dataclass(frozen=True)
class Scale:
    """What 'usual' means for a series: fixed when a model is fitted, from days before `end` only."""

    centre: float
    spread: float


def scale(day: Floats, end: int) -> Scale:
    deviation = (lag(day, 1) - mean_before(day, 7))[7:end]
    spread = float(np.std(deviation)) if len(deviation) else 0.0
    centre = float(np.mean(day[:end])) if end else 0.0
    return Scale(centre, spread if spread > 1e-9 * max(1.0, abs(centre)) else 1.0)


def deviations(day: Floats, unit: Scale) -> Floats:
    """Yesterday against the mean of its week, hour by hour, in units of the usual deviation."""
    return (lag(day, 1) - mean_before(day, 7)) / unit.spread


def lag_inputs(day: Floats, unit: Scale) -> Floats:
    """A series' own past as scaled inputs: last hours, yesterday, a week ago, level of one week and of two."""
    week = mean_before(day, 7)
    yesterday = deviations(day, unit)
    return np.hstack(
        [
            _LAST_HOUR * yesterday[:, -1:],
            _LAST_HOURS * yesterday[:, -4:-1],
            yesterday,
            yesterday.mean(axis=1, keepdims=True),
            _WEEK_AGO * (lag(day, 7) - week) / unit.spread,
            _WEEK_MEAN * (week - unit.centre) / unit.spread,
            _FORTNIGHT * (mean_before(day, 14) - week) / unit.spread,
        ]
    )


def calendar_inputs(panel: HourPanel) -> Floats:
    """Season (year and half year) and weekday of each row's first hour, in UTC."""
    first = panel.end.timestamp() / _DAY_S - panel.days  # in days since Thursday, 1 January 1970
    day = first + np.arange(panel.days + 1)
    angle = day[:, None] * 2 * np.pi / _YEAR_DAYS
    weekday = np.eye(7)[(np.floor(day).astype(np.int64) + 3) % 7]
    half_year = _HALF_YEAR * np.hstack([np.sin(2 * angle), np.cos(2 * angle)])
    return np.hstack([np.sin(angle), np.cos(angle), half_year, _WEEKDAY * weekday])


def row_weights(panel: HourPanel, end: int) -> Floats:
    """1 for each row that may teach a model made at `end`: warmed up, its four days over and mostly observed."""
    weights = np.zeros(panel.days + 1)
    rows = np.arange(WARM_UP_DAYS, end - DAYS_AHEAD + 1)
    if len(rows):
        seen = np.concatenate([[0.0], np.cumsum(panel.observed.mean(axis=1))])
        share = (seen[rows + DAYS_AHEAD] - seen[rows]) / DAYS_AHEAD
        # A feed that never delivers most of its hours teaches by what it does deliver.
        weights[rows] = share >= _SEEN_MIN if (share >= _SEEN_MIN).any() else np.maximum(share, 0.01)
    return weights


# What is a model of the next 96 hours? The interface, and the models that need no fitting.


class Fitted(Protocol):
    """A model after fitting."""

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        """96 hours from each of these rows, each from the days before its row; [rows, 96], none below 0."""


class ForecastModel(Protocol):
    """One way to forecast."""

    @property
    def name(self) -> str: ...

    @property
    def days_min(self) -> int:
        """Whole days that must be known before the first row it is fitted or tested on makes sense."""

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        """Learns from the days before row `end` of the panel, and from nothing later."""


class Persistence:
    """Yesterday again, four times."""

    name = "persistence"
    days_min = 1

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        return self

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        return four_days(lag(panel.day, 1)[rows])


class Climatology:
    """The same-hour mean of the last seven days, or of as many as there are."""

    name = "climatology"
    days_min = 2

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        return self

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        means = mean_before(panel.day, 7)
        for row in range(1, min(7, len(means))):  # the first week, while it is not a week yet
            means[row] = panel.day[:row].mean(axis=0)
        return four_days(means[rows])


def flat(level: float) -> Floats:
    """Less than a day is known: the mean of what is, for every hour."""
    return np.full(HORIZON_H, level)


# Which linear map from what is known to the next hours fits best without overfitting? Ridge, intercept unpenalised.


ROBUST_ROUNDS = 3
_RESIDUAL_FLOOR = 0.3  # of the median: without it a few perfect rows would outweigh all others


@dataclass(frozen=True, eq=False)
class Ridge:
    """A fitted map: `(x - centre) @ slopes + intercept`."""

    centre: Floats
    slopes: Floats
    intercept: Floats

    def __call__(self, inputs: Floats) -> Floats:
        predicted: Floats = (inputs - self.centre) @ self.slopes + self.intercept
        return predicted


def fit_ridge(inputs: Floats, targets: Floats, weights: Floats, penalty: float) -> Ridge:
    """Weighted ridge with all outputs at once. Rows of weight 0 do not count; needs one row that does.

    Centring leaves the intercept unpenalised: penalising it pulls a grid of 600 g/kWh towards zero.
    """
    counted = weights > 0
    inputs, targets, weights = inputs[counted], targets[counted], weights[counted]
    centre, intercept = np.average(inputs, axis=0, weights=weights), np.average(targets, axis=0, weights=weights)
    root = np.sqrt(weights)[:, None]
    x, y = (inputs - centre) * root, (targets - intercept) * root
    rows, columns = x.shape
    if columns <= rows:
        slopes = np.linalg.solve(x.T @ x + penalty * np.eye(columns), x.T @ y)
    else:  # the dual form: the same slopes from the smaller system
        slopes = x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(rows), y)
    return Ridge(centre, slopes.astype(np.float64), intercept)


def fit_robust_ridge(inputs: Floats, targets: Floats, weights: Floats, penalty: float) -> Ridge:
    """Ridge refitted with less weight for days that fit badly: holidays and outages teach little about other days."""
    counted = weights > 0
    inputs, targets, weights = inputs[counted], targets[counted], weights[counted]
    fitted = fit_ridge(inputs, targets, weights, penalty)
    for _ in range(ROBUST_ROUNDS):
        residual = np.sqrt(np.mean((targets - fitted(inputs)) ** 2, axis=1))
        floor = _RESIDUAL_FLOOR * float(np.median(residual))
        if floor <= 0.0:
            return fitted
        lighter = weights / np.maximum(residual, floor)
        fitted = fit_ridge(inputs, targets, lighter / lighter.mean(), penalty)
    return fitted


# How do last days become next days, linearly? A ridge pair on raw values, and ridge on deviations in the logarithm.


RIDGE_DAYS_MIN = 25  # two weeks of warm-up, four days ahead, and a week of rows to learn from
_PENALTY_LEVELS, _PENALTY_DIFFERENCES, _PENALTY_DEVIATIONS = 30.0, 300.0, 100.0
_LOG_OFFSET = 0.01  # of the mean level: keeps the logarithm of an hour without any emissions finite
_LOG_RISE_MAX = 5.0  # no hour is forecast above e^5 of the usual
_LOAD, _SHARE_SHAPE = 0.5, 0.3
_SHARE_MIN, _SHARE_SPREAD_MIN = 0.01, 0.005  # fuels below these say nothing about tomorrow


@dataclass(frozen=True)
class RidgeOnLevels:
    """(A) Standardised d-1, d-2, d-7, weekly mean, season and weekday; predicts the values themselves."""

    name: str = "ridge on levels"
    days_min: int = RIDGE_DAYS_MIN

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        return _fit_standardised(panel, end, _PENALTY_LEVELS, "levels")


@dataclass(frozen=True)
class RidgeOnDifferences:
    """(B) The same lags as differences from the last hour; predicts the difference from it."""

    name: str = "ridge on differences"
    days_min: int = RIDGE_DAYS_MIN

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        return _fit_standardised(panel, end, _PENALTY_DIFFERENCES, "differences")


_View = Literal["levels", "differences"]


@dataclass(frozen=True, eq=False)
class _StandardisedFitted:
    view: _View
    unit: Floats
    ridge: Ridge

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        inputs, origin = _view(panel, self.view)
        return np.maximum(self.ridge(inputs[rows] / self.unit) + origin[rows], 0.0)


def _fit_standardised(panel: HourPanel, end: int, penalty: float, view: _View) -> Fitted:
    inputs, origin = _view(panel, view)
    weights = row_weights(panel, end)
    unit = inputs[weights > 0].std(axis=0)
    unit[unit < 1e-9] = 1.0
    return _StandardisedFitted(view, unit, fit_ridge(inputs / unit, ahead(panel.day) - origin, weights, penalty))


def _view(panel: HourPanel, view: _View) -> tuple[Floats, Floats]:
    """Inputs of each row, and what its targets are counted from."""
    day = panel.day
    lags = [lag(day, 1), lag(day, 2), lag(day, 7), mean_before(day, 7)]
    if view == "levels":
        return np.hstack([*lags, calendar_inputs(panel)]), np.zeros((len(day) + 1, 1))
    last = lags[0][:, -1:]
    return np.hstack([*(values - last for values in lags), last - lags[0].mean(axis=1, keepdims=True)]), last


@dataclass(frozen=True)
class RidgeOnDeviations:
    """Deviation from the weekly mean, in the logarithm, with inputs weighted by how much they usually say; robust.

    With the mix, the load and each fuel's share are inputs too: a windy day ends, a reactor outage stays.
    """

    with_mix: bool = False
    days_min: int = RIDGE_DAYS_MIN

    @property
    def name(self) -> str:
        return "ridge with mix" if self.with_mix else "ridge on deviations"

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        offset = _LOG_OFFSET * float(panel.day[:end].mean()) or 1.0
        logs = np.log(panel.day + offset)
        shape = _Shape(offset, scale(logs, end), mix_inputs_shape(panel, end) if self.with_mix else None)
        base = four_days(mean_before(logs, 7))
        targets = (ahead(logs) - base) / shape.unit.spread
        weights = row_weights(panel, end)
        return _DeviationsFitted(
            shape, fit_robust_ridge(shape.inputs(panel, logs), targets, weights, _PENALTY_DEVIATIONS)
        )


@dataclass(frozen=True)
class MixShape:
    """Which fuels count as inputs, and the usual deviation of the load and of each share."""

    load: Scale
    shares: tuple[tuple[int, Scale], ...]


def mix_inputs_shape(panel: HourPanel, end: int) -> MixShape:
    load, shares = _load_and_shares(panel)
    counted = [
        (fuel, scale(share, end))
        for fuel, share in enumerate(shares)
        if share[:end].mean() >= _SHARE_MIN and share[:end].std() >= _SHARE_SPREAD_MIN
    ]
    return MixShape(scale(load, end), tuple(counted))


def mix_inputs(panel: HourPanel, shape: MixShape) -> Floats:
    """Yesterday's load and shares as scaled inputs: their shape, their mean and their last hours."""
    load, shares = _load_and_shares(panel)
    inputs = [_LOAD * deviations(load, shape.load)]
    for fuel, unit in shape.shares:
        yesterday = deviations(shares[fuel], unit)
        last = yesterday[:, -3:].mean(axis=1, keepdims=True)
        inputs += [yesterday.mean(axis=1, keepdims=True), last, _SHARE_SHAPE * yesterday]
    return np.hstack(inputs)


def _load_and_shares(panel: HourPanel) -> tuple[Floats, Floats]:
    total = np.maximum(panel.fuel_mw.sum(axis=0), 1e-3)
    return np.log(total), panel.fuel_mw / total


@dataclass(frozen=True)
class _Shape:
    offset: float
    unit: Scale
    mix: MixShape | None

    def inputs(self, panel: HourPanel, logs: Floats) -> Floats:
        own = lag_inputs(logs, self.unit)
        around = [mix_inputs(panel, self.mix)] if self.mix is not None else []
        return np.hstack([own, *around, calendar_inputs(panel)])


@dataclass(frozen=True, eq=False)
class _DeviationsFitted:
    shape: _Shape
    ridge: Ridge

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        logs = np.log(panel.day + self.shape.offset)
        base = four_days(mean_before(logs, 7)[rows])
        rise = self.ridge(self.shape.inputs(panel, logs)[rows]) * self.shape.unit.spread
        return np.maximum(np.exp(base + np.clip(rise, -_LOG_RISE_MAX, _LOG_RISE_MAX)) - self.shape.offset, 0.0)
