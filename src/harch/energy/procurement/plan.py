"""What comes out of planning?

A plan whose cost and emissions can be checked against the flows, or a reasoned failure.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from harch.base.errors import HarchError
from harch.energy.procurement.problem import Objective, ProcurementProblem
from harch.energy.steps import KWH_PER_MWH, Array, Steps


class PlanMethod(StrEnum):
    """Who made the plan."""

    OPTIMISER = "optimiser"
    RULE = "self-consumption rule"


@dataclass(frozen=True, slots=True)
class Costs:
    """What the plan is expected to cost, in the problem's currency. Wear is not on the bill."""

    energy: float
    ppas: float
    demand: float
    sales: float  # revenue: 0 or below, unless sale prices are negative
    wear: float

    @property
    def bill(self) -> float:
        return math.fsum((self.energy, self.ppas, self.demand, self.sales))


@dataclass(frozen=True, slots=True)
class PlanEmissions:
    """Emissions of bought energy, and how the budget fared. `over_kg` is never hidden: it is what no plan could avoid.

    `shadow_per_t` is the price of the budget's last tonne: what one tonne more would save. With `over_kg` above 0 it
    is the penalty itself and says only that the budget cannot be kept.
    """

    emitted_kg: float
    budget_kg: float | None = None
    over_kg: float = 0.0
    penalty_per_t: float = 0.0
    shadow_per_t: float = 0.0

    @property
    def budget_kept(self) -> bool:
        return self.over_kg == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcurementPlan:
    """Energy per step. In every step: import + agreements + own used + discharge = load + flexible + charge + to grid.

    `energy_value_per_mwh` is what one MWh more in a step would be worth to the site, wherever it came from;
    `stored_value_per_mwh` the same for energy in the battery. A plan made by the rule has neither.
    """

    planner: PlanMethod
    objective: Objective
    steps: Steps
    currency: str
    import_kwh: Array
    ppa_kwh: Mapping[str, Array]
    own_used_kwh: Array
    own_sold_kwh: Array
    curtailed_kwh: Array
    charge_kwh: Array
    discharge_kwh: Array
    battery_sold_kwh: Array
    stored_kwh: Array  # at the end of each step
    flexible_kwh: Mapping[str, Array]
    costs: Costs
    carbon: PlanEmissions
    energy_value_per_mwh: Array | None = None
    stored_value_per_mwh: Array | None = None
    notes: tuple[str, ...] = ()

    @property
    def sold_kwh(self) -> Array:
        return self.own_sold_kwh + self.battery_sold_kwh


class FailureKind(StrEnum):
    INPUT = "input"
    SUPPLY = "supply"
    SOLVER = "solver"


_CODES = {FailureKind.INPUT: "E0242", FailureKind.SUPPLY: "E0340", FailureKind.SOLVER: "E0341"}


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why there is no plan: each mistake with its place, and what to do."""

    kind: FailureKind
    problems: tuple[tuple[str, str], ...]
    hint: str

    def __str__(self) -> str:
        return "; ".join(f"{where}: {what}" for where, what in self.problems)

    def error(self) -> HarchError:
        """For those who answer people."""
        field = self.problems[0][0] if self.problems else None
        return HarchError(_CODES[self.kind], str(self), hint=self.hint, field=field)


# What does a flow of energy cost and emit? Sums over the problem's prices, the same for every planner.


def costs_of(
    problem: ProcurementProblem,
    imported_kwh: Array,
    ppa_kwh: Mapping[str, Array],
    sold_kwh: Array,
    through_battery_kwh: Array,
) -> Costs:
    paid = {ppa.name: ppa.offered_kwh if ppa.must_take else ppa_kwh[ppa.name] for ppa in problem.ppas}
    wear_per_mwh = 0.0 if problem.battery is None else problem.battery.wear_per_mwh
    return Costs(
        energy=float(imported_kwh @ problem.import_per_mwh) / KWH_PER_MWH,
        ppas=sum(float(paid[ppa.name].sum()) * ppa.per_mwh for ppa in problem.ppas) / KWH_PER_MWH,
        demand=_demand(problem, metered_kwh(imported_kwh, ppa_kwh)),
        sales=-float(sold_kwh @ problem.sale_per_mwh) / KWH_PER_MWH,
        wear=float(through_battery_kwh.sum()) * wear_per_mwh / KWH_PER_MWH,
    )


def emitted_kg(problem: ProcurementProblem, imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> float:
    """Of bought energy, by the intensities that the problem gives."""
    return float(emitted_by_step_kg(problem, imported_kwh, ppa_kwh).sum())


def emitted_by_step_kg(problem: ProcurementProblem, imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> Array:
    grid = imported_kwh * problem.grid_g_per_kwh
    return (grid + sum((ppa_kwh[ppa.name] * ppa.g_per_kwh for ppa in problem.ppas), np.zeros_like(grid))) / 1000


def metered_kwh(imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> Array:
    """All that comes through the connection."""
    return imported_kwh + sum(ppa_kwh.values(), np.zeros_like(imported_kwh))


def _demand(problem: ProcurementProblem, metered: Array) -> float:
    demand = problem.demand
    if demand is None:
        return 0.0
    months = np.array(demand.months)
    more_kw = [
        max(0.0, float(metered[months == month].max()) / problem.steps.hours - demand.before_kw.get(month, 0.0))
        for month in dict.fromkeys(demand.months)
    ]
    return demand.per_kw * sum(more_kw)
