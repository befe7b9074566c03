"""What would a policy have cost on past hours? The rule, rolling plans and a perfect forecast, on the same world.

Each hour is decided with what was known then and billed with what happened. The hour that runs is known: telemetry
comes every 30 s, and the rule reacts to it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from harch.base.errors import InvariantBroken
from harch.energy.procurement.period_balance import PeriodBalance, plan_within
from harch.energy.procurement.plan import PlanFailure, PlanMethod, ProcurementPlan
from harch.energy.procurement.planner import plan_procurement
from harch.energy.procurement.problem import ProcurementProblem
from harch.energy.procurement.safeguards import Planning
from harch.energy.steps import KWH_PER_MWH, Array, Steps

HORIZON_H = 36

# What was expected at a moment for the steps of a horizon: a problem whose first step is as it turned out.
Outlook = Callable[[datetime, Steps], ProcurementProblem]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy led to. `cost` counts wear, and what is left in the battery at its terminal value."""

    bill: float
    wear: float
    stored_kwh: float
    stored_value: float
    emitted_kg: float
    bought_kwh: float
    sold_kwh: float
    steps_by_rule: int = 0

    @property
    def cost(self) -> float:
        return self.bill + self.wear - self.stored_value


def replay_whole(world: ProcurementProblem, planning: Planning) -> Outcome:
    """One plan over the whole world, as it turned out: the rule, or the best that anybody could have done."""
    return _outcome([_made(planning(world))], world)


def replay_rolling(world: ProcurementProblem, outlook: Outlook, *, planning: Planning = plan_procurement) -> Outcome:
    """Plans in every step and carries out the first one. The rule is followed beside it on the same facts.

    The replayed world is one accounting period: at its end the plans have emitted no more than the rule.
    """
    steps = world.steps
    horizon = round(HORIZON_H / steps.hours)
    standing = PeriodBalance(stored_kwh=world.stored_kwh, rule_stored_kwh=world.stored_kwh)
    done: list[ProcurementPlan] = []
    for index in range(steps.count):
        expected = outlook(steps.at(index), Steps(steps.at(index), steps.step_s, horizon))
        plan = _made(plan_within(expected, standing, steps_left=steps.count - index, planning=planning))
        done.append(_first_step(plan))
        standing = standing.after(_hour(world, index), plan)
    return replace(_outcome(done, world), steps_by_rule=sum(plan.planner is PlanMethod.RULE for plan in done))


def _hour(world: ProcurementProblem, index: int) -> ProcurementProblem:
    arrays = ("load_kwh", "own_kwh", "import_per_mwh", "grid_g_per_kwh", "sale_per_mwh")
    cut = {name: getattr(world, name)[index : index + 1] for name in arrays}
    return replace(world, steps=Steps(world.steps.at(index), world.steps.step_s, 1), **cut, budget_kg=None)


def _outcome(plans: list[ProcurementPlan], world: ProcurementProblem) -> Outcome:
    """The account of plans that follow each other and cover the world, at the world's own prices."""
    if world.ppas or world.flexible or world.demand:
        raise InvariantBroken("a replay has only a grid, own plants and a battery")

    def joined(name: str) -> Array:
        return np.concatenate([getattr(plan, name) for plan in plans])

    imported, sold = joined("import_kwh"), joined("own_sold_kwh") + joined("battery_sold_kwh")
    through = float((joined("charge_kwh") + joined("discharge_kwh")).sum())
    stored = float(plans[-1].stored_kwh[-1])
    return Outcome(
        bill=float(imported @ world.import_per_mwh - sold @ world.sale_per_mwh) / KWH_PER_MWH,
        wear=through * (world.battery.wear_per_mwh if world.battery else 0.0) / KWH_PER_MWH,
        stored_kwh=stored,
        stored_value=stored * world.terminal_per_mwh / KWH_PER_MWH,
        emitted_kg=float(imported @ world.grid_g_per_kwh) / 1000,
        bought_kwh=float(imported.sum()),
        sold_kwh=float(sold.sum()),
    )


def _made(plan: ProcurementPlan | PlanFailure) -> ProcurementPlan:
    if isinstance(plan, PlanFailure):
        raise InvariantBroken("a replay can be supplied", plan)
    return plan


def _first_step(plan: ProcurementPlan) -> ProcurementPlan:
    flows = ("import", "own_used", "own_sold", "curtailed", "charge", "discharge", "battery_sold", "stored")
    return replace(plan, **{f"{flow}_kwh": getattr(plan, f"{flow}_kwh")[:1] for flow in flows})
