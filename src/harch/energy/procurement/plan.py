"""What comes out of planning? A plan whose figures can be checked against each other, or a failure that says what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harch.base.errors import HarchError
from harch.energy.procurement.problem import Objective
from harch.energy.steps import Array, Steps


class Planner(StrEnum):
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
class Carbon:
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

    planner: Planner
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
    carbon: Carbon
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
