"""Plans made by hand: two hubs, a dirty present and a clean hour, for the tiny fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook, RestsOn
from harch.carbon.planning.plan import plan_carbon
from harch.carbon.planning.work import WorkDemand
from harch.hub.jobs.carbon_plan import ForecastBasis, HubPlan
from harch.hub.jobs.carbon_routing.candidates import CPU
from harch.testing.samples import tiny_fleet

STEPS = 48
FLEET = tiny_fleet()


def hours(hub: str, grid: Sequence[float] | float, *, pue: float = 1.2) -> HubHours:
    series = np.full(STEPS, grid) if isinstance(grid, int | float) else np.array([*grid, *[grid[-1]] * STEPS])[:STEPS]
    return HubHours(
        hub=hub,
        grid_g_per_kwh=series.astype(np.float64),
        onsite_kw=np.zeros(STEPS),
        pue=pue,
        rests_on=RestsOn("by hand"),
    )


def pools() -> tuple[Pool, ...]:
    found = []
    for hub in FLEET.hubs:
        for model in hub.gpu_models:
            nodes = [node for node in hub.nodes if node.gpu_model.name == model]
            gpus = sum(len(node.gpus) for node in nodes)
            found.append(Pool(hub.id, model, gpus, sum(node.power_w_max for node in nodes) / 1000 / gpus))
        found.append(Pool(hub.id, CPU, 64, 0.01))
    return tuple(found)


def plan(
    at: datetime,
    grids: Mapping[str, Sequence[float] | float],
    *,
    tenant_g_left: Mapping[str, float] | None = None,
    all_g_left: float | None = None,
    demand: WorkDemand | None = None,
    step_s: float = 3600.0,
) -> HubPlan:
    outlook = PowerOutlook(
        tuple(hours(hub, grid) for hub, grid in grids.items()),
        tuple(p for p in pools() if p.hub in grids),
        step_h=step_s / 3600,
    )
    made = plan_carbon(outlook, demand or WorkDemand(()), ())
    return HubPlan(
        at=at,
        book=made.book,
        step_s=step_s,
        decisions={one.work_id: one for one in made.decisions},
        basis={hub: ForecastBasis("by hand", at) for hub in grids},
        tenant_g_left=tenant_g_left or {},
        all_g_left=all_g_left,
    )
