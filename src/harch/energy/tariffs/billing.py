"""What is to be paid for a use? Lines that a person can check one by one, and that add up to the total."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harch.energy.steps import KWH_PER_MWH, Array, Steps, series
from harch.energy.tariffs.prices import band_shares, energy_prices, sale_prices
from harch.energy.tariffs.terms import FlatPrice, Ppa, SpotPrice, Tariff, TimeOfUse


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
