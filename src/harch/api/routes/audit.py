"""What was decided, and can it be proven? The hub's audit chain: pages, exports, its signed head, peers' copies."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harch.api.dialects.pages import Page, Pagination, cut, page_of
from harch.api.limits import AUDIT_LINES_PER_READ, AUDIT_PER_PAGE_MAX
from harch.api.routes.context import (
    PER_PAGE,
    Admin,
    Context,
    Here,
    Operator,
    PageNumber,
    find_hub,
    read_json,
    reply,
)
from harch.api.schema import accepts, answers
from harch.api.streams import Stream, StreamEnded, StreamKind
from harch.base.errors import HarchError
from harch.base.integers import INT64_MAX
from harch.hub.audit.table import AuditQuery, AuditRecord
from harch.sovereignty.audit.checkpoints import SignedCheckpoint
from harch.sovereignty.audit.keys import KeyStatement
from harch.sovereignty.audit.losses import WHY_LENGTH_MAX, AcceptedLoss, Loss

router = APIRouter(tags=["audit"])

_NDJSON = b"application/x-ndjson"


class AuditPage(Struct, frozen=True, kw_only=True):
    """Ask again with `after=next_after`; `last_seq` is the newest entry that the hub has."""

    items: list[AuditRecord]
    total: int
    pagination: Pagination
    next_after: int
    last_seq: int
    remark: str = ""  # of an empty page, if there is no entry of that kind at all


class CheckpointOffer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hub's checkpoint; `keys` is needed only after it has changed its signing key."""

    checkpoint: SignedCheckpoint
    keys: list[KeyStatement] = []


class CheckpointKept(Struct, frozen=True, kw_only=True):
    success: bool = True
    hub: str
    seq: int


class SigningKey(Struct, frozen=True, kw_only=True):
    """The public half of the key that is in force now."""

    key: str


class AuditLoss(Struct, frozen=True, kw_only=True):
    """`held`: the hub takes no work because of it. `source` is who knows: its head file, or another hub."""

    held: bool
    sentence: str = ""
    found_seq: int = 0
    lost_seq: int = 0
    lost_hash: str = ""
    source: str = ""
    accepted: list[AcceptedLoss] = []


