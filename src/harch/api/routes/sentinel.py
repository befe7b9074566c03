"""What do a hub and its SENTINEL say to each other? Whose key a caller shows, and what other hubs say of alerts."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.routes.context import Here, Operator, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.federation.alert_post import RECORDS_BYTES_MAX
from harch.hub.views import Role

router = APIRouter(tags=["federation"])


class RecordsTold(Struct, frozen=True, kw_only=True):
    """Records in SENTINEL's own encoding, as base64; empty if nothing is new."""

    records: Annotated[str, Meta(max_length=RECORDS_BYTES_MAX * 4 // 3 + 4)] = ""


class RecordsHeard(Struct, frozen=True, kw_only=True):
    """`position` is the hub's place among those of its country: who comes first, notifies first."""

    records: tuple[str, ...]
    position: int
    tell_all: bool


class KeyShown(Struct, frozen=True, kw_only=True):
    """The key that somebody showed to SENTINEL."""

    key: Annotated[str, Meta(min_length=1, max_length=512)]


class KeyKnown(Struct, frozen=True, kw_only=True):
    tenant: str
    role: Role


@router.post(
    "/sentinel/callers",
    responses=answers(KeyKnown),
    openapi_extra=accepts(KeyShown),
    summary="Whose key is this? For the hub's own SENTINEL",
)
async def caller(request: Request, _: Operator, here: Here) -> Response:
    """Keys of agents are known here too: they send telemetry, and open nothing else."""
    shown = await read_json(request, here, KeyShown)
    found = here.hub.authenticate(shown.key)
    if found is None:
        raise HarchError("E0308", "no key of this hub")
    return reply(KeyKnown(tenant=found.tenant, role=found.role))


@router.post(
    "/sentinel/alert-records",
    responses=answers(RecordsHeard),
    openapi_extra=accepts(RecordsTold),
    summary="Exchanges records about alerts with the hubs of the same country",
)
async def exchange(request: Request, _: Operator, here: Here) -> Response:
    told = await read_json(request, here, RecordsTold)
    try:
        records = base64.b64decode(told.records, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise HarchError("E0201", "`records` is no base64", field="records") from problem
    heard = here.hub.federation.exchange_alerts(records)
    return reply(
        RecordsHeard(
            records=tuple(base64.b64encode(one).decode() for one in heard.records),
            position=heard.position,
            tell_all=heard.tell_all,
        )
    )
