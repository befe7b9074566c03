"""May this hub take work? Cordon it, drain it, retire it, open it again; and how far a drain has come."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.dialects.hubs import HubView, hub_view
from harch.api.routes.context import Context, Here, Operator, Viewer, find_hub, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.closing import HubClosure
from harch.hub.desk import Closed
from harch.hub.views import Principal

router = APIRouter(tags=["fleet"])

_VERBS = {
    "cordon": (Closed.CORDONED, "Starts nothing new, here or for others; what runs goes on"),
    "drain": (Closed.DRAINING, "Starts nothing new, and what runs goes to other hubs"),
    "retire": (Closed.RETIRED, "Leaves the federation for good, once nothing is left"),
    "open": (Closed.OPEN, "Takes work again"),
}


class ClosureAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: Annotated[str, Meta(max_length=256, description="Shown wherever the change is; who asked if empty.")] = ""


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
        openapi_extra=accepts(ClosureAsk),
        summary=summary,
    )
    async def change(request: Request, hub_id: str, caller: Operator, here: Here) -> Response:
        ask = await read_json(request, here, ClosureAsk)
        _check_own(here, hub_id)
        return reply(await here.hub.operations.close_hub(closed, why=ask.why or _asked_by(caller)))


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
    await here.hub.operations.close_hub(Closed.DRAINING, why=_asked_by(caller))
    return reply(hub_view(find_hub(here, hub_id), here.hub.started_at))


def _check_own(here: Context, hub_id: str) -> None:
    """A hub decides for itself; others are pointed at."""
    peer = find_hub(here, hub_id)
    if not peer.own:
        raise HarchError(
            "E0305",
            f"this is hub `{here.hub.hub_id}`; only `{peer.hub_id}` itself can do that",
            hint=f"ask it at {peer.url}",
            meta={"hub_id": peer.hub_id, "url": peer.url},
        )


def _asked_by(caller: Principal) -> str:
    return f"asked for by {caller.name}"
