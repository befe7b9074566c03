"""Which policy is in force, and what has been decided? Activates bundles; shows decisions, to compare others on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.routes.context import Admin, Here, Operator, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.sovereignty.policy.bundle import FILES_MAX
from harch.sovereignty.policy.evaluation import PastDecision
from harch.wire.policies import PolicyStatus

router = APIRouter(tags=["policies"])

DECISIONS_LISTED_MAX = 1_000_000


class BundleFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a bundle, by path."""

    files: Annotated[dict[str, str], Meta(max_length=FILES_MAX)]


class DecisionList(Struct, frozen=True, kw_only=True):
    """Equal decisions are one item; `total` is the sum of their counts."""

    items: list[PastDecision]
    total: int


class World(Struct, frozen=True, kw_only=True):
    """What policies see as `data.world`."""

    world: dict[str, object]


@router.get("/policies/active", responses=answers(PolicyStatus), summary="The policy in force")
async def get_active(_: Viewer, here: Here) -> Response:
    return reply(here.hub.policies.status())


@router.put(
    "/policies/active",
    responses=answers(PolicyStatus),
    openapi_extra=accepts(BundleFiles),
    summary="Activates a policy bundle, if it compiles and passes its own tests",
)
async def put_active(request: Request, caller: Admin, here: Here) -> Response:
    bundle = await read_json(request, here, BundleFiles)
    return reply(await here.hub.policies.activate(bundle.files, actor=caller.key_id))


@router.delete(
    "/policies/active", responses=answers(PolicyStatus), summary="Deactivates the bundle; the built-in rules remain"
)
async def delete_active(caller: Admin, here: Here) -> Response:
    return reply(await here.hub.policies.deactivate(actor=caller.key_id))


@router.get("/policies/decisions", responses=answers(DecisionList), summary="The last decisions, newest first")
async def list_decisions(
    _: Operator, here: Here, limit: Annotated[int, Query(ge=1, le=DECISIONS_LISTED_MAX)] = 1000
) -> Response:
    """Inputs of all tenants, so for operators. Commands, environments and names of workloads are not part of them."""
    found = await here.hub.policies.decisions(limit)
    return reply(DecisionList(items=found, total=sum(decision.count for decision in found)))


@router.get("/policies/world", responses=answers(World), summary="Facts about fleet and law that policies see")
async def get_world(_: Viewer, here: Here) -> Response:
    return reply(World(world=here.hub.policies.world()))
