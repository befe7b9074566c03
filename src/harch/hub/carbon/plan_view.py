"""What does the hub's newest plan rest on, and what does it hold back? For operators and for tests. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.hub.routing.memory import CarbonMemory


class PlannedHub(Struct, frozen=True, kw_only=True):
    """One hub as the plan sees it, by step. `spare_kw` is own power that no load takes yet; all of it is forecast."""

    hub_id: str
    rests_on: str
    figures_at: datetime
    pue: float
    transmission_loss: float
    grid_g_per_kwh: tuple[float, ...]
    spare_kw: tuple[float, ...]


class CarbonPlanView(Struct, frozen=True, kw_only=True):
    """`at` None: there is no plan yet. `notes`: hubs that were left out, and what else went wrong."""

    hub_id: str
    at: datetime | None = None
    fresh: bool = False  # else work starts as if nobody planned
    applies_to: str = ""
    step_s: float = 0.0
    held: int = 0
    asked_elsewhere: int = 0
    decisions: int = 0
    all_g_left: float | None = None  # of this month's budget of the hub
    tenant_g_left: dict[str, float] = {}
    hubs: tuple[PlannedHub, ...] = ()
    notes: tuple[str, ...] = ()


def plan_view(memory: CarbonMemory, hub_id: str, *, now: datetime, boot_s: float, tenant: str | None) -> CarbonPlanView:
    """`tenant` None: the budgets of all."""
    plan = memory.plan
    shown = CarbonPlanView(
        hub_id=hub_id,
        applies_to=str(memory.settings.planning.applies_to),
        held=len(memory.held),
        asked_elsewhere=len(memory.routes),
    )
    if plan is None:
        return shown
    step_h = plan.step_s / 3600
    hubs = tuple(
        PlannedHub(
            hub_id=one.hub,
            rests_on=plan.figures[one.hub].rests_on,
            figures_at=plan.figures[one.hub].at,
            pue=one.pue,
            transmission_loss=one.transmission_loss,
            grid_g_per_kwh=tuple(round(float(g), 2) for g in one.grid_g_per_kwh),
            spare_kw=tuple(round(float(kwh) / step_h, 2) for kwh in one.onsite_kw),
        )
        for one in plan.book.outlook.hubs
        if one.hub in plan.figures
    )
    return CarbonPlanView(
        hub_id=hub_id,
        at=plan.at,
        fresh=memory.fresh_plan(now, boot_s) is not None,
        applies_to=shown.applies_to,
        step_s=plan.step_s,
        held=shown.held,
        asked_elsewhere=shown.asked_elsewhere,
        decisions=len(plan.decisions),
        all_g_left=plan.all_g_left if tenant is None else None,
        tenant_g_left={name: g for name, g in plan.tenant_g_left.items() if tenant in (None, name)},
        hubs=hubs,
        notes=plan.notes,
    )
