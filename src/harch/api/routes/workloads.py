"""Workloads: list, read, change, stop, and why. Submission itself is `harch.api.submit`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from msgspec import Struct
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.fields import CLIENT_SPEC, WorkloadBody
from harch.api.dialects.pages import page_of
from harch.api.dialects.workload_in import changed_body, read_workload, translate, workload_type
from harch.api.dialects.workload_out import (
    FederationFilter,
    WorkloadView,
    federation_page,
    terraform_workload,
    workload_view,
)
from harch.api.errors import input_error
from harch.api.routes.context import (
    PER_PAGE,
    Here,
    PageNumber,
    PerPage,
    RouteContext,
    User,
    Viewer,
    find_hub,
    read_json,
    reply,
    requested_labels,
    speaks_terraform,
)
from harch.api.schema import accepts, answers
from harch.api.submit import checked_idempotency_key
from harch.base.errors import HarchError
from harch.base.http.messages import read_body
from harch.hub.views import Principal, WorkloadQuery
from harch.placement.explanation import Explanation
from harch.wire.pages import Page
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec

router = APIRouter(tags=["workloads"])

_STATES: dict[str, State] = {state.value: state for state in State} | {"queued": State.PENDING}


class WorkloadPatch(Struct, kw_only=True, omit_defaults=True):
    """Either a `status` to bring about, or fields of the specification."""

    status: str | None = None
    reason: str = ""


class Deleted(Struct, frozen=True, kw_only=True):
    success: bool = True
    id: str
    status: str


@router.get("/workloads", responses=answers(Page[WorkloadView]), summary="Lists workloads, newest first")
async def list_workloads(
    request: Request,
    caller: Viewer,
    here: Here,
    page: PageNumber = 1,
    per_page: PerPage = PER_PAGE,
    status: str | None = None,
    type_: Annotated[str | None, Query(alias="type")] = None,
    hub_id: str | None = None,
    name: str | None = None,
    active: bool = False,
    tenant: str | None = None,
    borrowed: Annotated[bool, Query(alias="guests", description="Borrowed work instead of the hub's own.")] = False,
    scope: Annotated[str, Query(pattern="^(hub|federation)$", description="`federation`: of all hubs.")] = "hub",
) -> Response:
    """Filters: the parameters, and `label.KEY=VALUE`. `tenant` is for operators; others see their own.

    `scope=federation` queries all hubs for unfinished work; those that do not answer in two seconds are listed in
    `silent_hubs`, never left out silently. Rows then have no command and no environment: these stay at their owner.
    """
    if status is not None and status not in _STATES:
        raise HarchError(
            "E0201", f"`{status[:64]}` is not a status", hint=f"use one of {', '.join(_STATES)}", field="status"
        )
    if hub_id is not None:
        hub_id = find_hub(here, hub_id).hub_id
    requested = await _requested_tenant(here, caller, tenant, everywhere=scope == "federation")
    if scope == "federation":
        wanted = FederationFilter(
            hub_id=hub_id,
            state=_STATES[status] if status else None,
            type=workload_type(type_) if type_ else None,
            name=name,
        )
        if borrowed or requested_labels(request):
            raise HarchError(
                "E0201", "`guests` and labels are known within one hub only", hint="leave `scope` out", field="scope"
            )
        return await _everywhere(here, requested, wanted, page=page, per_page=per_page)
    if hub_id is not None and hub_id != here.hub.hub_id:
        return reply(page_of([], total=0, page=page, per_page=per_page))
    query = WorkloadQuery(
        tenant=requested,
        page=page,
        per_page=per_page,
        state=_STATES[status] if status else None,
        type=workload_type(type_).value if type_ else None,
        name=name,
        active=active,
        borrowed=borrowed,
        labels=requested_labels(request),
    )
    found = await here.hub.workloads(query)
    views = [workload_view(one, here.hub.hub_id, here.hub.live_status(one)) for one in found.items]
    return reply(page_of(views, total=found.total, page=page, per_page=per_page))


async def _everywhere(
    here: RouteContext, tenant: str | None, wanted: FederationFilter, *, page: int, per_page: int
) -> Response:
    work = await here.hub.federation.work(tenant=tenant)
    if tenant is not None and not work.rows:
        await here.hub.references.tenant(tenant)  # no hub has work of it: is there such a tenant?
    rows = [row for row in work.rows if wanted.admits(row)]
    untold = work.total - len(work.rows)  # beyond what one hub tells at once; they may or may not be wanted
    return reply(federation_page(rows, total=len(rows) + untold, silent=work.silent, page=page, per_page=per_page))


@router.post(
    "/workloads/plan",
    responses=answers(Explanation, "What would happen."),
    openapi_extra=accepts(WorkloadBody),
    summary="Explains whether and where a workload would run; stores nothing",
)
async def plan_workload(request: Request, caller: Viewer, here: Here) -> Response:
    spec, _annotations = read_workload(await read_body(request.receive, here.limits), here.hub)
    return reply(here.hub.plan(spec, tenant=caller.tenant))


@router.get("/workloads/{ref}", responses=answers(WorkloadView), summary="Shows a workload, by id or name")
async def get_workload(request: Request, ref: str, caller: Viewer, here: Here) -> Response:
    return _workload_reply(request, here, await here.hub.workload(ref, tenant=tenant_scope(caller)))


@router.get(
    "/workloads/{ref}/why",
    responses=answers(Explanation),
    summary="Explains where a workload runs or why it waits, rule by rule",
)
async def why_workload(ref: str, caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.why(ref, tenant=tenant_scope(caller)))


@router.put(
    "/workloads/{ref}",
    responses=answers(WorkloadView),
    openapi_extra=accepts(WorkloadBody),
    summary="Replaces the specification, before the first start",
)
async def put_workload(request: Request, ref: str, caller: User, here: Here) -> Response:
    """With a `name` the body is a whole specification; without one it changes only the given fields."""
    changes = await read_json(request, here, dict[str, object])
    workload = await here.hub.workload(ref, tenant=tenant_scope(caller))
    if "name" in changes:
        try:
            body = msgspec.convert(changes, WorkloadBody)
        except (msgspec.ValidationError, RecursionError) as error:
            raise input_error(error) from None
    else:
        body = changed_body(workload, changes)
    return _workload_reply(request, here, await _respecify(here, caller, workload, body))


@router.patch(
    "/workloads/{ref}",
    responses=answers(WorkloadView),
    openapi_extra=accepts(WorkloadPatch),
    summary="Pauses, resumes, cancels or changes a workload",
)
async def patch_workload(request: Request, ref: str, caller: User, here: Here) -> Response:
    """`{"status": "paused" | "running" | "cancelled"}`, or fields of the specification."""
    changes = await read_json(request, here, dict[str, object])
    status, reason = changes.pop("status", None), changes.pop("reason", None)
    if status is None and not changes:
        raise HarchError("E0201", "nothing to change", hint="send a `status`, or fields of the specification")
    if status is not None and changes:
        raise HarchError(
            "E0201",
            "a status cannot change together with other fields: one of them could fail when the other is done",
            hint="send two requests",
            field="status",
        )
    if status is not None:
        return _workload_reply(request, here, await _act(here, caller, ref, status, reason))
    workload = await here.hub.workload(ref, tenant=tenant_scope(caller))
    return _workload_reply(request, here, await _respecify(here, caller, workload, changed_body(workload, changes)))


@router.post(
    "/workloads/{ref}/restart",
    responses=answers(WorkloadView),
    summary="Starts a workload again, from its beginning",
)
async def restart_workload(
    request: Request, ref: str, caller: User, here: Here, idempotency_key: Annotated[str, Header()] = ""
) -> Response:
    """What runs gets its grace to end, and waits for GPUs again as its next attempt. What has ended is submitted once
    more: the answer has its new id, and an `Idempotency-Key` keeps a repeated request from doing so twice. What has not
    started yet is refused.
    """
    tenant, reason = tenant_scope(caller), f"restart requested by {caller.name}"[:256]
    key = checked_idempotency_key(idempotency_key.encode())
    workload = await here.hub.restart(ref, tenant=tenant, reason=reason, idempotency_key=key, actor=caller.key_id)
    return _workload_reply(request, here, workload)


@router.delete("/workloads/{ref}", responses=answers(Deleted), summary="Stops a workload and hides it from lists")
async def delete_workload(ref: str, caller: User, here: Here) -> Response:
    workload = await here.hub.delete(ref, tenant=tenant_scope(caller))
    return reply(Deleted(id=workload.id, status=workload.state))


async def _act(here: RouteContext, caller: Principal, ref: str, status: object, reason: object) -> Workload:
    tenant = tenant_scope(caller)
    match status:
        case "paused":
            return await here.hub.pause(ref, tenant=tenant)
        case "running":
            return await here.hub.resume(ref, tenant=tenant)
        case "cancelled":
            why = reason if isinstance(reason, str) and reason else f"requested by {caller.name}"
            return await here.hub.stop(ref, tenant=tenant, reason=why[:256])
        case _:
            raise HarchError(
                "E0201",
                "this status cannot be requested",
                hint="use `paused`, `running` or `cancelled`; the hub sets the others",
                field="status",
            )


async def _respecify(here: RouteContext, caller: Principal, workload: Workload, body: WorkloadBody) -> Workload:
    """Labels may change at any time; anything else only before the first start, which the hub decides."""
    spec, annotations = translate(body, here.hub)
    kept = {name: text for name, text in workload.annotations.items() if name != CLIENT_SPEC}
    annotations = {**kept, **annotations}
    if annotations == workload.annotations and _without_labels(spec) == _without_labels(workload.spec):
        if spec.labels == workload.spec.labels:
            return workload
        return await here.hub.relabel(workload.id, spec.labels, tenant=workload.tenant)
    return await here.hub.replace_spec(
        workload.id, spec, tenant=workload.tenant, annotations=annotations, actor=caller.key_id
    )


def _without_labels(spec: WorkloadSpec) -> WorkloadSpec:
    return msgspec.structs.replace(spec, labels={})


async def _requested_tenant(
    here: RouteContext, caller: Principal, requested: str | None, *, everywhere: bool
) -> str | None:
    """Whose work to list. Raises E0103 and, where this hub alone is asked, E0350."""
    scope = tenant_scope(caller)
    if requested is None or requested == scope:
        return scope
    if scope is not None:
        raise HarchError("E0103", "other tenants' work is for operators", hint="leave `tenant` out", field="tenant")
    return requested if everywhere else await here.hub.references.tenant(requested)


def _workload_reply(request: Request, here: RouteContext, workload: Workload) -> Response:
    if speaks_terraform(request):
        return reply(terraform_workload(workload))
    return reply(workload_view(workload, here.hub.hub_id, here.hub.live_status(workload)))
