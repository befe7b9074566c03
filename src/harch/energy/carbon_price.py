"""What will a MWh cost if its carbon has a price? The tariff plus forecast intensity times a price per tonne."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harch.energy.currencies import ExchangeRates
from harch.energy.steps import Array, Steps, series

USD_PER_T = 80.0


@dataclass(frozen=True, slots=True)
class CarbonPrices:
    """Per MWh and step: what the contract asks, what carbon adds, and on which price per tonne that rests."""

    steps: Steps
    currency: str
    tariff_per_mwh: Array
    carbon_per_mwh: Array
    per_t: float
    basis: str  # "stated" or "shadow price of the budget"

    @property
    def total_per_mwh(self) -> Array:
        return self.tariff_per_mwh + self.carbon_per_mwh


def predicted_prices(
    steps: Steps,
    tariff_per_mwh: ArrayLike,
    grid_g_per_kwh: ArrayLike,
    *,
    currency: str,
    usd_per_t: float = USD_PER_T,
    shadow_per_t: float | None = None,
    rates: ExchangeRates | None = None,
) -> CarbonPrices:
    """A stated price per tonne, or the shadow price of a carbon budget where that is higher.

    g/kWh times money per tonne divided by 1000 is money per MWh. `shadow_per_t` is in `currency`, as plans publish it.
    Raises HarchError E0241 if dollars cannot be converted, E0242 for series with gaps.
    """
    tariff = series(tariff_per_mwh, steps, "tariff prices")
    grid = series(grid_g_per_kwh, steps, "grid intensity", floor=0)
    stated = (rates or ExchangeRates()).convert(usd_per_t, of="USD", to=currency)
    by_budget = shadow_per_t is not None and shadow_per_t > stated
    per_t = float(np.float64(shadow_per_t if by_budget else stated))
    return CarbonPrices(
        steps, currency, tariff, grid * per_t / 1000, per_t, "shadow price of the budget" if by_budget else "stated"
    )
