"""May this plan be followed, or does it rest too much on its forecasts? Plans that must not emit more than the rule.

A plan saves in later hours what it spends in the next one, and the later hours come otherwise. A tight budget makes
that worse: the optimiser then charges from the grid for differences that its forecasts only seem to have. So the
budget decides what is followed:

1. the best plan, if it is expected to emit clearly less than the rule from the same state, debts of earlier hours
   included, or if their savings pay for the difference;
2. else a plan that stores own surplus only: without debts the best that keeps the rule's emissions as a hard budget,
   with debts one for which carbon weighs as much as money;
3. else the rule.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harch.energy.procurement.plan import PlanEmissions, PlanFailure, ProcurementPlan, emitted_by_step_kg
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import ProcurementProblem

MARGIN = 0.02  # of the rule's expected emissions: what a plan must promise to save
REPAYING_WEIGHT = 1.0  # of carbon against money, while there is a debt
SAME_KG = 1e-6
Planning = Callable[[ProcurementProblem], ProcurementPlan | PlanFailure]


def plan_with_safeguards(
    expected: ProcurementProblem, *, credit_kg: float, planning: Planning = plan_procurement
) -> ProcurementPlan | PlanFailure:
    """`credit_kg` is what earlier hours have emitted less than the rule would have; below 0 it is a debt.

    The failure of the rule is the answer only if no plan can supply the load either.
    """
    best = planning(expected)
    if isinstance(best, PlanFailure):
        return plan_by_rule(expected, note=f"planned by the rule: {best}")
    rule = plan_by_rule(expected)
    if isinstance(rule, PlanFailure):
        return best
    by_rule = expected_kg(expected, rule)
    if expected_kg(expected, best) <= (1 - MARGIN) * by_rule + credit_kg:
        return best
    own_only = _without_grid_charging(replace(expected, budget_kg=None))
    if credit_kg < 0:
        careful = planning(replace(own_only, carbon_per_t=_as_much_as_money(expected)))
    else:
        careful = planning(replace(own_only, budget_kg=by_rule + credit_kg, budget_fades=True))
    chosen = careful if isinstance(careful, ProcurementPlan) and careful.carbon.budget_kept else rule
    chosen = replace(chosen, carbon=_under_budget(expected, chosen, best))
    # A budget that somebody stated goes before prudence: a plan that keeps it is not left for one that does not.
    return best if chosen.carbon.over_kg > best.carbon.over_kg + SAME_KG else chosen


def _under_budget(expected: ProcurementProblem, plan: ProcurementPlan, best: ProcurementPlan) -> PlanEmissions:
    """How a plan that was made under another budget fares under the stated one. Only `best` knows its price."""
    if expected.budget_kg is None:
        return PlanEmissions(plan.carbon.emitted_kg)
    over = plan.carbon.emitted_kg - expected.budget_kg
    return replace(best.carbon, emitted_kg=plan.carbon.emitted_kg, over_kg=over if over > SAME_KG else 0.0)


def expected_kg(expected: ProcurementProblem, plan: ProcurementPlan) -> float:
    """What a plan will emit, with later hours counting less: they are less certain."""
    return float(emitted_by_step_kg(expected, plan.import_kwh, plan.ppa_kwh) @ expected.fade)


def _without_grid_charging(problem: ProcurementProblem) -> ProcurementProblem:
    if problem.battery is None:
        return problem
    return replace(problem, battery=replace(problem.battery, from_grid=False))


def _as_much_as_money(problem: ProcurementProblem) -> float:
    """The price per tonne at which the carbon of a mean bought MWh costs as much as the MWh."""
    g_per_kwh, per_mwh = float(problem.grid_g_per_kwh.mean()), float(problem.import_per_mwh.mean())
    return REPAYING_WEIGHT * 1000 * max(per_mwh, 0.0) / g_per_kwh if g_per_kwh else 0.0
