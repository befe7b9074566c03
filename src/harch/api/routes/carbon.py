"""On what power do the hubs run, and what will it be? Every figure with its kind, its source and its age."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from msgspec import Struct
from starlette.responses import Response

from harch.api.routes.context import Here, Viewer, find_hub, reply
from harch.api.schema import answers
from harch.hub.carbon.views import GridForecast, PowerView

router = APIRouter(tags=["carbon"])

HOURS_AHEAD_MAX = 96

HoursAhead = Annotated[int, Query(ge=1, le=HOURS_AHEAD_MAX, description="How many hours.")]


class PowerList(Struct, frozen=True, kw_only=True):
    items: list[PowerView]
    total: int


@router.get("/carbon/now", responses=answers(PowerList), summary="The power of every hub, as this one knows it")
async def carbon_now(_: Viewer, here: Here) -> Response:
    """The hub that is asked comes first. A figure of another hub is what that hub said of itself."""
    views = here.hub.carbon.now()
    return reply(PowerList(items=views, total=len(views)))


@router.get("/carbon/forecast", responses=answers(GridForecast), summary="The grid of a hub in the hours to come")
async def carbon_forecast(
    _: Viewer,
    here: Here,
    hub: Annotated[str | None, Query(description="Of this hub; of the asked one if absent.")] = None,
    hours: HoursAhead = HOURS_AHEAD_MAX,
) -> Response:
    """Always estimated: with intervals, and the errors of a replay over the last days."""
    hub_id = find_hub(here, hub).hub_id if hub is not None else here.hub.hub_id
    return reply(here.hub.carbon.forecast(hub_id, hours))
