"""Which way may power flow in each step? What one meter and one battery cannot do at once is decided before the plan.

A linear program would buy and sell in one step where selling pays more than buying costs, and charge and discharge at
once where it is paid to use power. Neither is possible behind one meter. In such steps, and only there, one of the two
is closed beforehand. That keeps the program linear, and bounded at zero and negative prices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harch.energy.procurement.problem import Problem
from harch.energy.steps import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OneWay:
    """Steps in which a first solution charged and discharged at once, with the way that was the stronger one.

    Where power will be paid for being used, an empty battery is worth money, and moving energy in a circle empties it.
    No price of the step itself tells; it is seen only in the solution.
    """

    charging_only: Mask
    discharging_only: Mask

    def applied(self, directions: Directions) -> Directions:
        return replace(
            directions,
            charging=directions.charging & ~self.discharging_only,
            discharging=directions.discharging & ~self.charging_only,
        )

    def and_more(self, charge_kwh: Array, discharge_kwh: Array, tolerance_kwh: float) -> OneWay | None:
        """With the circles of one more solution; None if it has none."""
        circles = np.minimum(charge_kwh, discharge_kwh) > tolerance_kwh
        if not circles.any():
            return None
        charging = charge_kwh >= discharge_kwh
        return OneWay(self.charging_only | (circles & charging), self.discharging_only | (circles & ~charging))


@dataclass(frozen=True, slots=True)
class Directions:
    """True where it may happen."""

    buying: Mask
    selling: Mask
    charging: Mask
    discharging: Mask


def directions_of(problem: Problem, buy_per_kwh: Array, sale_per_kwh: Array, *, supply_first: bool) -> Directions:
    """`buy_per_kwh` and `sale_per_kwh` are as the objective sees them; the cheapest way to buy counts.

    With `supply_first` nothing is closed for buying: some sales are given up for what helps to supply the load.
    """
    hours = problem.steps.hours
    reach_kwh = problem.import_kw_max * hours
    doubtful = buy_per_kwh <= sale_per_kwh
    charge_kwh = 0.0 if problem.battery is None else problem.battery.power_kw * hours
    flexible_kwh = problem.flexible_kwh_max
    # What is earned by using as much bought power as possible, against selling what own plants have left.
    by_buying = np.maximum(-buy_per_kwh, 0.0) * (problem.load_kwh + charge_kwh + flexible_kwh)
    by_selling = sale_per_kwh * problem.surplus_kwh
    exports = (problem.surplus_kwh > 0) & (flexible_kwh <= problem.surplus_kwh) & (by_selling >= by_buying)
    if supply_first:
        exports = np.zeros_like(doubtful)
    paid_to_use = buy_per_kwh < 0
    short = problem.load_kwh + flexible_kwh > problem.own_kwh + reach_kwh
    return Directions(
        buying=~doubtful | ~exports,
        selling=~doubtful | exports,
        charging=~paid_to_use | ~short,
        discharging=~paid_to_use | short,
    )
