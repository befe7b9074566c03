"""Hubs, their GPUs and their regions, as seen from this hub."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Struct, UnsetType
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.hubs import (
    TIER,
    HubView,
    RegionView,
    hub_capacity,
    hub_labels,
    hub_status,
    hub_view,
    region_views,
    terraform_hub,
)
from harch.api.dialects.pages import cut
from harch.api.dialects.workload_in import gpu_model
from harch.api.routes.context import (
    PER_PAGE,
    Here,
    Operator,
    PageNumber,
    PerPage,
    RouteContext,
    Viewer,
    check_model,
    check_word,
    find_hub,
    reply,
    requested_labels,
    speaks_terraform,
)
from harch.api.schema import answers
from harch.base.errors import HarchError
from harch.hub.views import PeerView
from harch.sovereignty.jurisdictions import country_of
from harch.wire.carbon import HubPower
from harch.wire.hardware import GpuView
from harch.wire.hubs import HubCapacity
from harch.wire.pages import Page, Pagination

router = APIRouter(tags=["fleet"])

# Words that the public clients know; a hub need not ever have them.
HUB_STATUSES = ("creating", "ready", "updating", "scaling", "draining", "offline", "error")
TIERS = ("starter", "standard", "performance", "enterprise")
GPU_STATUSES = ("free", "allocated", "unavailable")


class RegionList(Struct, frozen=True, kw_only=True):
    """`regions` for the Terraform client, `items` for the SDKs."""

    items: list[RegionView]
    regions: list[RegionView]
    total: int
    pagination: Pagination


@router.get("/hubs", responses=answers(Page[HubView]), summary="Lists the hubs of the fleet")
async def list_hubs(
    request: Request,
    _: Viewer,
    here: Here,
    page: PageNumber = 1,
    per_page: PerPage = PER_PAGE,
    status: str | None = None,
    tier: str | None = None,
    region: str | None = None,
) -> Response:
    """The Terraform client gets `{"hubs": […]}` in its flat form."""
    check_word("status", status, HUB_STATUSES)
    check_word("tier", tier, TIERS)
    country = country_of(region) if region else None
    labels = requested_labels(request).items()

    def wanted(peer: PeerView) -> bool:
        return (
            (status is None or hub_status(peer) == status)
            and (tier is None or tier == TIER)
            and (country is None or (peer.summary is not None and peer.summary.country == country))
            and labels <= hub_labels(peer).items()
        )

    peers = [peer for peer in here.hub.peers() if wanted(peer)]
    if speaks_terraform(request):
        return reply({"hubs": [terraform_hub(peer) for peer in peers]})
    return reply(cut([hub_view(peer, here.hub.started_at) for peer in peers], page=page, per_page=per_page))


@router.get("/hubs/{hub_id}", responses=answers(HubView), summary="Shows a hub, by id or name")
async def get_hub(request: Request, hub_id: str, _: Viewer, here: Here) -> Response:
    peer = find_hub(here, hub_id)
    return reply(terraform_hub(peer) if speaks_terraform(request) else hub_view(peer, here.hub.started_at))


@router.get("/hubs/{hub_id}/capacity", responses=answers(HubCapacity), summary="What a hub has, and has free")
async def get_capacity(hub_id: str, _: Viewer, here: Here) -> Response:
    peer = find_hub(here, hub_id)
    if peer.summary is None:
        raise HarchError("E0802", f"hub `{peer.hub_id}` has not answered yet", hint=f"is it running at {peer.url}?")
    return reply(hub_capacity(peer.summary))


@router.post("/hubs", summary="Refused: hubs come from the fleet file")
@router.put("/hubs/{hub_id}", summary="Refused: hubs come from the fleet file")
@router.delete("/hubs/{hub_id}", summary="Refused: hubs come from the fleet file")
async def change_hub(_: Operator) -> Response:
    raise HarchError(
        "E0304",
        "hubs are not changed over the API: they come from the fleet file",
        hint="edit the fleet file and restart the hubs",
    )


@router.get("/gpus", responses=answers(Page[GpuView]), summary="Lists this hub's GPUs, one by one")
async def list_gpus(
    caller: Viewer,
    here: Here,
    page: PageNumber = 1,
    per_page: PerPage = PER_PAGE,
    hub: str | None = None,
    model: str | None = None,
    status: Annotated[str | None, Query(description="free, allocated or unavailable")] = None,
) -> Response:
    if hub is not None:
        peer = find_hub(here, hub)
        if not peer.own:
            raise HarchError(
                "E0305",
                f"the GPUs of `{peer.hub_id}` are listed by that hub only",
                hint=f"use its API at {peer.url}; GET /v1/hubs has its totals",
                meta={"hub_id": peer.hub_id, "url": peer.url},
            )
    model = gpu_model(model)
    check_model(here, model)
    check_word("status", status, GPU_STATUSES)
    found = [
        gpu
        for gpu in here.hub.gpus(tenant=tenant_scope(caller))
        if model in {None, gpu.model} and status in {None, gpu.status}
    ]
    return reply(cut(found, page=page, per_page=per_page))


@router.get("/regions", responses=answers(RegionList), summary="Lists the countries with hubs")
async def list_regions(
    _: Viewer,
    here: Here,
    available: bool | None = None,
    country: str | None = None,
    min_renewable_percentage: float | None = None,
    max_carbon_intensity: float | None = None,
) -> Response:
    """Regions without a value do not pass a filter on it. Carbon values are those of `harch carbon now`."""
    code = country_of(country) if country else None
    found = [
        region
        for region in region_views(here.hub.peers(), _powers(here))
        if available in {None, region.available}
        and code in {None, region.country}
        and (max_carbon_intensity is None or _known(region.carbon_intensity, math.inf) <= max_carbon_intensity)
        and (min_renewable_percentage is None or _known(region.renewable_percentage, -1) >= min_renewable_percentage)
    ]
    everything = cut(found, page=1, per_page=max(1, len(found)))
    return reply(RegionList(items=found, regions=found, total=len(found), pagination=everything.pagination))


@router.get("/regions/{code}", responses=answers(RegionView), summary="Shows a region, by word or country code")
async def get_region(code: str, _: Viewer, here: Here) -> Response:
    try:
        country = country_of(code)
    except HarchError as error:
        raise HarchError("E0310", error.message, hint=error.hint) from None
    for region in region_views(here.hub.peers(), _powers(here)):
        if region.country == country:
            return reply(region)
    raise HarchError("E0310", f"no hub in `{code[:64]}`", hint="GET /v1/regions lists the regions with hubs")


def _powers(here: RouteContext) -> list[HubPower]:
    return [view.power for view in here.hub.carbon.now() if view.power is not None]


def _known(value: float | UnsetType, otherwise: float) -> float:
    return otherwise if isinstance(value, UnsetType) else value
