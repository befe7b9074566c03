"""Which bids follow from a plan? One or two per hour whose price is not published yet, with a limit price each.

Load that cannot wait is bid at the highest price that the limits allow: it has to be bought anyway. What goes into the
battery or runs flexible load is bid at what the plan says a MWh is worth in that hour, and not above.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np

from harch.energy.procurement.plan import PlanMethod, ProcurementPlan
from harch.energy.steps import Array
from harch.energy.tariffs.terms import SpotPrice

KWH_MIN = 1.0  # below it is rounding, not a purchase
KWH_DECIMALS = 1  # markets trade 0.1 MWh or finer steps of it; this is 0.1 kWh
PRICE_DECIMALS = 2


class BidPart(StrEnum):
    """Why it is bought."""

    FIRM = "firm"
    FLEXIBLE = "flexible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """An order to buy `kwh` in the step from `delivery` at `limit_per_mwh` or less.

    The id follows from hub, zone, hour and part. Whoever sends the same bid twice has sent it once.
    """

    hub: str
    zone: str
    delivery: datetime
    step_s: int
    part: BidPart
    kwh: float
    limit_per_mwh: float
    currency: str

    @property
    def id(self) -> str:
        return f"bid-{self.hub}-{self.zone}-{self.delivery:%Y%m%dT%H%MZ}-{self.part}"

    @property
    def amount_max(self) -> float:
        """What it costs if it is filled at its limit."""
        return self.kwh * self.limit_per_mwh / 1000


def bids_from(
    plan: ProcurementPlan,
    terms: SpotPrice,
    *,
    hub: str,
    now: datetime,
    firm_limit_per_mwh: float,
    fee_per_mwh: float = 0.0,
) -> tuple[Bid, ...]:
    """Bids for the hours that are still open at `now`. A plan made by the rule has no values and bids firmly only.

    `fee_per_mwh` is paid on top of the market's price, so a MWh may cost that much less there than it is worth here.
    """
    still_open = np.array([moment >= terms.known_until(now) for moment in plan.steps.starts()])
    flexible = np.minimum(plan.import_kwh, _can_wait_kwh(plan))
    firm = plan.import_kwh - flexible
    values = plan.energy_value_per_mwh
    found = []
    for index in np.flatnonzero(still_open).tolist():
        for part, kwh in ((BidPart.FIRM, firm[index]), (BidPart.FLEXIBLE, flexible[index])):
            if kwh < KWH_MIN:
                continue
            worth = firm_limit_per_mwh if part is BidPart.FIRM or values is None else float(values[index]) - fee_per_mwh
            found.append(
                Bid(
                    hub=hub,
                    zone=terms.zone,
                    delivery=plan.steps.at(index),
                    step_s=plan.steps.step_s,
                    part=part,
                    kwh=round(float(kwh), KWH_DECIMALS),
                    limit_per_mwh=round(min(worth, firm_limit_per_mwh), PRICE_DECIMALS),
                    currency=plan.currency,
                )
            )
    return tuple(found)


def _can_wait_kwh(plan: ProcurementPlan) -> Array:
    """What of each step's use could be at another time: battery charge and flexible load."""
    if plan.planner is PlanMethod.RULE:
        return np.zeros(plan.steps.count)
    return plan.charge_kwh + sum(plan.flexible_kwh.values(), np.zeros(plan.steps.count))
