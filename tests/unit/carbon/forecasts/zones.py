"""Zones that tests make themselves: a daily shape, a weekend, slow weather and noise, from a seed."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from harch.carbon.forecasts.history import Floats, Fuel, SeriesHistory

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday


def weather(hours: int, seed: int, *, memory_h: float = 30.0) -> Floats:
    """Slow noise of spread 1."""
    rng = np.random.default_rng(seed)
    keep = float(np.exp(-1 / memory_h))
    noise = rng.normal(0.0, np.sqrt(1 - keep**2), hours)
    values = np.zeros(hours)
    values[0] = rng.normal()
    for hour in range(1, hours):
        values[hour] = keep * values[hour - 1] + noise[hour]
    return values


def zone(days: float, seed: int = 1, *, mix: bool = False) -> SeriesHistory:
    """A grid of gas and wind with some sun: about 200 to 450 g/kWh."""
    hours = np.arange(int(days * 24))
    load = 10_000 + 2_000 * np.sin((hours - 9) % 24 / 24 * 2 * np.pi) - 1_500 * ((hours // 24) % 7 >= 5)
    sun = 2_500 * np.maximum(np.sin((hours - 6) % 24 / 24 * 2 * np.pi), 0.0)
    wind = np.clip(2_500 + 1_500 * weather(len(hours), seed), 200, 6_000)
    gas = load - sun - wind
    fuels = (Fuel("nat_gas", gas, 490.0), Fuel("wind", wind, 11.0), Fuel("solar", sun, 45.0))
    grams = sum((fuel.mw * fuel.g_per_kwh for fuel in fuels), np.zeros(len(hours)))
    return SeriesHistory(START, grams / load, fuels if mix else ())
