"""What does a flow of energy cost and emit? Sums over the problem's prices, the same for every planner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harch.energy.procurement.plan import Costs
from harch.energy.procurement.problem import Problem
from harch.energy.steps import KWH_PER_MWH, Array


def costs_of(
    problem: Problem, imported_kwh: Array, ppa_kwh: Mapping[str, Array], sold_kwh: Array, through_battery_kwh: Array
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


def emitted_kg(problem: Problem, imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> float:
    """Of bought energy, by the intensities that the problem gives."""
    return float(emitted_by_step_kg(problem, imported_kwh, ppa_kwh).sum())


def emitted_by_step_kg(problem: Problem, imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> Array:
    grid = imported_kwh * problem.grid_g_per_kwh
    return (grid + sum((ppa_kwh[ppa.name] * ppa.g_per_kwh for ppa in problem.ppas), np.zeros_like(grid))) / 1000


def metered_kwh(imported_kwh: Array, ppa_kwh: Mapping[str, Array]) -> Array:
    """All that comes through the connection."""
    return imported_kwh + sum(ppa_kwh.values(), np.zeros_like(imported_kwh))


def _demand(problem: Problem, metered: Array) -> float:
    demand = problem.demand
    if demand is None:
        return 0.0
    months = np.array(demand.months)
    more_kw = [
        max(0.0, float(metered[months == month].max()) / problem.steps.hours - demand.before_kw.get(month, 0.0))
        for month in dict.fromkeys(demand.months)
    ]
    return demand.per_kw * sum(more_kw)
