"""How does a site stand against the rule? What both have emitted in this accounting period, and what both have stored.

Plans may emit before they save: power is bought in a clean hour for a dirty one. Counted in between, they look worse
than the rule; counted at the end of a period, they must not be. Two things stand for that:

- What is kept in the battery for later is wasted if own plants fill it anyway. An hour follows the plan only if
  it pays even should own plants give a quarter more than expected, or if savings of the period cover the loss.
- While the period is open a plan may borrow from its savings to come. Once the end is in sight it may not: an hour
  follows the plan only if the account stays even whatever comes, and else the rule, which never loses ground.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harch.energy.procurement.model import first_stored_kwh
from harch.energy.procurement.plan import PlanFailure, PlanMethod, ProcurementPlan, emitted_by_step_kg
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import ProcurementProblem
from harch.energy.procurement.safeguards import Planning, expected_kg, plan_with_safeguards
from harch.energy.steps import Steps

# Part of what the rule emits in one horizon that is kept in hand and not spent as credit.
RESERVE = 0.02
# No hour is believed to be dirtier than the dirtiest of the forecast by more than this.
DIRTIER_MAX = 1.25
MORE_OWN = 1.25  # times the expected power of own plants, for the hours after the first
EVEN_KG = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodBalance:
    """Sums of one accounting period. `rule_` is what the self-consumption rule would have done with the same hours."""

    stored_kwh: float
    rule_stored_kwh: float
    emitted_kg: float = 0.0
    rule_emitted_kg: float = 0.0

    @property
    def saved_kg(self) -> float:
        """What was emitted less than by the rule up to now; below 0 while bought power waits in the battery."""
        return self.rule_emitted_kg - self.emitted_kg

    def worst_kg(self, expected: ProcurementProblem) -> float:
        """What will be saved at the end if the rule is followed from here on, whatever comes.

        From the same hour on, the rule never buys more with more in the battery. With less in it, it buys at most the
        difference more, and no hour is dirtier than the forecast's dirtiest by more than `DIRTIER_MAX`.
        """
        if expected.battery is None:
            return self.saved_kg
        missing = max(0.0, self.rule_stored_kwh - self.stored_kwh) * expected.battery.discharge_efficiency
        return self.saved_kg - missing * DIRTIER_MAX * float(expected.grid_g_per_kwh.max()) / 1000

    def credit_kg(self, expected: ProcurementProblem) -> float:
        """What plans may spend: what was saved, and what will be because more is in the battery than in the rule's."""
        ahead = []
        for level in (self.rule_stored_kwh, self.stored_kwh):
            plan = plan_by_rule(replace(expected, stored_kwh=level))
            if isinstance(plan, PlanFailure):
                return 0.0
            ahead.append(expected_kg(expected, plan))
        return self.saved_kg + (1 - RESERVE) * ahead[0] - ahead[1]

    def after(self, hour: ProcurementProblem, plan: ProcurementPlan) -> PeriodBalance:
        """One step later. `hour` is that step as it came; what `plan` does in its first step was done in it."""
        first = replace(hour, stored_kwh=self.rule_stored_kwh)
        rule = plan_by_rule(first)
        stored = float(plan.stored_kwh[0]) if hour.battery is not None else 0.0
        ppas = {name: values[:1] for name, values in plan.ppa_kwh.items()}
        by_plan = float(emitted_by_step_kg(hour, plan.import_kwh[:1], ppas)[0])
        if isinstance(rule, PlanFailure):  # the rule could not have supplied it: both did what was done
            return replace(self, stored_kwh=stored, rule_stored_kwh=stored)
        by_rule = float(emitted_by_step_kg(hour, rule.import_kwh, rule.ppa_kwh)[0])
        return PeriodBalance(
            stored_kwh=stored,
            rule_stored_kwh=float(rule.stored_kwh[0]),
            emitted_kg=self.emitted_kg + by_plan,
            rule_emitted_kg=self.rule_emitted_kg + by_rule,
        )


