"""How much carbon was spent, how much is left, and what will a job still take? Values for the planner's hard limits.

A budget is kept by one method, by location unless stated otherwise, own plants included. Spent and left are typed: a
budget by location cannot be paid with grams by contract.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from harch.base.errors import HarchError
from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.report import totals
from harch.carbon.values import CarbonIntensity, Emissions, Energy, Method, Power

_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentCarbon:
    """By one tenant in one month, up to the last row."""

    tenant: str
    month: str
    energy: Energy
    emissions: Emissions
    estimated_share: float  # of the energy

    def left_g(self, budget: Emissions) -> float:
        """What the planner may still give out, never below 0. Raises KindsMixed for a budget of another kind."""
        return max(0.0, (budget - self.emissions).g)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What a job has taken, and what the rest of it is expected to take: the rest is a forecast and is never booked."""

    job: str
    spent: Emissions
    expected: Emissions

    @property
    def total(self) -> Emissions:
        return self.spent + self.expected

    def left_g(self, budget: Emissions) -> float:
        return max(0.0, (budget - self.spent).g)


def month_bounds(month: str) -> tuple[datetime, datetime]:
    """The first moment of a month such as `2026-03`, and the first after it. Raises E0201."""
    found = _MONTH.fullmatch(month)
    if found is None or found[1] == "0000" or month == "9999-12":
        raise HarchError("E0201", f"`{month[:20]}` is not a month", hint="write it like `2026-03`", field="month")
    year, number = int(found[1]), int(found[2])
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return datetime(year, number, 1, tzinfo=UTC), datetime(*following, 1, tzinfo=UTC)


def spent(rows: Iterable[LedgerRow], tenant: str, month: str, method: Method = Method.LOCATION) -> SpentCarbon:
    """From rows that count. Those of other tenants and months are left out."""
    month_bounds(month)
    own = [row for row in rows if row.charge.tenant == tenant and row.charge.interval.month == month]
    found = totals(own)
    return SpentCarbon(
        tenant=tenant,
        month=month,
        energy=found.energy,
        emissions=found.footprint.total(method),
        estimated_share=1.0 - found.measured_share if own else 0.0,
    )


def projected(
    rows: Iterable[LedgerRow], job: str, *, power: Power, hours_left: float, forecast: CarbonIntensity
) -> Projection:
    """From rows that count. `power` is at the meter, `forecast` the mean of what is left, by the budget's method."""
    own = totals(row for row in rows if row.charge.job == job)
    return Projection(
        job=job,
        spent=own.footprint.total(forecast.of.method),
        expected=forecast.emissions(Energy(power.kw * hours_left)),
    )