class LossAccepted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lost_seq` is what GET says. `why` goes into the chain, for good."""

    lost_seq: Annotated[int, Meta(ge=1, le=2**53)]
    why: Annotated[str, Meta(min_length=1, max_length=WHY_LENGTH_MAX)]


@router.get("/audit", responses=answers(AuditPage), summary="Entries of the audit chain, oldest first")
async def audit(
    _: Operator,
    here: Here,
    after: Annotated[
        int | None, Query(ge=0, le=INT64_MAX, description="Only later entries; the newest ones if absent.")
    ] = None,
    subject: str | None = None,
    kind: str | None = None,
    data: str | None = None,
    limit: Annotated[int, Query(ge=1, le=AUDIT_PER_PAGE_MAX)] = 100,
) -> Response:
    """`kind=workload` finds every `workload.…`; `data` finds entries about that dataset. `subject` and `data` are ids
    or names; what the hub has never heard of is an error. Pages prove nothing: an export does, because it begins with
    the first entry and ends with a signature."""
    if subject is not None:
        subject = await here.hub.references.subject(subject, tenant=None)
    if data is not None:
        data = await here.hub.references.data(data, tenant=None)
    last = (await here.hub.audit.head()).checkpoint.seq
    filtered = any(value is not None for value in (subject, kind, data))
    start = after if after is not None else 0 if filtered else max(0, last - limit)
    query = AuditQuery(after=start, limit=limit, subject=subject, kind=kind, data=data)
    found = await here.hub.audit.records(query)
    page = page_of(found, total=len(found), page=1, per_page=limit)
    next_after = found[-1].entry.seq if len(found) == limit else max(start, last)
    remark = ""
    if not found and kind is not None and not await here.hub.audit.records(AuditQuery(limit=1, kind=kind)):
        remark = f"no entry of kind `{kind[:64]}` is in this chain"
    return reply(
        AuditPage(
            items=found,
            total=page.total,
            pagination=page.pagination,
            next_after=next_after,
            last_seq=last,
            remark=remark,
        )
    )


@router.get("/audit/export", summary="The whole chain as lines of JSON, closed by a signed checkpoint")
async def export(_: Operator, here: Here) -> Response:
    """Breaks off without a proper end if the hub stops first, so that nobody takes a part for the whole."""
    return AuditExport(here, await here.hub.audit.head())


@router.get("/audit/head", responses=answers(SignedCheckpoint), summary="Where the chain ends now, signed")
async def head(_: Operator, here: Here) -> Response:
    return reply(await here.hub.audit.head())


@router.get(
    "/audit/checkpoints",
    responses=answers(Page[SignedCheckpoint]),
    summary="Checkpoints of other hubs, kept here",
)
async def checkpoints(
    _: Operator,
    here: Here,
    hub: str | None = None,
    page: PageNumber = 1,
    per_page: Annotated[int, Query(ge=1, le=AUDIT_PER_PAGE_MAX, description="Items per page.")] = PER_PAGE,
) -> Response:
    found = await here.hub.audit.checkpoints(hub)
    if hub is not None and not found:
        find_hub(here, hub)  # a hub that has left the fleet may still have copies here, a misspelt one has none
    return reply(cut(found, page=page, per_page=per_page))


@router.put(
    "/audit/checkpoints",
    responses=answers(CheckpointKept),
    openapi_extra=accepts(CheckpointOffer),
    summary="Keeps a copy of another hub's checkpoint",
)
async def keep_checkpoint(request: Request, _: Operator, here: Here) -> Response:
    """409 if it contradicts a copy that is kept already: then one of that hub's two histories is false."""
    offer = await read_json(request, here, CheckpointOffer)
    offered = offer.checkpoint.checkpoint
    if offered.hub not in {peer.hub_id for peer in here.hub.peers()}:
        raise HarchError("E0305", f"no hub is called `{offered.hub[:64]}`", hint="GET /v1/hubs lists them")
    await here.hub.audit.keep(offer.checkpoint, offer.keys)
    return reply(CheckpointKept(hub=offered.hub, seq=offered.seq))


@router.post("/audit/key", responses=answers(SigningKey), summary="Replaces the key that signs checkpoints")
async def rotate_key(caller: Admin, here: Here) -> Response:
    return reply(SigningKey(key=await here.hub.audit.rotate_key(actor=caller.key_id)))


@router.get("/audit/loss", responses=answers(AuditLoss), summary="What the chain is known to lack")
async def get_loss(_: Operator, here: Here) -> Response:
    """A hub whose database is behind its head file, or behind what another hub keeps of it, writes nothing."""
    return reply(_loss_view(here.hub.audit.loss, await here.hub.audit.losses()))


@router.post(
    "/audit/loss",
    responses=answers(AuditLoss),
    openapi_extra=accepts(LossAccepted),
    summary="Lets the hub go on without what it lost; the chain says so from then on",
)
async def accept_loss(request: Request, caller: Admin, here: Here) -> Response:
    """409 unless `lost_seq` is what the hub says is lost: somebody has to have looked."""
    said = await read_json(request, here, LossAccepted)
    await here.hub.audit.accept_loss(lost_seq=said.lost_seq, actor=caller.key_id, why=said.why)
    return reply(_loss_view(here.hub.audit.loss, await here.hub.audit.losses()))


def _loss_view(loss: Loss | None, accepted: list[AcceptedLoss]) -> AuditLoss:
    if loss is None:
        return AuditLoss(held=False, accepted=accepted)
    return AuditLoss(
        held=True,
        sentence=loss.sentence,
        found_seq=loss.found.seq,
        lost_seq=loss.lost.seq,
        lost_hash=loss.lost.hash,
        source=loss.source,
        accepted=accepted,
    )


class AuditExport(Response):
    def __init__(self, here: Context, closing: SignedCheckpoint) -> None:
        super().__init__()
        self._here = here
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._here.streams.open(StreamKind.EXPORTS, scope, receive, send) as stream:
            await stream.start([(b"content-type", _NDJSON), (b"cache-control", b"no-store")])
            try:
                await self._write(stream)
            except StreamEnded:
                return
            await stream.finish()

    async def _write(self, stream: Stream) -> None:
        after, upto = 0, self._closing.checkpoint.seq
        while True:
            found = await self._here.hub.audit.lines(after=after, upto=upto, limit=AUDIT_LINES_PER_READ)
            if not found:
                break
            await stream.write(b"".join(line for _, line in found))
            after = found[-1][0]
        await stream.write(self._closing.line)
