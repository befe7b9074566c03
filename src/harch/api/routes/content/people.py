"""How do people's programs store and read content? Chunks, trees, files of work, artifacts.

Chunks and their names travel as they are (`application/octet-stream`), everything else as JSON.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Struct
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.pages import cut
from harch.api.routes.content.bodies import CHUNKS, GIVES_BYTES, NAMES, TAKES_BYTES, TREE, bytes_reply, tree_reply
from harch.api.routes.context import (
    PER_PAGE,
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
from harch.base.http.messages import read_body
from harch.sovereignty.tags import DataKind
from harch.wire.content import (
    ArtifactView,
    ChunksStored,
    Collected,
    ContentCheck,
    ContentStatus,
    FilesPlaced,
    FilesRequest,
    TreeView,
)
from harch.wire.data import DataView
from harch.wire.pages import Page

router = APIRouter(tags=["content"])

GraceS = Annotated[float | None, Query(ge=0, le=366 * 86400, description="Of chunks that are part of nothing.")]


class FilesArePlaced(Struct, frozen=True, kw_only=True):
    success: bool = True


# Chunks and trees


@router.post(
    "/content/missing",
    responses=GIVES_BYTES,
    openapi_extra=TAKES_BYTES,
    summary="Which of these chunks are not here? Names in, 32 bytes each, and names out",
)
async def missing(request: Request, caller: User, here: Here) -> Response:
    """What is here stays for at least an hour, so that a tree can be made of it."""
    names = await read_body(request.receive, NAMES)
    return bytes_reply(await here.hub.content.missing(names, tenant=caller.tenant))


@router.post(
    "/content/chunks",
    responses=answers(ChunksStored),
    openapi_extra=TAKES_BYTES,
    summary="Stores chunks, as frames; durable once answered",
)
async def put_chunks(request: Request, caller: User, here: Here) -> Response:
    """Each is compared with its name, a BLAKE3 hash, before any is stored."""
    async with here.hub.content.upload_room:
        return reply(await here.hub.content.put(await read_body(request.receive, CHUNKS), tenant=caller.tenant))


@router.post("/content/trees/{ref}", responses=TREE, summary="Makes the files of a data object or snapshot readable")
async def tree(ref: str, caller: Viewer, here: Here) -> Response:
    """If another hub has them, they are fetched from there, as far as their tag permits."""
    return tree_reply(await here.hub.content.tree(ref, tenant=tenant_scope(caller)))


@router.post(
    "/content/fetch",
    responses=GIVES_BYTES,
    openapi_extra=TAKES_BYTES,
    summary="Chunks of a tree: names in, frames out",
)
async def fetch(request: Request, ref: Annotated[str, Query(max_length=256)], caller: Viewer, here: Here) -> Response:
    names = await read_body(request.receive, NAMES)
    return bytes_reply(await here.hub.content.fetch(ref, names, tenant=tenant_scope(caller)))


@router.get("/content", responses=answers(ContentStatus), summary="What is kept here, and what is on its way")
async def status(caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.content.status(tenant=tenant_scope(caller)))


@router.post("/content/collect", responses=answers(Collected), summary="Removes chunks that are part of nothing")
async def collect(_: Operator, here: Here, grace_s: GraceS = None) -> Response:
    return reply(await here.hub.content.collect(grace_s=grace_s))


@router.post("/content/check", responses=answers(ContentCheck), summary="Reads and verifies every chunk")
async def check(_: Operator, here: Here) -> Response:
    return reply(await here.hub.content.check())


# Files and results of work


@router.post(
    "/workloads/{ref}/files",
    responses=answers(TreeView),
    openapi_extra=accepts(FilesRequest),
    summary="A snapshot of files in the working folder of a task",
)
async def snapshot(request: Request, ref: str, caller: User, here: Here) -> Response:
    body = await read_json(request, here, FilesRequest)
    workload = await here.hub.workload(ref, tenant=tenant_scope(caller))
    return reply(await here.hub.content.snapshot(workload, body))


@router.put(
    "/workloads/{ref}/files",
    responses=answers(FilesArePlaced),
    openapi_extra=accepts(FilesPlaced),
    summary="Puts files that were uploaded into the working folder of a task that runs",
)
async def place(request: Request, ref: str, caller: User, here: Here) -> Response:
    body = await read_json(request, here, FilesPlaced)
    workload = await here.hub.workload(ref, tenant=tenant_scope(caller))
    await here.hub.content.place(workload, body)
    return reply(FilesArePlaced())


@router.get("/artifacts", responses=answers(Page[ArtifactView]), summary="Kept results of work, newest first")
async def artifacts(
    caller: Viewer, here: Here, workload: str | None = None, page: PageNumber = 1, per_page: PerPage = PER_PAGE
) -> Response:
    scope = tenant_scope(caller)
    made_by = (await here.hub.workload(workload, tenant=scope)).id if workload is not None else None
    found = [
        _artifact(data)
        for data in here.hub.data.listed(tenant=scope, kind=DataKind.ARTIFACT, name=None)
        if made_by in (None, data.made_by)
    ]
    return reply(cut(found, page=page, per_page=per_page))


def _artifact(data: DataView) -> ArtifactView:
    return ArtifactView(
        id=data.id,
        name=data.name,
        workload_id=data.made_by,
        digest=data.content,
        size_bytes=data.size_bytes,
        hubs=data.hubs,
        created_at=data.created_at,
        expires_at=data.expires_at,
        parents=data.parents,
    )
