"""Which linear map from what is known to the next hours fits best without overfitting? Ridge, intercept unpenalised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import Floats

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
