"""What does a MWh cost in each step, and what is to be paid for a use?

Contract terms and published spot prices as arrays; lines of a bill that add up.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import ArrayLike

from harch.base.errors import HarchError
from harch.energy.steps import KWH_PER_MWH, Array, Steps, series
from harch.energy.tariffs.terms import QUARTER_MINUTES, FlatPrice, Ppa, SpotPrice, Tariff, TimeOfUse

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
        published = series(np.where(silent, 0.0, self.per_mwh), self.steps, f"spot prices of {self.zone}")
        object.__setattr__(self, "per_mwh", np.where(silent, np.nan, published))

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
            "E0242", f"the contract needs the spot prices of {zone}, but none were given", hint="give a price per step"
        )
    return spot_per_mwh


# What is to be paid for a use? Lines that a person can check one by one, and that add up to the total.


@dataclass(frozen=True, slots=True)
class BillLine:
    """One line: what, how much of it, in which unit, and what it costs. Revenue is negative."""

    what: str
    quantity: float
    unit: str
    amount: float


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines, in one currency."""

    currency: str
    lines: tuple[BillLine, ...]

    @property
    def total(self) -> float:
        return math.fsum(line.amount for line in self.lines)


@dataclass(frozen=True, slots=True)
class PpaDelivery:
    """What an agreement offered in each step and what of it was used."""

    terms: Ppa
    offered_kwh: Array
    used_kwh: Array

    @property
    def paid_kwh(self) -> float:
        return float((self.offered_kwh if self.terms.must_take else self.used_kwh).sum())


def bill(
    tariff: Tariff,
    steps: Steps,
    import_kwh: ArrayLike,
    *,
    ppas: Sequence[PpaDelivery] = (),
    sold_kwh: ArrayLike = 0.0,
    spot_per_mwh: Array | None = None,
    peaks_before_kw: dict[str, float] | None = None,
) -> Bill:
    """The bill of a metered use. `import_kwh` is what came under the contract's energy price, without the agreements.

    `peaks_before_kw` holds the peak that each local month had before these steps: only what exceeds it is charged.
    Raises HarchError E0242 for series with gaps or negative energy.
    """
    imported = series(import_kwh, steps, "imported energy", floor=0)
    sold = series(sold_kwh, steps, "sold energy", floor=0)
    lines = _energy_lines(tariff, steps, imported, spot_per_mwh)
    if tariff.fee_per_mwh:
        energy_mwh = float(imported.sum()) / KWH_PER_MWH
        lines.append(BillLine("network fee", energy_mwh, "MWh", energy_mwh * tariff.fee_per_mwh))
    metered = imported.copy()
    for delivery in ppas:
        used = series(delivery.used_kwh, steps, f"energy of {delivery.terms.name}", floor=0)
        metered += used
        paid_mwh = delivery.paid_kwh / KWH_PER_MWH
        how = "taken or not" if delivery.terms.must_take else "as used"
        lines.append(
            BillLine(f"agreement {delivery.terms.name}, {how}", paid_mwh, "MWh", paid_mwh * delivery.terms.per_mwh)
        )
    lines += _demand_lines(tariff, steps, metered, peaks_before_kw or {})
    if tariff.sale is not None:
        earned = float(sold @ sale_prices(tariff, steps, spot_per_mwh=spot_per_mwh)) / KWH_PER_MWH
        lines.append(BillLine("sold", float(sold.sum()) / KWH_PER_MWH, "MWh", -earned))
    return Bill(tariff.currency, tuple(lines))


def _energy_lines(tariff: Tariff, steps: Steps, imported: Array, spot_per_mwh: Array | None) -> list[BillLine]:
    match tariff.energy:
        case FlatPrice(per_mwh):
            energy_mwh = float(imported.sum()) / KWH_PER_MWH
            return [BillLine("energy", energy_mwh, "MWh", energy_mwh * per_mwh)]
        case SpotPrice(zone=zone):
            amount = float(imported @ energy_prices(tariff, steps, spot_per_mwh=spot_per_mwh)) / KWH_PER_MWH
            return [BillLine(f"energy, spot {zone}", float(imported.sum()) / KWH_PER_MWH, "MWh", amount)]
        case TimeOfUse() as terms:
            sums: dict[tuple[str, float], float] = {}
            for energy_kwh, bands in zip(imported.tolist(), band_shares(terms, tariff, steps), strict=True):
                for name, per_mwh, share in bands:
                    sums[name, per_mwh] = sums.get((name, per_mwh), 0.0) + energy_kwh * share / KWH_PER_MWH
            return [
                BillLine(f"energy, {name}", energy_mwh, "MWh", energy_mwh * per_mwh)
                for (name, per_mwh), energy_mwh in sorted(sums.items())
            ]


def _demand_lines(tariff: Tariff, steps: Steps, metered: Array, before: dict[str, float]) -> list[BillLine]:
    if tariff.demand is None:
        return []
    months = np.array(steps.months(tariff.local_time))
    lines = []
    for month in sorted(set(months.tolist())):
        peak_kw = float(metered[months == month].max()) / steps.hours
        more_kw = max(0.0, peak_kw - before.get(month, 0.0))
        lines.append(BillLine(f"peak of {month}", more_kw, "kW", more_kw * tariff.demand.per_kw_month))
    return lines