def plan_within(
    expected: ProcurementProblem, standing: PeriodBalance, *, steps_left: int, planning: Planning = plan_procurement
) -> ProcurementPlan | PlanFailure:
    """The plan whose first step is to be followed. The accounting period closes after `steps_left` steps from now on.

    The first step of `expected` is taken to come as it says.
    """
    expected = replace(expected, stored_kwh=standing.stored_kwh)
    if expected.battery is not None:
        expected = replace(expected, stored_kwh=first_stored_kwh(expected, expected.battery))
    plan = plan_with_safeguards(expected, credit_kg=standing.credit_kg(expected), planning=planning)
    if isinstance(plan, PlanFailure) or plan.planner is PlanMethod.RULE:
        return plan
    judged = _as_planned(expected, plan)
    if _loss_kg(judged, plan) > max(0.0, standing.worst_kg(judged)) + EVEN_KG:
        why = "the plan would emit more than the rule if own plants produced a quarter more than expected"
    elif steps_left <= judged.steps.count and not _stays_even(judged, plan, standing):
        why = "the accounting period ends soon, so nothing is borrowed from it"
    else:
        return plan
    rule = plan_by_rule(judged, note=f"by the rule: {why}")
    # A budget that somebody stated goes before all of this.
    if isinstance(rule, PlanFailure) or rule.carbon.over_kg > plan.carbon.over_kg + EVEN_KG:
        return plan
    carbon = replace(plan.carbon, emitted_kg=rule.carbon.emitted_kg, over_kg=rule.carbon.over_kg)
    return replace(rule, carbon=carbon, flexible_kwh=plan.flexible_kwh)


def _as_planned(expected: ProcurementProblem, plan: ProcurementPlan) -> ProcurementProblem:
    """With flexible load where the plan puts it: when it runs is no risk, what the battery does is."""
    flexible = sum(plan.flexible_kwh.values(), np.zeros(expected.steps.count))
    return replace(expected, load_kwh=expected.load_kwh + flexible, flexible=())


def _stays_even(expected: ProcurementProblem, plan: ProcurementPlan, standing: PeriodBalance) -> bool:
    return standing.after(first_step(expected), plan).worst_kg(expected) >= -EVEN_KG


def _loss_kg(expected: ProcurementProblem, plan: ProcurementPlan) -> float:
    """By how much the plan's first step and the rule after it emit more than the rule alone, with more own power."""
    rule = plan_by_rule(expected)
    if isinstance(rule, PlanFailure) or expected.steps.count == 1:
        return 0.0
    hour, emitted = first_step(expected), []
    for way in (plan, rule):
        ppas = {name: values[:1] for name, values in way.ppa_kwh.items()}
        now = float(emitted_by_step_kg(hour, way.import_kwh[:1], ppas)[0])
        later = _with_more_own(expected, float(way.stored_kwh[0]))
        after = plan_by_rule(later)
        if isinstance(after, PlanFailure):
            return 0.0
        emitted.append(now + after.carbon.emitted_kg)
    return emitted[0] - emitted[1]


def _with_more_own(expected: ProcurementProblem, stored_kwh: float) -> ProcurementProblem:
    later = _cut(expected, slice(1, None))
    return replace(later, own_kwh=MORE_OWN * later.own_kwh, stored_kwh=stored_kwh)


def first_step(problem: ProcurementProblem) -> ProcurementProblem:
    """The problem of the step that runs."""
    return _cut(problem, slice(0, 1))


def _cut(problem: ProcurementProblem, part: slice) -> ProcurementProblem:
    """Some of its steps, with grid, agreements, own plants and battery, and nothing that reaches over many steps."""
    kept = range(problem.steps.count)[part]
    steps = Steps(problem.steps.at(kept.start), problem.steps.step_s, len(kept))
    arrays = ("load_kwh", "own_kwh", "import_per_mwh", "grid_g_per_kwh", "sale_per_mwh")
    cut = {name: getattr(problem, name)[part] for name in arrays}
    ppas = tuple(replace(ppa, offered_kwh=ppa.offered_kwh[part], g_per_kwh=ppa.g_per_kwh[part]) for ppa in problem.ppas)
    return replace(problem, steps=steps, **cut, ppas=ppas, flexible=(), demand=None, budget_kg=None)
