"""What goes into a pipeline through its hub, and what comes out? Files of models, events, replays, results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.routes.context import Here, Operator, User, Viewer, read_json, reply
from harch.api.routes.pipelines import Done
from harch.api.schema import accepts, answers
from harch.base.http.messages import read_body
from harch.base.integers import INT64_MAX
from harch.hub.pipelines.views import FileView, ReplayRequest
from harch.wire.pipelines import ReplayRun, ResultsView

router = APIRouter(tags=["pipelines"])


class NewEventReplay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kept events from `since` to `until` (event time), or the rows of a `file` that was sent before, in the form of
    `source`. A dry run tells nobody; `again` lets commands that were done before be done once more."""

    since: datetime | None = None
    until: datetime | None = None
    file: Annotated[str, Meta(max_length=512)] = ""
    source: Annotated[str, Meta(max_length=64)] = ""
    dry_run: bool = True
    again: bool = False
    events_per_s: Annotated[float, Meta(gt=0, le=1e8)] = 50_000.0


@router.put(
    "/pipelines/{name}/files",
    responses={**answers(FileView, "The file is whole."), **answers(Done, "More is to come.", 202)},
    summary="Uploads one piece of a model file",
)
async def put_file(
    request: Request,
    name: str,
    caller: Operator,
    here: Here,
    path: Annotated[str, Query(max_length=512, description="As the pipeline file names it.")],
    offset: Annotated[int, Query(ge=0, le=INT64_MAX)],
    total: Annotated[int, Query(ge=0, le=INT64_MAX, description="Bytes of the whole file.")],
    sha256: Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="Of the whole file.")],
) -> Response:
    """Pieces come in order, each at most as large as a body may be. The last one returns the file."""
    data = await read_body(request.receive, here.limits)
    found = await here.hub.pipelines.data.put_file(
        name, path, data, offset=offset, total=total, sha256=sha256, tenant=caller.tenant
    )
    return reply(found if found is not None else Done(), status=200 if found is not None else 202)


@router.post("/pipelines/{name}/events", summary="Sends events to an HTTP source of the pipeline")
async def take_events(
    request: Request,
    name: str,
    caller: User,
    here: Here,
    source: Annotated[str, Query(max_length=64, description="Source (default: the only one).")] = "",
) -> Response:
    """The body is what the source takes: JSON rows or NDJSON. Large streams go to the source itself."""
    body = await read_body(request.receive, here.limits)
    kind = request.headers.get("content-type", "application/json")
    accepted = await here.hub.pipelines.data.take_events(name, source, body, kind, tenant=tenant_scope(caller))
    return Response(accepted, status_code=202, media_type="application/json")


@router.post(
    "/pipelines/{name}/replays",
    responses=answers(ReplayRun, "It runs.", 202),
    openapi_extra=accepts(NewEventReplay),
    summary="Starts a replay of kept events or of a file",
)
async def begin_replay(request: Request, name: str, caller: Operator, here: Here) -> Response:
    """Through SENSE and THINK of its own, then to ACT. Without `dry_run: false` nothing is sent."""
    new = await read_json(request, here, NewEventReplay)
    replay_request = ReplayRequest(
        since=new.since,
        until=new.until,
        file=new.file,
        source=new.source,
        is_dry=new.dry_run,
        again=new.again,
        events_per_s=new.events_per_s,
    )
    found = await here.hub.pipelines.data.replay(name, replay_request, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(found, status=202)


@router.get("/pipelines/{name}/replays/{run}", responses=answers(ReplayRun), summary="Progress of a replay")
async def look_at_replay(name: str, run: str, caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.pipelines.data.look_at_replay(name, run, tenant=tenant_scope(caller)))


@router.delete("/pipelines/{name}/replays/{run}", responses=answers(ReplayRun), summary="Stops a replay")
async def stop_replay(name: str, run: str, caller: Operator, here: Here) -> Response:
    return reply(await here.hub.pipelines.data.stop_replay(name, run, tenant=tenant_scope(caller)))


@router.get(
    "/pipelines/{name}/results", responses=answers(ResultsView), summary="Output of the last stage, unless it is ACT"
)
async def read_results(
    name: str,
    caller: Viewer,
    here: Here,
    after: Annotated[
        int, Query(ge=-200, le=INT64_MAX, description="Sequence number; negative: counted from the end.")
    ] = -20,
) -> Response:
    """Rows in the order in which windows closed. `next_after` is the next position. The oldest rows are dropped."""
    return reply(await here.hub.pipelines.data.results(name, after=after, tenant=tenant_scope(caller)))
