"""Plans made by hand: two hubs, a dirty present and a clean hour, for the tiny fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from harch.carbon.planning.outlook import HubHours, Outlook, Pool, RestsOn
from harch.carbon.planning.plan import plan_carbon
from harch.carbon.planning.work import Demand
from harch.hub.routing.memory import Figures, HubPlan
from harch.hub.routing.works import CPU
from harch.testing.fleets import tiny_fleet

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
    demand: Demand | None = None,
) -> HubPlan:
    outlook = Outlook(
        tuple(hours(hub, grid) for hub, grid in grids.items()), tuple(p for p in pools() if p.hub in grids)
    )
    made = plan_carbon(outlook, demand or Demand(()), ())
    return HubPlan(
        at=at,
        book=made.book,
        decisions={one.work_id: one for one in made.decisions},
        figures={hub: Figures("by hand", at) for hub in grids},
        tenant_g_left=tenant_g_left or {},
        all_g_left=all_g_left,
    )
