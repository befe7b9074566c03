"""What do node agents ask about content? Only what work on their nodes reads and leaves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.access import identify, require_agent
from harch.api.routes.content.bodies import CHUNKS, GIVES_BYTES, NAMES, TAKES_BYTES, TREE, bytes_reply, tree_reply
from harch.api.routes.context import Here, RouteContext, context_of, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.http.messages import read_body, token_from
from harch.hub.views import Principal
from harch.wire.content import ChunksStored, TreeView
from harch.workloads.lifecycle import Workload

router = APIRouter(tags=["agents"])


class ImageNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image by its reference; `digest` of the tree that holds its layout, when a node registers it."""

    reference: Annotated[str, Meta(min_length=1, max_length=512)]
    digest: str = ""
    image_digest: Annotated[str, Meta(max_length=128)] = ""


async def _agent(request: Request) -> Principal:
    context: RouteContext = request.app.state.context
    return require_agent(identify(context.hub, token_from(request.scope["headers"])))


async def _workload(
    caller: Annotated[Principal, Depends(_agent)],
    here: Annotated[RouteContext, Depends(context_of)],
    workload: Annotated[str, Query(max_length=128)],
) -> Workload:
    return here.hub.content.workload_of_agent(caller, workload)


Work = Annotated[Workload, Depends(_workload)]


@router.post("/agents/content/trees", responses=TREE, summary="For agents: makes what a task reads readable")
async def agent_tree(work: Work, here: Here, data: Annotated[str, Query(max_length=256)]) -> Response:
    return tree_reply(await here.hub.content.tree_for(work, data))


@router.post(
    "/agents/content/fetch", responses=GIVES_BYTES, openapi_extra=TAKES_BYTES, summary="For agents: chunks of a tree"
)
async def agent_fetch(
    request: Request, work: Work, here: Here, ref: Annotated[str, Query(max_length=1024)]
) -> Response:
    names = await read_body(request.receive, NAMES)
    return bytes_reply(await here.hub.content.fetch_for(work, ref, names))


@router.post(
    "/agents/content/missing", responses=GIVES_BYTES, openapi_extra=TAKES_BYTES, summary="For agents: missing chunks"
)
async def agent_missing(request: Request, work: Work, here: Here) -> Response:
    names = await read_body(request.receive, NAMES)
    return bytes_reply(await here.hub.content.missing(names, tenant=work.tenant))


@router.post(
    "/agents/content/chunks",
    responses=answers(ChunksStored),
    openapi_extra=TAKES_BYTES,
    summary="For agents: stores chunks of what a task leaves",
)
async def agent_put(request: Request, work: Work, here: Here) -> Response:
    async with here.hub.content.upload_room:
        return reply(await here.hub.content.put(await read_body(request.receive, CHUNKS), tenant=work.tenant))


@router.post(
    "/agents/content/images",
    responses=answers(TreeView),
    openapi_extra=accepts(ImageNamed),
    summary="For agents: an image that another node has fetched",
)
async def agent_image(request: Request, work: Work, here: Here) -> Response:
    named = await read_json(request, here, ImageNamed)
    return reply(await here.hub.content.image(work, named.reference))


@router.put(
    "/agents/content/images",
    responses=answers(TreeView),
    openapi_extra=accepts(ImageNamed),
    summary="For agents: registers an image whose layout was uploaded",
)
async def agent_put_image(request: Request, work: Work, here: Here) -> Response:
    named = await read_json(request, here, ImageNamed)
    return reply(await here.hub.content.put_image(work, named.reference, named.digest))
