"""What would the plain rule do? Own power first, surplus into the battery, deficits out of it, the rest from the grid.

It needs no solver, no prices and no forecast: the baseline that plans are compared with, and what serves without them.
"""

from __future__ import annotations

import numpy as np

from harch.energy.procurement.accounts import costs_of, emitted_kg
from harch.energy.procurement.checks import problems_of
from harch.energy.procurement.model import first_stored_kwh
from harch.energy.procurement.plan import Carbon, FailureKind, PlanFailure, Planner, ProcurementPlan
from harch.energy.procurement.problem import Problem
from harch.energy.steps import Array

SHORT_KWH = 1e-6


def plan_by_rule(problem: Problem, *, note: str = "") -> ProcurementPlan | PlanFailure:
    """Flexible load runs as soon as its window opens. Agreements are used before the grid, and only what is needed."""
    wrong = problems_of(problem)
    if wrong:
        return PlanFailure(FailureKind.INPUT, tuple(wrong.found), "mend or forecast these values, then plan again")
    flexible = _run_at_once(problem)
    needed = problem.load_kwh + sum(flexible.values(), np.zeros(problem.steps.count))
    own_used = np.minimum(problem.own_kwh, needed)
    charge, discharge, stored = _self_consumption(problem, needed)
    own_used += charge
    rest = np.maximum(needed - np.minimum(problem.own_kwh, needed) - discharge, 0.0)
    ppas: dict[str, Array] = {}
    for ppa in problem.ppas:
        ppas[ppa.name] = np.minimum(ppa.offered_kwh, rest)
        rest = rest - ppas[ppa.name]
    most = problem.import_kw_max * problem.steps.hours
    metered = rest + sum(ppas.values(), np.zeros_like(rest))
    if (metered > most + SHORT_KWH).any():
        worst = float((metered - most).max()) / problem.steps.hours
        what = f"the rule lacks up to {worst:.1f} kW with an import of at most {problem.import_kw_max:g} kW"
        return PlanFailure(FailureKind.SUPPLY, (("load_kwh", what),), "lower or move load, or raise `import_kw_max`")
    sold = np.where(problem.sale_per_mwh > 0, np.maximum(problem.own_kwh - own_used, 0.0), 0.0)
    emitted = emitted_kg(problem, rest, ppas)
    over = 0.0 if problem.budget_kg is None else max(0.0, emitted - problem.budget_kg)
    return ProcurementPlan(
        planner=Planner.RULE,
        objective=problem.objective,
        steps=problem.steps,
        currency=problem.currency,
        import_kwh=rest,
        ppa_kwh=ppas,
        own_used_kwh=own_used,
        own_sold_kwh=sold,
        curtailed_kwh=np.maximum(problem.own_kwh - own_used - sold, 0.0),
        charge_kwh=charge,
        discharge_kwh=discharge,
        battery_sold_kwh=np.zeros(problem.steps.count),
        stored_kwh=stored,
        flexible_kwh=flexible,
        costs=costs_of(problem, rest, ppas, sold, charge + discharge),
        carbon=Carbon(emitted, problem.budget_kg, over),
        notes=(note,) if note else (),
    )


def _run_at_once(problem: Problem) -> dict[str, Array]:
    found = {}
    for load in problem.flexible:
        used = np.zeros(problem.steps.count)
        each = load.power_kw * problem.steps.hours
        used[load.first : load.last] = np.clip(load.energy_kwh - each * np.arange(load.last - load.first), 0, each)
        found[load.name] = used
    return found


def _self_consumption(problem: Problem, needed: Array) -> tuple[Array, Array, Array]:
    """Charge, discharge and what is stored after each step."""
    charge, discharge, stored = (np.zeros(problem.steps.count) for _ in range(3))
    battery = problem.battery
    if battery is None:
        return charge, discharge, stored
    most = battery.power_kw * problem.steps.hours
    level = first_stored_kwh(problem, battery)
    for step, spare in enumerate((problem.own_kwh - needed).tolist()):
        # Sums of floats may end a hair beyond the limits.
        room = max(battery.energy_kwh - level, 0.0) / battery.charge_efficiency
        left = max(level - battery.floor_kwh, 0.0) * battery.discharge_efficiency
        charge[step] = min(max(spare, 0.0), most, room)
        discharge[step] = min(max(-spare, 0.0), most, left)
        level += charge[step] * battery.charge_efficiency - discharge[step] / battery.discharge_efficiency
        stored[step] = level
    return charge, discharge, stored
