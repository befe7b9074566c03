"""On what power do the hubs run, what will it be, what did work use? Every figure with its kind and its source."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.routes.context import Here, Operator, Viewer, find_hub, reply
from harch.api.routes.exports import LineExport
from harch.api.schema import answers
from harch.base.errors import HarchError
from harch.carbon.ledger.budgets import month_bounds
from harch.carbon.ledger.report import GroupBy
from harch.hub.carbon.views import ReportQuery
from harch.wire.carbon import CarbonPlanView, GridForecast, HubReport, JobCarbon, PowerList

router = APIRouter(tags=["carbon"])

HOURS_AHEAD_MAX = 96

Line = Literal["tenant", "job", "dataset", "hub", "month"]
HoursAhead = Annotated[int, Query(ge=1, le=HOURS_AHEAD_MAX, description="How many hours.")]


@router.get("/carbon/now", responses=answers(PowerList), summary="The power of every hub, as known to this one")
async def carbon_now(_: Viewer, here: Here) -> Response:
    """The queried hub comes first. Values of another hub are those that it reported."""
    views = here.hub.carbon.now()
    return reply(PowerList(items=views, total=len(views)))


@router.get("/carbon/forecast", responses=answers(GridForecast), summary="Forecast of the grid of a hub")
async def carbon_forecast(
    _: Viewer,
    here: Here,
    hub: Annotated[str | None, Query(description="Hub (default: the queried one).")] = None,
    hours: HoursAhead = HOURS_AHEAD_MAX,
) -> Response:
    """Always estimated: with intervals, and the errors of a replay over the last days."""
    hub_id = find_hub(here, hub).hub_id if hub is not None else here.hub.hub_id
    return reply(here.hub.carbon.forecast(hub_id, hours))


@router.get("/carbon/plan", responses=answers(CarbonPlanView), summary="The hub's plan of where and when work runs")
async def carbon_plan(caller: Viewer, here: Here) -> Response:
    """The data behind it, by hub and step, and how much work it defers. All of it is forecast."""
    return reply(here.hub.carbon.plan(tenant=tenant_scope(caller)))


@router.get("/carbon/ledger", summary="The whole ledger as lines of JSON, each linked to the one before by its hash")
async def carbon_ledger(_: Operator, here: Here) -> Response:
    """Of all tenants. `harch carbon verify` checks it against the checkpoints in the audit chain."""
    return LineExport(here, here.hub.carbon.ledger_lines, upto=(await here.hub.carbon.ledger_head()).seq)


@router.get("/carbon/report", responses=answers(HubReport), summary="What work used at this hub, from its ledger")
async def carbon_report(
    caller: Viewer,
    here: Here,
    by: Annotated[Line, Query(description="What to group by.")] = "tenant",
    tenant: str | None = None,
    workload: Annotated[str | None, Query(description="An id or a name.")] = None,
    data: Annotated[str | None, Query(description="An id or a name; jobs that read several count in part.")] = None,
    month: Annotated[str | None, Query(description="e.g. 2026-03")] = None,
) -> Response:
    """Without the role `operator`, only the caller's own tenant. Work that ran at another hub is reported there."""
    scope = tenant_scope(caller)
    if scope is not None and tenant not in {None, scope}:
        raise HarchError("E0103", f"`{tenant}` is not your tenant", hint="leave `tenant` out")
    known = here.hub.references
    if scope is None and tenant is not None:
        await known.tenant(tenant)
    job = await known.workload(workload, tenant=scope) if workload is not None else None
    data_id = await known.data(data, tenant=scope) if data is not None else None
    if month is not None and month_bounds(month)[0] > here.clock.now():
        raise HarchError("E0201", f"{month} has not begun", hint="choose a month that has", field="month")
    query = ReportQuery(by=GroupBy(by), tenant=scope or tenant, job=job, data=data_id, month=month)
    return reply(await here.hub.carbon.report(query))


@router.get("/carbon/why/{ref}", responses=answers(JobCarbon), summary="On what power a job ran at this hub")
async def carbon_why(ref: str, caller: Viewer, here: Here) -> Response:
    """With the naive choice beside it: its home hub, started at once. A job that never ran here has no pieces."""
    scope = tenant_scope(caller)
    workload_id = await here.hub.references.workload(ref, tenant=scope)
    return reply(await here.hub.carbon.why(workload_id, tenant=scope))
