"""The hardware of this hub as it is now: nodes, racks, cooling zones, links; and what an operator does to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from harch.api.dialects.pages import cut
from harch.api.dialects.workload_in import gpu_model
from harch.api.routes.context import (
    PER_PAGE,
    Here,
    Operator,
    PageNumber,
    PerPage,
    Viewer,
    check_model,
    read_json,
    reply,
)
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.jobs.hardware import missing
from harch.hub.views import Principal
from harch.wire.hardware import Defragmentation, GpuView, NodeState, RackState, TopologyView, ZoneState
from harch.wire.pages import Page

router = APIRouter(tags=["hardware"])

Why = Annotated[str, Meta(max_length=256, description="Reason, shown with the change; names the caller if empty.")]


class NodePatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is absent stays as it is; `nvlink_factor` null: as the fleet file says again."""

    cordoned: bool | UnsetType = UNSET
    nvlink_factor: float | UnsetType | None = UNSET
    why: Why = ""


class NodeDrain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: Why = ""


class GpuPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    healthy: bool
    why: Why = ""


class ZonePatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`heat_kw_max` null: as the fleet file says again."""

    heat_kw_max: float | None
    why: Why = ""


class RackPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uplink_factor` null: as the fleet file says again."""

    uplink_factor: float | None
    why: Why = ""


class DefragmentationRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`apply` false: only the plan."""

    apply: bool = False


@router.get("/nodes", responses=answers(Page[NodeState]), summary="Lists this hub's nodes, as they are now")
async def list_nodes(
    _: Viewer,
    here: Here,
    page: PageNumber = 1,
    per_page: PerPage = PER_PAGE,
    rack: str | None = None,
    row: str | None = None,
    model: str | None = None,
    cordoned: bool | None = None,
    served: bool | None = None,
) -> Response:
    model = gpu_model(model)
    check_model(here, model)
    nodes = await here.hub.operations.nodes()
    if rack is not None and rack not in {one.id for one in await here.hub.operations.racks()}:
        raise missing("rack", rack)
    if row is not None and row not in {node.row for node in nodes}:
        raise missing("row", row)
    found = [
        node
        for node in nodes
        if rack in {None, node.rack_id}
        and row in {None, node.row}
        and model in {None, node.model}
        and cordoned in {None, node.cordoned}
        and served in {None, node.served}
    ]
    return reply(cut(found, page=page, per_page=per_page))


@router.get("/nodes/{node_id}", responses=answers(NodeState), summary="Shows a node")
async def get_node(node_id: str, _: Viewer, here: Here) -> Response:
    for node in await here.hub.operations.nodes():
        if node.id == node_id:
            return reply(node)
    raise missing("node", node_id)


@router.patch(
    "/nodes/{node_id}",
    responses=answers(NodeState),
    openapi_extra=accepts(NodePatch),
    summary="Cordons or reopens a node, or sets the health of its NVLink",
)
async def patch_node(request: Request, node_id: str, caller: Operator, here: Here) -> Response:
    """A cordoned node keeps its work and gets no more."""
    patch = await read_json(request, here, NodePatch)
    if patch.cordoned is UNSET and patch.nvlink_factor is UNSET:
        raise HarchError("E0201", "nothing to change", hint="send `cordoned`, `nvlink_factor` or both")
    changed = await here.hub.operations.change_node(
        node_id,
        cordoned=None if patch.cordoned is UNSET else patch.cordoned,
        nvlink=None if patch.nvlink_factor is UNSET else (patch.nvlink_factor,),
        why=_why(patch.why, caller),
    )
    return reply(changed)


@router.post(
    "/nodes/{node_id}/drain",
    responses=answers(NodeState),
    openapi_extra=accepts(NodeDrain, required=False),
    summary="Drains a node: cordons it and moves its work elsewhere",
)
async def drain_node(request: Request, node_id: str, caller: Operator, here: Here) -> Response:
    """Its work is stopped gracefully, requeued and started elsewhere. `tasks` counts what is still there."""
    has_body = request.headers.get("content-length", "0") != "0"
    why = (await read_json(request, here, NodeDrain)).why if has_body else ""
    return reply(await here.hub.operations.drain_node(node_id, why=_why(why, caller)))


@router.patch(
    "/gpus/{gpu_id}",
    responses=answers(GpuView),
    openapi_extra=accepts(GpuPatch),
    summary="Marks a GPU as unhealthy, or as healthy again",
)
async def patch_gpu(request: Request, gpu_id: str, caller: Operator, here: Here) -> Response:
    """An unhealthy GPU keeps its work and gets no more."""
    patch = await read_json(request, here, GpuPatch)
    await here.hub.operations.change_gpu(gpu_id, healthy=patch.healthy, why=_why(patch.why, caller))
    for gpu in here.hub.gpus(tenant=None):
        if gpu.id == gpu_id:
            return reply(gpu)
    raise missing("GPU", gpu_id)


@router.get(
    "/cooling-zones", responses=answers(Page[ZoneState]), summary="Lists the cooling zones, with their headroom"
)
async def list_zones(_: Viewer, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    return reply(cut(await here.hub.operations.zones(), page=page, per_page=per_page))


@router.get("/cooling-zones/{zone_id}", responses=answers(ZoneState), summary="Shows a cooling zone")
async def get_zone(zone_id: str, _: Viewer, here: Here) -> Response:
    for zone in await here.hub.operations.zones():
        if zone.id == zone_id:
            return reply(zone)
    raise missing("cooling zone", zone_id)


@router.patch(
    "/cooling-zones/{zone_id}",
    responses=answers(ZoneState),
    openapi_extra=accepts(ZonePatch),
    summary="Sets the heat that a cooling zone can remove",
)
async def patch_zone(request: Request, zone_id: str, caller: Operator, here: Here) -> Response:
    """Less than the current heat stops new work there; it evicts nothing."""
    patch = await read_json(request, here, ZonePatch)
    why = _why(patch.why, caller)
    return reply(await here.hub.operations.change_zone(zone_id, heat_kw_max=patch.heat_kw_max, why=why))


@router.get("/racks", responses=answers(Page[RackState]), summary="Lists the racks, with their power and uplinks")
async def list_racks(_: Viewer, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    return reply(cut(await here.hub.operations.racks(), page=page, per_page=per_page))


@router.patch(
    "/racks/{rack_id}",
    responses=answers(RackState),
    openapi_extra=accepts(RackPatch),
    summary="Sets the health of a rack's uplink",
)
async def patch_rack(request: Request, rack_id: str, caller: Operator, here: Here) -> Response:
    patch = await read_json(request, here, RackPatch)
    why = _why(patch.why, caller)
    return reply(await here.hub.operations.change_rack(rack_id, uplink_factor=patch.uplink_factor, why=why))


@router.get(
    "/topology",
    responses=answers(TopologyView),
    summary="Shows racks, nodes and NVLink islands with their modelled bandwidth",
)
async def get_topology(_: Viewer, here: Here) -> Response:
    return reply(here.hub.operations.topology())


@router.post(
    "/workloads/{ref}/defragment",
    responses=answers(Defragmentation),
    openapi_extra=accepts(DefragmentationRequest),
    summary="Plans moves that make room for a waiting workload; `apply` makes them",
)
async def defragment(request: Request, ref: str, _: Operator, here: Here) -> Response:
    body = await read_json(request, here, DefragmentationRequest)
    return reply(await here.hub.operations.defragment(ref, apply=body.apply))


def _why(given: str, caller: Principal) -> str:
    return given or f"requested by {caller.name}"
