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
from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_or_rule
from harch.energy.procurement.problem import Problem
from harch.energy.procurement.rule import plan_by_rule
from harch.energy.steps import KWH_PER_MWH, Array, Steps

HORIZON_H = 36
# Part of the rule's emissions that rolling plans keep in hand, because forecasts of the last hours fail too.
RESERVE = 0.01

Planning = Callable[[Problem], ProcurementPlan | PlanFailure]
# What was expected at a moment for the steps of a horizon: a problem whose first step is as it turned out.
Outlook = Callable[[datetime, Steps], Problem]


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
    plans_by_rule: int = 0

    @property
    def cost(self) -> float:
        return self.bill + self.wear - self.stored_value


def replay_whole(world: Problem, planning: Planning) -> Outcome:
    """One plan over the whole world, as it turned out: the rule, or the best that anybody could have done."""
    return outcome_of([_made(planning, world)], world)


def replay_rolling(
    world: Problem, outlook: Outlook, *, planning: Planning = plan_or_rule, carbon_like_rule: bool = True
) -> Outcome:
    """Plans again in every step and carries out the first one.

    With `carbon_like_rule` the budget of each plan is what the rule, followed beside it on the same facts, has emitted
    and is expected to emit, less what this policy has emitted.
    """
    steps = world.steps
    horizon = round(HORIZON_H / steps.hours)
    shadow = _made(plan_by_rule, world)  # only its past is looked at
    shadow_kg = np.cumsum(_emitted_by_step(world, shadow))
    stored, emitted = world.stored_kwh, 0.0
    done: list[ProcurementPlan] = []
    by_rule = 0
    for index in range(steps.count):
        ahead = Steps(steps.at(index), steps.step_s, horizon)
        expected = replace(outlook(steps.at(index), ahead), stored_kwh=stored)
        if carbon_like_rule:
            rule_past = float(shadow_kg[index - 1]) if index else 0.0
            rule_stored = float(shadow.stored_kwh[index - 1]) if index else world.stored_kwh
            rule_next = _made(plan_by_rule, replace(expected, stored_kwh=rule_stored)).carbon.emitted_kg
            budget = (1 - RESERVE) * (rule_past + rule_next) - emitted
            expected = replace(expected, budget_kg=budget)
        plan = _made(planning, expected)
        by_rule += bool(plan.notes)
        first = _first_step(plan)
        done.append(first)
        stored = float(first.stored_kwh[0])
        emitted += first.import_kwh[0] * world.grid_g_per_kwh[index] / 1000
    return replace(outcome_of(done, world), plans_by_rule=by_rule)


def outcome_of(plans: list[ProcurementPlan], world: Problem) -> Outcome:
    """The account of plans that follow each other and cover the world, at the world's own prices."""

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


def _emitted_by_step(world: Problem, plan: ProcurementPlan) -> Array:
    return plan.import_kwh * world.grid_g_per_kwh / 1000


def _made(planning: Planning, problem: Problem) -> ProcurementPlan:
    plan = planning(problem)
    if isinstance(plan, PlanFailure):
        raise InvariantBroken("a replayed world can be supplied", plan)
    return plan


def _first_step(plan: ProcurementPlan) -> ProcurementPlan:
    names = (
        "import_kwh",
        "own_used_kwh",
        "own_sold_kwh",
        "curtailed_kwh",
        "charge_kwh",
        "discharge_kwh",
        "battery_sold_kwh",
        "stored_kwh",
    )
    return replace(plan, **{name: getattr(plan, name)[:1] for name in names})
