"""May this hub take work? Cordon it, drain it, retire it, open it again; and how far a drain has come."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.dialects.hubs import HubView, hub_view
from harch.api.routes.context import Here, Operator, RouteContext, Viewer, find_hub, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.jobs.state import Closed
from harch.hub.views import Principal
from harch.wire.hubs import HubClosure

router = APIRouter(tags=["fleet"])

_VERBS = {
    "cordon": (Closed.CORDONED, "Starts no new work, its own or borrowed; running work continues"),
    "drain": (Closed.DRAINING, "Starts no new work, and running work moves to other hubs"),
    "retire": (Closed.RETIRED, "Leaves the federation permanently, once no work is left"),
    "open": (Closed.OPEN, "Takes work again"),
}


class ClosureRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: Annotated[
        str, Meta(max_length=256, description="Reason, shown with the change; names the caller if empty.")
    ] = ""


class HubAction(Struct, frozen=True, kw_only=True):
    """The public clients' way to say it."""

    action: str


@router.get("/hubs/{hub_id}/closure", responses=answers(HubClosure), summary="Whether this hub takes work")
async def get_closure(hub_id: str, _: Viewer, here: Here) -> Response:
    _check_own(here, hub_id)
    return reply(await here.hub.operations.closure())


def _make_route(verb: str, closed: Closed, summary: str) -> None:
    @router.post(
        f"/hubs/{{hub_id}}/{verb}",
        name=f"{verb}_hub",
        responses=answers(HubClosure),
        openapi_extra=accepts(ClosureRequest),
        summary=summary,
    )
    async def change(request: Request, hub_id: str, caller: Operator, here: Here) -> Response:
        body = await read_json(request, here, ClosureRequest)
        _check_own(here, hub_id)
        return reply(await here.hub.operations.close_hub(closed, why=body.why or _requested_by(caller)))


for _verb, (_closed, _summary) in _VERBS.items():
    _make_route(_verb, _closed, _summary)


@router.patch(
    "/hubs/{hub_id}",
    responses=answers(HubView),
    openapi_extra=accepts(HubAction),
    summary='Only `{"action": "drain"}`: everything else comes from the fleet file',
)
async def patch_hub(request: Request, hub_id: str, caller: Operator, here: Here) -> Response:
    changes = await read_json(request, here, dict[str, object]) if "content-type" in request.headers else {}
    if changes != {"action": "drain"}:
        raise HarchError(
            "E0304",
            "hubs are not changed over the API: they come from the fleet file",
            hint="edit the fleet file and restart the hubs; only the action `drain` is taken here",
        )
    _check_own(here, hub_id)
    await here.hub.operations.close_hub(Closed.DRAINING, why=_requested_by(caller))
    return reply(hub_view(find_hub(here, hub_id), here.hub.started_at))


def _check_own(here: RouteContext, hub_id: str) -> None:
    """A hub decides for itself; others are pointed at."""
    peer = find_hub(here, hub_id)
    if not peer.own:
        raise HarchError(
            "E0305",
            f"this is hub `{here.hub.hub_id}`; only `{peer.hub_id}` itself can do that",
            hint=f"use its API at {peer.url}",
            meta={"hub_id": peer.hub_id, "url": peer.url},
        )


def _requested_by(caller: Principal) -> str:
    return f"requested by {caller.name}"
