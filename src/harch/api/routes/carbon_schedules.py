"""What does the Terraform client do with its carbon schedules? Makes, reads, changes and deletes them, by workload."""

from __future__ import annotations

from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.carbon import (
    PREFIX,
    CarbonAwareSchedule,
    ScheduleBody,
    annotation_of,
    carbon_preferences,
    schedule_of,
)
from harch.api.routes.context import Here, RouteContext, User, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.views import Principal

router = APIRouter(tags=["carbon, public clients"])


@router.get("/carbon/optimize/{schedule_id}", responses=answers(CarbonAwareSchedule), summary="A carbon schedule")
async def get_schedule(schedule_id: str, caller: Viewer, here: Here) -> Response:
    workload = await here.hub.workload(_workload_id(schedule_id), tenant=tenant_scope(caller))
    found = schedule_of(workload, _intensity(here))
    if found is None:
        raise HarchError("E0301", f"no carbon schedule `{schedule_id[:64]}`", hint="POST /v1/carbon/optimize makes one")
    return reply(found)


@router.put(
    "/carbon/optimize/{schedule_id}",
    responses=answers(CarbonAwareSchedule),
    openapi_extra=accepts(ScheduleBody),
    summary="Change a carbon schedule",
)
async def put_schedule(request: Request, schedule_id: str, caller: User, here: Here) -> Response:
    body = replace(await read_json(request, here, ScheduleBody), workload_id=_workload_id(schedule_id))
    return reply(await set_schedule(body, caller, here))


@router.delete("/carbon/optimize/{schedule_id}", summary="Delete a carbon schedule; its workload goes on without")
async def delete_schedule(schedule_id: str, caller: User, here: Here) -> Response:
    body = ScheduleBody(workload_id=_workload_id(schedule_id), enabled=False)
    await set_schedule(body, caller, here)
    return reply({"success": True, "id": schedule_id})


async def set_schedule(body: ScheduleBody, caller: Principal, here: RouteContext) -> CarbonAwareSchedule:
    """What it means for the workload is decided at once; work that runs already is left where it is."""
    tenant = tenant_scope(caller)
    workload = await here.hub.workload(body.workload_id, tenant=tenant)
    kept = annotation_of(body, workload, here.clock.now())
    preferences = carbon_preferences(body, workload.spec.carbon)
    changed = await here.hub.set_carbon_preferences(workload.id, preferences, tenant=tenant, annotations=kept)
    found = schedule_of(changed, _intensity(here))
    if found is None:
        raise HarchError("E0301", f"workload {workload.id} has no carbon schedule")
    return found


def _workload_id(schedule_id: str) -> str:
    return schedule_id.removeprefix(PREFIX)


def _intensity(here: RouteContext) -> float:
    own = next((view.power for view in here.hub.carbon.now() if view.own), None)
    return (own.marginal_g_per_kwh if own is not None else None) or 0.0
