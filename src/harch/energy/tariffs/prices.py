"""What does a MWh cost in each step, as far as anybody knows? Contract terms and published spot prices as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.base.errors import HarchError
from harch.energy.steps import Array, Steps, series
from harch.energy.tariffs.terms import QUARTER_MINUTES, FlatPrice, SpotPrice, Tariff, TimeOfUse

HISTORY_DAYS = 7
DECAY_H = 12.0  # a deviation from the usual is expected to halve in about eight hours


@dataclass(frozen=True, slots=True)
class SpotSeries:
    """Spot prices per MWh of one zone, as a market publishes them; NaN where it said nothing."""

    zone: str
    currency: str
    steps: Steps
    per_mwh: Array

    def __post_init__(self) -> None:
        silent = np.isnan(np.asarray(self.per_mwh, dtype=np.float64))
        said = series(np.where(silent, 0.0, self.per_mwh), self.steps, f"spot prices of {self.zone}")
        object.__setattr__(self, "per_mwh", np.where(silent, np.nan, said))

    def over(self, steps: Steps) -> Array:
        """The price of each step, NaN where the series says nothing."""
        offsets = np.array([(moment - self.steps.at(0)).total_seconds() for moment in steps.starts()])
        index = np.floor(offsets / self.steps.step_s).astype(int)
        inside = (index >= 0) & (index < self.steps.count)
        return np.where(inside, self.per_mwh[np.clip(index, 0, self.steps.count - 1)], np.nan)


def known_spot(spot: SpotSeries, terms: SpotPrice, steps: Steps, *, now: datetime) -> Array:
    """What is published at `now`; NaN for every later step, whatever the series already holds."""
    until = terms.known_until(now)
    known = np.array([moment < until for moment in steps.starts()])
    return np.where(known, spot.over(steps), np.nan)


def expected_spot(spot: SpotSeries, terms: SpotPrice, steps: Steps, *, now: datetime) -> Array:
    """Published prices, and beyond them the mean of the same hour of the last days, drawn towards the last known day.

    NaN remains where there is no price at all to go by.
    """
    known = known_spot(spot, terms, steps, now=now)
    gaps = np.isnan(known)
    if not gaps.any():
        return known
    until = terms.known_until(now)
    usual, latest = _usual(spot, steps, until)
    # In quarter hours, because midnight is not a whole UTC hour everywhere.
    last_known = Steps(until - timedelta(days=1), 900, 24 * 4)
    before, _ = _usual(spot, last_known, until - timedelta(days=1))
    drift = spot.over(last_known) - before
    mean_drift = float(np.nanmean(drift)) if np.isfinite(drift).any() else 0.0
    hours_beyond = np.array([(moment - until).total_seconds() / 3600 for moment in steps.starts()])
    expected = usual + mean_drift * np.exp(-np.maximum(hours_beyond, 0) / (2 * DECAY_H))
    return np.where(gaps, np.where(np.isnan(expected), latest, expected), known)


def _usual(spot: SpotSeries, steps: Steps, until: datetime) -> tuple[Array, Array]:
    """Per step: the mean of the same hour over the last week of days before `until`, and its latest value."""
    days = []
    for back in range(1, HISTORY_DAYS + 3):
        earlier = Steps(steps.start - timedelta(days=back), steps.step_s, steps.count)
        past = np.array([moment < until for moment in earlier.starts()])
        days.append(np.where(past, spot.over(earlier), np.nan))
    table = np.array(days)
    found = np.isfinite(table)
    rank = np.cumsum(found, axis=0)
    chosen = found & (rank <= HISTORY_DAYS)
    count = chosen.sum(axis=0)
    total = np.where(chosen, table, 0.0).sum(axis=0)
    mean = np.divide(total, count, out=np.full(steps.count, np.nan), where=count > 0)
    latest = np.where(found.any(axis=0), table[np.argmax(found, axis=0), np.arange(steps.count)], np.nan)
    return mean, latest


def import_prices(tariff: Tariff, steps: Steps, *, spot_per_mwh: Array | None = None) -> Array:
    """Per imported MWh and step, fee included. `spot_per_mwh` is needed by spot contracts only."""
    return energy_prices(tariff, steps, spot_per_mwh=spot_per_mwh) + tariff.fee_per_mwh


def energy_prices(tariff: Tariff, steps: Steps, *, spot_per_mwh: Array | None = None) -> Array:
    """The same without the fee."""
    match tariff.energy:
        case FlatPrice(per_mwh):
            return np.full(steps.count, per_mwh)
        case TimeOfUse() as terms:
            shares = band_shares(terms, tariff, steps)
            return np.array([sum(per_mwh * share for _, per_mwh, share in step) for step in shares])
        case SpotPrice(zone=zone):
            return series(_needed(spot_per_mwh, zone), steps, f"spot prices of {zone}")


def band_shares(terms: TimeOfUse, tariff: Tariff, steps: Steps) -> Iterator[list[tuple[str, float, float]]]:
    """For each step the bands it touches, with price and share of the step: bands may change within an hour."""
    quarters = steps.step_s // (QUARTER_MINUTES * 60)
    for moment in steps.starts():
        found: dict[tuple[str, float], float] = {}
        for quarter in range(quarters):
            local = (moment + timedelta(minutes=QUARTER_MINUTES * quarter)).astimezone(tariff.local_time)
            band = terms.band_at(local)
            found[band] = found.get(band, 0.0) + 1 / quarters
        yield [(name, per_mwh, share) for (name, per_mwh), share in found.items()]


def sale_prices(tariff: Tariff, steps: Steps, *, spot_per_mwh: Array | None = None) -> Array:
    """Per sold MWh and step; 0 where the contract buys nothing back."""
    sale = tariff.sale
    if sale is None:
        return np.zeros(steps.count)
    if sale.share_of_spot is not None:
        return sale.share_of_spot * series(_needed(spot_per_mwh, "the contract"), steps, "spot prices for sales")
    return np.full(steps.count, sale.per_mwh or 0.0)


def _needed(spot_per_mwh: Array | None, zone: str) -> Array:
    if spot_per_mwh is None:
        raise HarchError(
            "E0242", f"the contract needs the spot prices of {zone}, and none were given", hint="give a price per step"
        )
    return spot_per_mwh
