"""What power does this hub plan to buy, what has it bid, and what does a MWh cost with its carbon?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from harch.api.routes.context import Here, Operator, Viewer, reply
from harch.api.schema import answers
from harch.wire.energy import BidList, BookView, PlanView, PricesView

router = APIRouter(tags=["energy"])

DAYS = 30
DAYS_MAX = 400


@router.get(
    "/energy/plan", responses=answers(PlanView), summary="Which power this hub buys, stores and sells, and when"
)
async def energy_plan(_: Viewer, here: Here) -> Response:
    """All of it is estimated. Without an energy file a hub plans with a modelled contract, labelled as such."""
    return reply(here.hub.energy.plan())


@router.get("/energy/prices", responses=answers(PricesView), summary="What a MWh costs in each step, carbon included")
async def energy_prices(_: Viewer, here: Here) -> Response:
    """With a carbon budget, the price per tonne is what its last tonne is worth, where that is higher."""
    return reply(here.hub.energy.prices())


@router.get("/energy/bids", responses=answers(BidList), summary="Bids of the last days and of the next market day")
async def energy_bids(_: Operator, here: Here) -> Response:
    """With those that were not sent, and why. `paper`: no order has left the machine."""
    return reply(here.hub.energy.bids())


@router.get("/energy/book", responses=answers(BookView), summary="History of every bid")
async def energy_book(
    _: Operator,
    here: Here,
    days: Annotated[int, Query(ge=1, le=DAYS_MAX, description="Days of deliveries to include.")] = DAYS,
) -> Response:
    return reply(await here.hub.energy.book(days))
