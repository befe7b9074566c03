"""How do last days become next days, linearly? A ridge pair on raw values, and ridge on deviations in the logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from harch.carbon.forecasts.history import Floats, Panel
from harch.carbon.forecasts.lags import (
    Scale,
    ahead,
    calendar_inputs,
    deviations,
    four_days,
    lag,
    lag_inputs,
    mean_before,
    row_weights,
    scale,
)
from harch.carbon.forecasts.models import Fitted
from harch.carbon.forecasts.ridge import Ridge, fit_ridge, fit_robust_ridge

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

    def fit(self, panel: Panel, end: int) -> Fitted:
        return _fit_standardised(panel, end, _PENALTY_LEVELS, "levels")


@dataclass(frozen=True)
class RidgeOnDifferences:
    """(B) The same lags as differences from the last hour; predicts the difference from it."""

    name: str = "ridge on differences"
    days_min: int = RIDGE_DAYS_MIN

    def fit(self, panel: Panel, end: int) -> Fitted:
        return _fit_standardised(panel, end, _PENALTY_DIFFERENCES, "differences")


_View = Literal["levels", "differences"]


@dataclass(frozen=True, eq=False)
class _StandardisedFitted:
    view: _View
    unit: Floats
    ridge: Ridge

    def predict(self, panel: Panel, rows: slice) -> Floats:
        inputs, origin = _view(panel, self.view)
        return np.maximum(self.ridge(inputs[rows] / self.unit) + origin[rows], 0.0)


def _fit_standardised(panel: Panel, end: int, penalty: float, view: _View) -> Fitted:
    inputs, origin = _view(panel, view)
    weights = row_weights(panel, end)
    unit = inputs[weights > 0].std(axis=0)
    unit[unit < 1e-9] = 1.0
    return _StandardisedFitted(view, unit, fit_ridge(inputs / unit, ahead(panel.day) - origin, weights, penalty))


def _view(panel: Panel, view: _View) -> tuple[Floats, Floats]:
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

    def fit(self, panel: Panel, end: int) -> Fitted:
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


def mix_inputs_shape(panel: Panel, end: int) -> MixShape:
    load, shares = _load_and_shares(panel)
    counted = [
        (fuel, scale(share, end))
        for fuel, share in enumerate(shares)
        if share[:end].mean() >= _SHARE_MIN and share[:end].std() >= _SHARE_SPREAD_MIN
    ]
    return MixShape(scale(load, end), tuple(counted))


def mix_inputs(panel: Panel, shape: MixShape) -> Floats:
    """Yesterday's load and shares as scaled inputs: their shape, their mean and their last hours."""
    load, shares = _load_and_shares(panel)
    inputs = [_LOAD * deviations(load, shape.load)]
    for fuel, unit in shape.shares:
        yesterday = deviations(shares[fuel], unit)
        last = yesterday[:, -3:].mean(axis=1, keepdims=True)
        inputs += [yesterday.mean(axis=1, keepdims=True), last, _SHARE_SHAPE * yesterday]
    return np.hstack(inputs)


def _load_and_shares(panel: Panel) -> tuple[Floats, Floats]:
    total = np.maximum(panel.fuel_mw.sum(axis=0), 1e-3)
    return np.log(total), panel.fuel_mw / total


@dataclass(frozen=True)
class _Shape:
    offset: float
    unit: Scale
    mix: MixShape | None

    def inputs(self, panel: Panel, logs: Floats) -> Floats:
        own = lag_inputs(logs, self.unit)
        around = [mix_inputs(panel, self.mix)] if self.mix is not None else []
        return np.hstack([own, *around, calendar_inputs(panel)])


@dataclass(frozen=True, eq=False)
class _DeviationsFitted:
    shape: _Shape
    ridge: Ridge

    def predict(self, panel: Panel, rows: slice) -> Floats:
        logs = np.log(panel.day + self.shape.offset)
        base = four_days(mean_before(logs, 7)[rows])
        rise = self.ridge(self.shape.inputs(panel, logs)[rows]) * self.shape.unit.spread
        return np.maximum(np.exp(base + np.clip(rise, -_LOG_RISE_MAX, _LOG_RISE_MAX)) - self.shape.offset, 0.0)
