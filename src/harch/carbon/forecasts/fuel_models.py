"""Which plants will run? Forecasts the MW of every fuel, and the intensity from their shares and factors."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import HORIZON_H, Floats, HourPanel
from harch.carbon.forecasts.models import (
    RIDGE_DAYS_MIN,
    Fitted,
    MixShape,
    Ridge,
    Scale,
    ahead,
    calendar_inputs,
    fit_ridge,
    four_days,
    lag,
    lag_inputs,
    mean_before,
    mix_inputs,
    mix_inputs_shape,
    row_weights,
    scale,
)

_PENALTY = 100.0
_SMALL_FUEL = 0.003  # of all generation: below, its weekly mean will do
_RATIO_RISE_MAX = 3.0


@dataclass(frozen=True)
class FuelByFuel:
    """Each fuel from its own past and the load (or, `coupled`, from all shares), then intensity = grams / energy.

    The zone's own method of counting may differ from the factors: yesterday's ratio between its figure and ours
    corrects for that, so factors need to be right in proportion only.
    """

    coupled: bool
    days_min: int = RIDGE_DAYS_MIN

    @property
    def name(self) -> str:
        return "fuels, coupled" if self.coupled else "fuels"

    def fit(self, panel: HourPanel, end: int) -> Fitted:
        shape = mix_inputs_shape(panel, end)
        if not self.coupled:
            shape = MixShape(shape.load, ())
        around = np.hstack([mix_inputs(panel, shape), calendar_inputs(panel)])
        weights = row_weights(panel, end)
        total = panel.fuel_mw[:, :end].mean(axis=(1, 2))
        fuels: list[tuple[Scale, Ridge] | None] = []
        for fuel, day in enumerate(panel.fuel_mw):
            if total[fuel] < _SMALL_FUEL * total.sum():
                fuels.append(None)
                continue
            unit = scale(day, end)
            targets = (ahead(day) - four_days(mean_before(day, 7))) / unit.spread
            inputs = np.hstack([lag_inputs(day, unit), around])
            fuels.append((unit, fit_ridge(inputs, targets, weights, _PENALTY)))
        return _FuelsFitted(shape, tuple(fuels))


@dataclass(frozen=True, eq=False)
class _FuelsFitted:
    shape: MixShape
    fuels: tuple[tuple[Scale, Ridge] | None, ...]

    def predict(self, panel: HourPanel, rows: slice) -> Floats:
        around = np.hstack([mix_inputs(panel, self.shape), calendar_inputs(panel)])[rows]
        count = len(around)
        grams, energy = np.zeros((count, HORIZON_H)), np.zeros((count, HORIZON_H))
        for fitted, day, g_per_kwh in zip(self.fuels, panel.fuel_mw, panel.fuel_g_per_kwh, strict=True):
            mw = four_days(mean_before(day, 7)[rows])
            if fitted is not None:
                unit, ridge = fitted
                inputs = np.hstack([lag_inputs(day, unit)[rows], around])
                mw = np.maximum(mw + ridge(inputs) * unit.spread, 0.0)
            grams += mw * g_per_kwh
            energy += mw
        weekly = four_days(mean_before(panel.day, 7)[rows])
        intensity = np.where(energy > 0, grams / np.where(energy > 0, energy, 1.0) * _ratio(panel)[rows], weekly)
        return np.maximum(intensity, 0.0)


def _ratio(panel: HourPanel) -> Floats:
    """Yesterday's reported intensity over the one that the factors give, per row; 1 where either is zero."""
    energy = panel.fuel_mw.sum(axis=0)
    grams = np.tensordot(panel.fuel_g_per_kwh, panel.fuel_mw, axes=1)
    usable = (energy > 0) & (grams > 0) & (panel.day > 0)
    ours = np.where(usable, grams, 1.0) / np.where(usable, energy, 1.0)
    logs = np.where(usable, np.log(np.where(usable, panel.day, 1.0) / ours), 0.0)
    ratio: Floats = np.exp(np.clip(lag(logs, 1).mean(axis=1, keepdims=True), -_RATIO_RISE_MAX, _RATIO_RISE_MAX))
    return ratio
