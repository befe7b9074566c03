"""How does the Terraform client speak of waiting for clean power? A schedule of one workload, in its annotations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from harch.workloads.carbon import CarbonWishes
from harch.workloads.lifecycle import Workload

ANNOTATION = "harch.dev/carbon-schedule"
PREFIX = "sched_"
DEFER_S = 86400.0  # the client names no deadline: a day is what its words promise at most


class ScheduleBody(Struct, kw_only=True, frozen=True):
    """Unknown fields are let through, as for all advice."""

    workload_id: str = ""
    enabled: bool = True
    max_carbon_intensity: Annotated[float, Meta(ge=0)] = 0.0
    preferred_region: str = ""
    defer_when_high_carbon: bool = False
    green_window_only: bool = False
    sovereignty: str = "strict"


class _Kept(ScheduleBody, kw_only=True, frozen=True):
    created_at: datetime
    updated_at: datetime


class CarbonAwareSchedule(Struct, frozen=True, kw_only=True):
    """What the client decodes: flat, no nulls."""

    id: str
    workload_id: str
    enabled: bool
    max_carbon_intensity: float
    preferred_region: str
    defer_when_high_carbon: bool
    green_window_only: bool
    sovereignty: str
    status: str
    current_intensity: float
    recommended_action: str
    next_green_window: str
    created_at: datetime
    updated_at: datetime


def wishes_of(body: ScheduleBody, before: CarbonWishes) -> CarbonWishes:
    """`defer_when_high_carbon` gives it a day of slack; `green_window_only` makes the intensity a hard limit."""
    if not body.enabled:
        return replace(before, aware=None, slack_s=0.0, finish_by=None, g_per_kwh_max=None)
    ceiling = body.max_carbon_intensity or None
    return replace(
        before,
        aware=True,
        slack_s=DEFER_S if body.defer_when_high_carbon or body.green_window_only else 0.0,
        g_per_kwh_max=ceiling if body.green_window_only else None,
    )


def annotation_of(body: ScheduleBody, workload: Workload, now: datetime) -> dict[str, str]:
    kept = _kept(workload)
    fields = {name: getattr(body, name) for name in ScheduleBody.__struct_fields__} | {"workload_id": workload.id}
    made = _Kept(**fields, created_at=kept.created_at if kept is not None else now, updated_at=now)
    return {ANNOTATION: msgspec.json.encode(made).decode()}


def schedule_of(workload: Workload, g_per_kwh: float) -> CarbonAwareSchedule | None:
    """None: nobody made one for it."""
    kept = _kept(workload)
    if kept is None:
        return None
    held = workload.carbon is not None and workload.carbon.held
    start = workload.carbon.start_at if workload.carbon is not None and held else None
    active = kept.enabled and not workload.state.is_final
    return CarbonAwareSchedule(
        id=PREFIX + workload.id,
        workload_id=workload.id,
        enabled=kept.enabled,
        max_carbon_intensity=kept.max_carbon_intensity,
        preferred_region=kept.preferred_region,
        defer_when_high_carbon=kept.defer_when_high_carbon,
        green_window_only=kept.green_window_only,
        sovereignty=kept.sovereignty,
        status="deferred" if active and held else "active" if active else "inactive",
        current_intensity=g_per_kwh,
        recommended_action="defer" if held else "schedule_now",
        next_green_window=start.isoformat() if start is not None else "",
        created_at=kept.created_at,
        updated_at=kept.updated_at,
    )


def _kept(workload: Workload) -> _Kept | None:
    text = workload.annotations.get(ANNOTATION)
    try:
        return msgspec.json.decode(text, type=_Kept) if text else None
    except msgspec.DecodeError:
        return None
