"""Which plan is best, and what would the plain rule do?

Checks, program, solution; own power first, surplus into the battery, deficits out of it.
"""

# harch: pure

from __future__ import annotations

import numpy as np

from harch.energy.procurement.model import Index, OneWay, ProcurementModel, Solution, build_model, first_stored_kwh
from harch.energy.procurement.plan import (
    FailureKind,
    PlanEmissions,
    PlanFailure,
    PlanMethod,
    ProcurementPlan,
    costs_of,
    emitted_kg,
)
from harch.energy.procurement.problem import ProcurementProblem, problems_of
from harch.energy.steps import KWH_PER_MWH, Array

# What would the plain rule do? Own power first, surplus into the battery, deficits out of it, the rest from the grid.
#
# It needs no solver, no prices and no forecast: the baseline that plans are compared with, and what serves without
# them.


SHORT_KWH = 1e-6


def plan_by_rule(problem: ProcurementProblem, *, note: str = "") -> ProcurementPlan | PlanFailure:
    """Flexible load runs as soon as its window opens. Agreements are used before the grid, and only what is needed."""
    wrong = problems_of(problem)
    if wrong:
        return PlanFailure(FailureKind.INPUT, tuple(wrong.found), "correct or forecast these values, then plan again")
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
        planner=PlanMethod.RULE,
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
        carbon=PlanEmissions(emitted, problem.budget_kg, over),
        notes=(note,) if note else (),
    )


def _run_at_once(problem: ProcurementProblem) -> dict[str, Array]:
    found = {}
    for load in problem.flexible:
        used = np.zeros(problem.steps.count)
        each = load.power_kw * problem.steps.hours
        used[load.first : load.last] = np.clip(load.energy_kwh - each * np.arange(load.last - load.first), 0, each)
        found[load.name] = used
    return found


def _self_consumption(problem: ProcurementProblem, needed: Array) -> tuple[Array, Array, Array]:
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


# Which plan is best? Checks, program, solution, and the figures of the plan from the problem's own prices.


TOLERANCE = 1e-6  # kWh and kg: ten times what the solver promises
ROUNDS_MAX = 6


def plan_procurement(problem: ProcurementProblem) -> ProcurementPlan | PlanFailure:
    """The best plan, or why there is none. The same problem gives the same plan."""
    wrong = problems_of(problem)
    if wrong:
        return PlanFailure(FailureKind.INPUT, tuple(wrong.found), "correct or forecast these values, then plan again")
    model, solution = _solve(problem)
    if solution.failure:
        hint = "`pip install 'harch[energy]'` installs it; until then the self-consumption rule is used"
        return PlanFailure(FailureKind.SOLVER, (("solver", solution.failure),), hint)
    unserved = _unserved(model, solution)
    if unserved.any():
        return _no_supply(problem, unserved)
    return _plan(model, solution)


def plan_or_rule(problem: ProcurementProblem) -> ProcurementPlan | PlanFailure:
    """As above, but where the solver is missing or fails, the self-consumption rule plans and says so."""
    plan = plan_procurement(problem)
    if isinstance(plan, PlanFailure) and plan.kind is FailureKind.SOLVER:
        return plan_by_rule(problem, note=f"planned by the rule: {plan}")
    return plan


def _solve(problem: ProcurementProblem) -> tuple[ProcurementModel, Solution]:
    """The first solution that is possible behind one meter, or one that gives up some gains to be so."""
    none = np.zeros(problem.steps.count, dtype=np.bool_)
    one_way = OneWay(none, none)
    for _ in range(ROUNDS_MAX):
        model = build_model(problem, one_way=one_way)
        solution = model.solve()
        if solution.failure or _unserved(model, solution).any():
            break
        if not len(model.charge):
            return model, solution
        more = one_way.and_more(solution.values[model.charge], solution.values[model.discharge], TOLERANCE)
        if more is None:
            return model, solution
        one_way = more
    if solution.failure:
        return model, solution
    # What was closed for gain may be what the supply needs: in this program there is nothing to gain by it.
    model = build_model(problem, supply_first=True)
    return model, model.solve()


def _unserved(model: ProcurementModel, solution: Solution) -> Array:
    missing = solution.values[model.unserved]
    return np.where(missing > TOLERANCE, missing, 0.0)


def _no_supply(problem: ProcurementProblem, unserved: Array) -> PlanFailure:
    steps = problem.steps
    first, worst = int(np.argmax(unserved > 0)), float(unserved.max()) / steps.hours
    what = (
        f"{int((unserved > 0).sum())} steps from {steps.at(first):%Y-%m-%dT%H:%MZ} lack up to {worst:.1f} kW, "
        f"{unserved.sum():.1f} kWh in total, with an import of at most {problem.import_kw_max:g} kW"
    )
    return PlanFailure(FailureKind.SUPPLY, (("load_kwh", what),), "lower or move load, or raise `import_kw_max`")


def _plan(model: ProcurementModel, solution: Solution) -> ProcurementPlan:
    problem, count = model.problem, model.problem.steps.count

    def energy(columns: Index) -> Array:
        """What the solver leaves below zero or just above it is zero."""
        found = solution.values[columns] if len(columns) else np.zeros(count)
        return np.where(found > TOLERANCE / 10, found, 0.0)

    flexible: dict[str, Array] = {}
    for load, columns in zip(problem.flexible, model.flexible, strict=True):
        flexible[load.name] = np.zeros(count)
        flexible[load.name][load.first : load.last] = energy(columns)
    imported, own_used, own_sold = energy(model.imported), energy(model.own_used), energy(model.own_sold)
    ppas = {ppa.name: energy(columns) for ppa, columns in zip(problem.ppas, model.ppas, strict=True)}
    stored_duals = solution.duals[model.stored_rows]
    charge, discharge, battery_sold = energy(model.charge), energy(model.discharge), energy(model.battery_sold)
    return ProcurementPlan(
        planner=PlanMethod.OPTIMISER,
        objective=problem.objective,
        steps=problem.steps,
        currency=problem.currency,
        import_kwh=imported,
        ppa_kwh=ppas,
        own_used_kwh=own_used,
        own_sold_kwh=own_sold,
        curtailed_kwh=np.maximum(problem.own_kwh - own_used - own_sold, 0.0),
        charge_kwh=charge,
        discharge_kwh=discharge,
        battery_sold_kwh=battery_sold,
        stored_kwh=energy(model.stored),
        flexible_kwh=flexible,
        costs=costs_of(problem, imported, ppas, own_sold + battery_sold, charge + discharge),
        carbon=_carbon(model, solution, emitted_kg(problem, imported, ppas)),
        # As the market of that hour would pay, so without the fading of the objective.
        energy_value_per_mwh=solution.duals[model.balance_rows] * KWH_PER_MWH / problem.fade,
        # A stored kWh more is a right-hand side of one more.
        stored_value_per_mwh=-stored_duals * KWH_PER_MWH / problem.fade if len(stored_duals) else None,
    )


def _carbon(model: ProcurementModel, solution: Solution, emitted: float) -> PlanEmissions:
    if not len(model.over):
        return PlanEmissions(emitted)
    over = float(solution.values[model.over[0]])
    return PlanEmissions(
        emitted_kg=emitted,
        budget_kg=model.problem.budget_kg,
        over_kg=over if over > TOLERANCE else 0.0,
        penalty_per_t=model.penalty_per_kg * 1000,
        shadow_per_t=max(0.0, -float(solution.duals[model.budget_rows[0]]) * 1000),
    )
