"""What was decided, and can it be proven? The hub's audit chain: pages, exports, its signed head, peers' copies."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.dialects.pages import cut, page_of
from harch.api.limits import AUDIT_PER_PAGE_MAX
from harch.api.routes.context import (
    PER_PAGE,
    Admin,
    Here,
    Operator,
    PageNumber,
    find_hub,
    read_json,
    reply,
)
from harch.api.routes.exports import LineExport
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.base.integers import INT64_MAX
from harch.hub.audit.table import AuditQuery, AuditRecord
from harch.sovereignty.audit.checkpoints import KeyStatement, SignedCheckpoint
from harch.sovereignty.audit.verification import WHY_LENGTH_MAX, Loss
from harch.wire.audit import AcceptedLoss, AuditLoss, SigningKey
from harch.wire.pages import Page, Pagination

router = APIRouter(tags=["audit"])


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
    or names; an unknown one is an error. Pages prove nothing: an export does, because it begins with
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


@router.get("/audit/export", summary="Exports the chain as lines of JSON, closed by a signed checkpoint")
async def export(_: Operator, here: Here) -> Response:
    """Breaks off without a proper end if the hub stops first, so that a part is not taken for the whole."""
    closing = await here.hub.audit.head()
    return LineExport(here, here.hub.audit.lines, upto=closing.checkpoint.seq, closing=closing.line)


@router.get("/audit/head", responses=answers(SignedCheckpoint), summary="The signed head of the chain")
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
    summary="Stores a copy of another hub's checkpoint",
)
async def keep_checkpoint(request: Request, _: Operator, here: Here) -> Response:
    """409 if it contradicts a copy that is kept already: then one of that hub's two histories is false."""
    offer = await read_json(request, here, CheckpointOffer)
    offered = offer.checkpoint.checkpoint
    if offered.hub not in {peer.hub_id for peer in here.hub.peers()}:
        raise HarchError("E0305", f"no hub named `{offered.hub[:64]}`", hint="GET /v1/hubs lists them")
    await here.hub.audit.keep(offer.checkpoint, offer.keys)
    return reply(CheckpointKept(hub=offered.hub, seq=offered.seq))


@router.post("/audit/key", responses=answers(SigningKey), summary="Replaces the key that signs checkpoints")
async def rotate_key(caller: Admin, here: Here) -> Response:
    return reply(SigningKey(key=await here.hub.audit.rotate_key(actor=caller.key_id)))


@router.get("/audit/loss", responses=answers(AuditLoss), summary="What the chain is known to lack")
async def get_loss(_: Operator, here: Here) -> Response:
    """A hub with a database behind its head file, or behind what another hub keeps of it, writes nothing."""
    return reply(_loss_view(here.hub.audit.loss, await here.hub.audit.losses()))


@router.post(
    "/audit/loss",
    responses=answers(AuditLoss),
    openapi_extra=accepts(LossAccepted),
    summary="Accepts the loss, so that the hub resumes; the chain records it",
)
async def accept_loss(request: Request, caller: Admin, here: Here) -> Response:
    """409 unless `lost_seq` equals the loss that the hub reports: proof that it was read."""
    body = await read_json(request, here, LossAccepted)
    await here.hub.audit.accept_loss(lost_seq=body.lost_seq, actor=caller.key_id, why=body.why)
    return reply(_loss_view(here.hub.audit.loss, await here.hub.audit.losses()))


def _loss_view(loss: Loss | None, accepted: list[AcceptedLoss]) -> AuditLoss:
    if loss is None:
        return AuditLoss(held=False, accepted=tuple(accepted))
    return AuditLoss(
        held=True,
        sentence=loss.sentence,
        found_seq=loss.found.seq,
        lost_seq=loss.lost.seq,
        lost_hash=loss.lost.hash,
        source=loss.source,
        accepted=tuple(accepted),
    )
