"""What do a hub and its SENTINEL say to each other? Whose key a caller shows, what other hubs say of alerts, and what
they tell of their telemetry."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from msgspec import Meta, Struct, field
from starlette.responses import Response

from harch.api.routes.context import Here, Operator, RouteContext, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.base.http.messages import token_from
from harch.hub.federation.alerts import RECORDS_BYTES_MAX
from harch.hub.federation.telemetry import WITHIN_S_MAX
from harch.hub.views import PeerReach, Principal, Role
from harch.sentinel.federated.messages import Question

MSGPACK = "application/msgpack"
KEYS_REMEMBERED_MAX = 1024
WAIT_S_MAX = 30.0
LOOK_EVERY_S = 1.0  # how soon a waiting SENTINEL hears of something new

router = APIRouter(tags=["federation"])


async def _own_sentinel(request: Request, caller: Operator, here: Here) -> Principal:
    """Silences, keys and questions of people come through SENTINEL, which knows who they are: no other key will do."""
    if not here.hub.is_sentinel(token_from(request.scope["headers"])):
        raise HarchError("E0103", "only the hub's own SENTINEL may call this", hint="query SENTINEL itself")
    return caller


OwnSentinel = Annotated[Principal, Depends(_own_sentinel)]


class AlertRecordsSent(Struct, frozen=True, kw_only=True):
    """Records in SENTINEL's own encoding, as base64; empty if nothing is new.

    With `wait_s` the answer comes when there is something new, at the latest after that time: new is another `position`
    or another number of `revoked` keys than those given, or records of others.
    """

    records: Annotated[str, Meta(max_length=RECORDS_BYTES_MAX * 4 // 3 + 4)] = ""
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 0.0
    position: Annotated[int, Meta(ge=0, le=2**31)] = 0
    revoked: Annotated[int, Meta(ge=0, le=2**62)] = 0


class AlertRecordsReceived(Struct, frozen=True, kw_only=True):
    """`position` is the hub's place among those of its country: who comes first, notifies first.

    `revoked` is the number of keys that were revoked so far: when it changes, SENTINEL asks which of those that it
    remembers are still good.
    """

    records: tuple[str, ...]
    position: int
    publish_all: bool = field(name="tell_all")
    revoked: int = 0


class PresentedKey(Struct, frozen=True, kw_only=True):
    """The key that somebody showed to SENTINEL."""

    key: Annotated[str, Meta(min_length=1, max_length=512)]


class KeyKnown(Struct, frozen=True, kw_only=True):
    tenant: str
    role: Role
    key_id: str = ""
    name: str = ""
    agents: list[str] = []  # that connected with this key


class KeysRemembered(Struct, frozen=True, kw_only=True):
    """Ids of keys that SENTINEL has been shown."""

    key_ids: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=KEYS_REMEMBERED_MAX)]


class KeysValid(Struct, frozen=True, kw_only=True):
    """Those of them that have not been revoked."""

    key_ids: list[str]


class HubPeerView(Struct, frozen=True, kw_only=True):
    """A hub that can be asked about its telemetry; `why` says why not. `country` is empty while it is unknown."""

    hub_id: str
    country: str
    own: bool
    reachable: bool
    why: str = ""


class HubsAround(Struct, frozen=True, kw_only=True):
    items: list[HubPeerView]


class QuestionFor(Struct, frozen=True, kw_only=True):
    """A question about the telemetry of another hub, and how long it may take."""

    hub_id: Annotated[str, Meta(min_length=1, max_length=128)]
    question: Question
    within_s: Annotated[float, Meta(gt=0, le=WITHIN_S_MAX)] = 10.0


@router.post(
    "/sentinel/callers",
    responses=answers(KeyKnown),
    openapi_extra=accepts(PresentedKey),
    summary="Identifies a key, for the hub's own SENTINEL",
)
async def caller(request: Request, _: OwnSentinel, here: Here) -> Response:
    """Keys of agents are known here too: they send telemetry, and grant nothing else."""
    presented = await read_json(request, here, PresentedKey)
    found = here.hub.authenticate(presented.key)
    if found is None:
        raise HarchError("E0308", "not a key of this hub")
    agents = [one.agent_id for one in here.hub.credentials.agents_of(found.key_id)] if found.role is Role.AGENT else []
    known = KeyKnown(tenant=found.tenant, role=found.role, key_id=found.key_id, name=found.name, agents=agents)
    return reply(known)


@router.post(
    "/sentinel/callers/valid",
    responses=answers(KeysValid),
    openapi_extra=accepts(KeysRemembered),
    summary="Checks which keys are still valid, for the hub's own SENTINEL",
)
async def valid(request: Request, _: OwnSentinel, here: Here) -> Response:
    remembered = await read_json(request, here, KeysRemembered)
    good = {info.id for info in await here.hub.credentials.keys(None) if not info.revoked}
    return reply(KeysValid(key_ids=[key_id for key_id in remembered.key_ids if key_id in good]))


@router.post(
    "/sentinel/alert-records",
    responses=answers(AlertRecordsReceived),
    openapi_extra=accepts(AlertRecordsSent),
    summary="Exchanges alert records with the hubs of the same country",
)
async def exchange(request: Request, _: OwnSentinel, here: Here) -> Response:
    sent = await read_json(request, here, AlertRecordsSent)
    try:
        records = base64.b64decode(sent.records, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise HarchError("E0201", "`records` is not base64", field="records") from problem
    until_s = here.clock.monotonic_s() + sent.wait_s
    waited = False
    while here.clock.monotonic_s() < until_s and not _has_news(here, sent):
        waited = True
        if not await here.streams.sleep(here.clock, LOOK_EVERY_S):
            break
    if waited and await request.is_disconnected():
        return Response()  # what it does not hear is kept for its next call
    received = here.hub.federation.exchange_alerts(records)
    return reply(
        AlertRecordsReceived(
            records=tuple(base64.b64encode(one).decode() for one in received.records),
            position=received.position,
            publish_all=received.publish_all,
            revoked=here.hub.credentials.revoked_count(),
        )
    )


def _has_news(here: RouteContext, sent: AlertRecordsSent) -> bool:
    federation, credentials = here.hub.federation, here.hub.credentials
    return credentials.revoked_count() != sent.revoked or federation.has_alert_news(sent.position)


@router.get(
    "/sentinel/hubs",
    responses=answers(HubsAround),
    summary="Lists hubs that answer telemetry queries, for the hub's own SENTINEL",
)
async def hubs_around(_: OwnSentinel, here: Here) -> Response:
    return reply(
        HubsAround(
            items=[
                HubPeerView(
                    hub_id=peer.hub_id,
                    country=peer.summary.country if peer.summary is not None else "",
                    own=peer.own,
                    reachable=peer.reachable,
                    why=peer.error,
                )
                for peer in here.hub.peers()
                if peer.reach not in {PeerReach.NOT_MEMBER, PeerReach.RETIRED}
            ]
        )
    )


@router.post(
    "/sentinel/questions",
    responses={200: {"description": "The other hub's `Answer` as it came.", "content": {MSGPACK: {}}}},
    openapi_extra=accepts(QuestionFor),
    summary="Forwards a telemetry query to another hub, for the hub's own SENTINEL",
)
async def query_hub(request: Request, _: OwnSentinel, here: Here) -> Response:
    """SENTINEL has checked caller and tenant, so no other key is accepted here."""
    body = await read_json(request, here, QuestionFor)
    question = msgspec.msgpack.encode(body.question)
    answer = await here.hub.federation.query_telemetry(body.hub_id, question, within_s=body.within_s)
    return Response(answer, media_type=MSGPACK)
