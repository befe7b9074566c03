"""What stands in while nobody states a contract? Round figures of no supplier, so that plans have something to show."""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np

from harch.energy.site import EnergySite
from harch.energy.steps import Steps
from harch.energy.tariffs.file import parse_tariff
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice

CONTRACT = """
name = "modelled contract (no supplier's)"
currency = "USD"
time_zone = "UTC"

[energy]
kind = "time-of-use"

[[energy.seasons]]
name = "year"
from = "01-01"
to = "12-31"
[[energy.seasons.bands]]
name = "peak"
price_per_mwh = 150
hours = "17:00-22:00"
[[energy.seasons.bands]]
name = "night"
price_per_mwh = 85
hours = "22:00-07:00"
[[energy.seasons.bands]]
name = "day"
price_per_mwh = 110
"""
_MEAN_PER_MWH, _SWING_PER_MWH, _NOON_DIP_PER_MWH = 90.0, 20.0, 30.0


def modelled_site() -> EnergySite:
    return EnergySite(tariff=parse_tariff(CONTRACT, "the modelled contract"), modelled=True)


def modelled_spot(terms: SpotPrice, currency: str, steps: Steps) -> SpotSeries:
    """A day that repeats: dear mornings and evenings, cheap noons and nights. For trying bids out, never for money."""
    prices = [_price(moment.astimezone(terms.market_time)) for moment in steps.starts()]
    return SpotSeries(terms.zone, currency, steps, np.array(prices))


def _price(local: datetime) -> float:
    hour = local.hour + local.minute / 60
    two_peaks = -math.cos(4 * math.pi * (hour - 1.5) / 24)
    noon = math.exp(-(((hour - 13) / 2.5) ** 2))
    return round(_MEAN_PER_MWH + _SWING_PER_MWH * two_peaks - _NOON_DIP_PER_MWH * noon, 2)
