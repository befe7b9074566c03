"""Which data is there, what may happen to it, and where is it? The hub's catalog, and who may loosen its tags."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.pages import cut
from harch.api.routes.context import (
    PER_PAGE,
    Admin,
    Here,
    Operator,
    PageNumber,
    PerPage,
    User,
    Viewer,
    read_json,
    reply,
)
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.base.ids import is_name
from harch.hub.data import NewData
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.tags import DataKind
from harch.wire.data import AuthorityView, DataLineage, DataView, DataWhere
from harch.wire.pages import Page

router = APIRouter(tags=["data"])


class NewTag(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tag that an object shall have; `declassification` if that permits more than its current one."""

    tag: dict[str, object]
    declassification: Declassification | None = None


class AuthorityKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An Ed25519 public key, in hexadecimal."""

    public_key: Annotated[str, Meta(max_length=64)]


class DataRemovedReply(Struct, frozen=True, kw_only=True):
    success: bool = True
    id: str
    name: str


class AuthorityRemoved(Struct, frozen=True, kw_only=True):
    success: bool = True
    name: str


@router.post(
    "/data",
    responses=answers(DataView, "Registered.", 201),
    openapi_extra=accepts(NewData),
    summary="Registers a data object with its tag; durable once answered",
)
async def add_data(request: Request, caller: User, here: Here) -> Response:
    """Untagged data cannot be used. A contradictory tag is refused (E0904), with every mistake."""
    new = await read_json(request, here, NewData)
    return reply(await here.hub.data.add(new, tenant=caller.tenant, actor=caller.key_id), status=201)


@router.get("/data", responses=answers(Page[DataView]), summary="Lists data objects, newest first")
async def list_data(
    caller: Viewer,
    here: Here,
    kind: str | None = None,
    name: str | None = None,
    page: PageNumber = 1,
    per_page: PerPage = PER_PAGE,
) -> Response:
    found = here.hub.data.listed(tenant=tenant_scope(caller), kind=_kind(kind), name=name)
    return reply(cut(found, page=page, per_page=per_page))


@router.get("/data/{ref}", responses=answers(DataView), summary="Shows a data object, by id or name")
async def get_data(ref: str, caller: Viewer, here: Here) -> Response:
    return reply(here.hub.data.find(ref, tenant=tenant_scope(caller)))


@router.put(
    "/data/{ref}/tag",
    responses=answers(DataView),
    openapi_extra=accepts(NewTag),
    summary="Changes a tag: tightening is free, loosening needs a signed declassification",
)
async def put_tag(request: Request, ref: str, caller: User, here: Here) -> Response:
    """Work that the new tag forbids is paused, cancelled and scrubbed before this answers."""
    new = await read_json(request, here, NewTag)
    scope = tenant_scope(caller)
    return reply(await here.hub.data.retag(ref, new.tag, new.declassification, tenant=scope, actor=caller.key_id))


@router.delete("/data/{ref}", responses=answers(DataRemovedReply), summary="Forgets a data object and its files here")
async def delete_data(ref: str, caller: User, here: Here) -> Response:
    """E0304 while unfinished work reads it. What was derived from it stays."""
    removed = await here.hub.data.remove(ref, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(DataRemovedReply(id=removed.id, name=removed.name))


@router.get("/data/{ref}/lineage", responses=answers(DataLineage), summary="Its sources, and what was derived from it")
async def get_lineage(ref: str, caller: Viewer, here: Here) -> Response:
    return reply(here.hub.data.lineage(ref, tenant=tenant_scope(caller)))


@router.get(
    "/data/{ref}/where",
    responses=answers(DataWhere),
    summary="Where it is, who reads it, and what each hub may do with it, by every rule",
)
async def get_where(ref: str, caller: Viewer, here: Here) -> Response:
    return reply(here.hub.data.where(ref, tenant=tenant_scope(caller)))


@router.get("/authorities", responses=answers(Page[AuthorityView]), summary="Who may sign declassifications here")
async def list_authorities(_: Operator, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    return reply(cut(here.hub.data.authorities(), page=page, per_page=per_page))


@router.put(
    "/authorities/{name}",
    responses=answers(AuthorityView),
    openapi_extra=accepts(AuthorityKey),
    summary="Registers a key as an authority that may loosen tags at this hub",
)
async def put_authority(request: Request, name: str, caller: Admin, here: Here) -> Response:
    if not is_name(name):
        raise HarchError("E0201", "not a valid name", hint="use letters, digits, dots and dashes", field="name")
    given = await read_json(request, here, AuthorityKey)
    return reply(await here.hub.data.add_authority(name, given.public_key, actor=caller.key_id))


@router.delete("/authorities/{name}", responses=answers(AuthorityRemoved), summary="Removes an authority")
async def delete_authority(name: str, caller: Admin, here: Here) -> Response:
    await here.hub.data.remove_authority(name, actor=caller.key_id)
    return reply(AuthorityRemoved(name=name))


def _kind(word: str | None) -> DataKind | None:
    known = [kind.value for kind in DataKind]
    if word is not None and word not in known:
        raise HarchError(
            "E0201", f"`{word[:64]}` is not a kind of data", hint=f"use one of {', '.join(known)}", field="kind"
        )
    return DataKind(word) if word is not None else None
