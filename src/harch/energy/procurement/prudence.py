"""May this plan be followed, or does it rest too much on its forecasts? Plans that must not emit more than the rule.

A plan saves in later hours what it spends in the next one, and the later hours come otherwise. Asking the optimiser for
less carbon makes that worse: it then moves purchases for differences that its forecasts only seem to have. So carbon
does not steer here, it decides what is followed:

1. the best plan, if it is expected to emit clearly less than the rule from the same state, debts of earlier hours
   included, or if their savings pay for the difference;
2. else, without debts, the best plan that stores own surplus only and keeps the rule's emissions as a hard budget;
3. else the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harch.energy.procurement.accounts import emitted_by_step_kg
from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_procurement
from harch.energy.procurement.problem import Problem
from harch.energy.procurement.rule import plan_by_rule

MARGIN = 0.02  # of the rule's expected emissions: what a plan must promise to save
Planning = Callable[[Problem], ProcurementPlan | PlanFailure]


def plan_prudently(
    expected: Problem, *, credit_kg: float, planning: Planning = plan_procurement
) -> ProcurementPlan | PlanFailure:
    """`credit_kg` is what earlier hours have emitted less than the rule would have; below 0 it is a debt.

    The failure of the rule is the answer only if no plan can supply the load either.
    """
    best = planning(expected)
    rule = plan_by_rule(expected)
    if isinstance(best, PlanFailure) or isinstance(rule, PlanFailure):
        return rule if isinstance(best, PlanFailure) else best
    by_rule = expected_kg(expected, rule)
    if expected_kg(expected, best) <= (1 - MARGIN) * by_rule + credit_kg:
        return best
    if credit_kg < 0:
        return rule
    careful = planning(replace(_without_grid_charging(expected), budget_kg=by_rule + credit_kg, budget_fades=True))
    if isinstance(careful, ProcurementPlan) and careful.carbon.budget_kept:
        return careful
    return rule


def expected_kg(expected: Problem, plan: ProcurementPlan) -> float:
    """What a plan will emit, with later hours counting less: they are less certain."""
    return float(emitted_by_step_kg(expected, plan.import_kwh, plan.ppa_kwh) @ expected.fade)


def _without_grid_charging(problem: Problem) -> Problem:
    if problem.battery is None:
        return problem
    return replace(problem, battery=replace(problem.battery, from_grid=False))
