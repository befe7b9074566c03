"""Which streams become actions here? Pipelines: apply, see, scale, change, remove, and what waits for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import PlainTextResponse, Response

from harch.api.access import tenant_scope
from harch.api.limits import LOG_BYTES_PER_PAGE
from harch.api.routes.context import Here, Offset, Operator, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.integers import Int64, Natural64
from harch.wire.pipelines import (
    ActionList,
    ApplyView,
    PipelineDetails,
    PipelineList,
    PipelineView,
    ReplayView,
    SourceKeyView,
)

router = APIRouter(tags=["pipelines"])


class NewPipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline file as text, `source` for messages about it, and the table that SENSE joins by device. `drop_state`:
    where what SENSE has saved cannot be carried over, it is given up."""

    file: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(max_length=256)] = "pipeline.yaml"
    dry_run: bool = False
    drop_state: bool = False
    enrichment: dict[str, dict[str, float]] | None = None


class NewScale(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of workers by stage; null gives a stage back to its load."""

    workers: Annotated[dict[str, Int64 | None], Meta(min_length=1, max_length=8)]


class NewVersion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version of a model. A new one names its file; a known one gets another role."""

    version: Annotated[str, Meta(min_length=1, max_length=32)]
    role: Annotated[str, Meta(description="loaded, shadow, canary, active or retired.")]
    path: str | None = None
    callable: str | None = None
    runtime: str | None = None
    sha256: str | None = None
    dry_run: bool = False


class Approval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`digest` as the list of waiting actions shows it: exactly this command is approved."""

    digest: Annotated[str, Meta(min_length=1, max_length=128)]


class Rejected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=500)] = ""


class NewHalt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reason` is shown with the pipeline and stands in the audit chain."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class LetterReplay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`not_carried_out`: somebody looked at the device and says so; needed where an action may have been sent."""

    not_carried_out: bool = False


class NewReplay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From a number of the dead lanes, or from a time; all of it if neither is given."""

    from_seq: Natural64 = 0
    since: datetime | None = None
    dry_run: bool = False


class Done(Struct, frozen=True, kw_only=True):
    success: bool = True


@router.post(
    "/pipelines",
    responses=answers(ApplyView),
    openapi_extra=accepts(NewPipeline),
    summary="Creates or updates a pipeline; every edge is proved before anything is deployed",
)
async def apply_pipeline(request: Request, caller: Operator, here: Here) -> Response:
    """The same file again changes nothing. `dry_run` answers the plan and the proof. Its workers run as processes of
    the hub's user with its network, so this needs the role `operator`."""
    new = await read_json(request, here, NewPipeline)
    done = await here.hub.pipelines.apply(
        new.file.encode(),
        new.source,
        tenant=caller.tenant,
        actor=caller.key_id,
        dry_run=new.dry_run,
        drop_state=new.drop_state,
        enrichment=new.enrichment,
    )
    return reply(done, status=201 if done.result == "created" and not done.dry_run else 200)


@router.get("/pipelines", responses=answers(PipelineList), summary="Lists pipelines, with the state of their stages")
async def list_pipelines(caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.pipelines.listed(tenant=tenant_scope(caller)))


@router.get("/pipelines/{name}", responses=answers(PipelineDetails), summary="Shows a pipeline, its workers and file")
async def get_pipeline(name: str, caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.pipelines.show(name, tenant=tenant_scope(caller)))


@router.delete("/pipelines/{name}", responses=answers(PipelineView), summary="Removes a pipeline with its streams")
async def delete_pipeline(name: str, caller: Operator, here: Here) -> Response:
    """Its workers stop first; the answer comes at once, with the state `removing`."""
    return reply(await here.hub.pipelines.remove(name, tenant=tenant_scope(caller), actor=caller.key_id), status=202)


@router.post(
    "/pipelines/{name}/scale",
    responses=answers(PipelineView),
    openapi_extra=accepts(NewScale),
    summary="Sets the number of workers of stages",
)
async def scale_pipeline(request: Request, name: str, caller: Operator, here: Here) -> Response:
    new = await read_json(request, here, NewScale)
    pipelines = here.hub.pipelines
    return reply(await pipelines.scale(name, new.workers, tenant=tenant_scope(caller), actor=caller.key_id))


@router.get("/pipelines/{name}/key", responses=answers(SourceKeyView), summary="Shows the key for senders of a source")
async def get_source_key(
    name: str,
    caller: Operator,
    here: Here,
    source: Annotated[str, Query(max_length=64, description="Source (default: the only one that listens).")] = "",
) -> Response:
    """The caller is in the audit chain; the key is not."""
    tenant, actor = tenant_scope(caller), caller.key_id
    return reply(await here.hub.pipelines.source_key(name, source, tenant=tenant, actor=actor))


@router.post("/pipelines/{name}/key", responses=answers(SourceKeyView), summary="Issues a new key for a source")
async def renew_source_key(
    name: str,
    caller: Operator,
    here: Here,
    source: Annotated[str, Query(max_length=64, description="Source (default: the only one that listens).")] = "",
) -> Response:
    """The source's worker is replaced; from then on the old key is refused."""
    tenant, actor = tenant_scope(caller), caller.key_id
    return reply(await here.hub.pipelines.source_key(name, source, tenant=tenant, actor=actor, renew=True))


@router.post(
    "/pipelines/{name}/halt",
    responses=answers(PipelineView),
    openapi_extra=accepts(NewHalt),
    summary="Emergency stop: no action is sent until the pipeline is resumed",
)
async def halt_pipeline(request: Request, name: str, caller: Operator, here: Here) -> Response:
    """Events are still taken and scored; commands are refused. Survives restarts of workers, engine and hub. An error
    says that the halt is stored and workers could not be reached yet; the hub goes on trying."""
    new = await read_json(request, here, NewHalt)
    done = await here.hub.pipelines.halt(name, new.reason, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(done)


@router.delete(
    "/pipelines/{name}/halt", responses=answers(PipelineView), summary="Ends an emergency stop; actions are sent again"
)
async def resume_pipeline(name: str, caller: Operator, here: Here) -> Response:
    """What was refused meanwhile stays refused."""
    return reply(await here.hub.pipelines.resume(name, tenant=tenant_scope(caller), actor=caller.key_id))


@router.post("/pipelines/{name}/drain", responses=answers(PipelineView), summary="Drains a pipeline")
async def drain_pipeline(name: str, caller: Operator, here: Here) -> Response:
    """Sources stop first, then each stage when it has nothing left. Applying its file starts it again."""
    return reply(await here.hub.pipelines.drain(name, tenant=tenant_scope(caller), actor=caller.key_id), status=202)


@router.post(
    "/pipelines/{name}/models/{model}",
    responses=answers(ApplyView),
    openapi_extra=accepts(NewVersion),
    summary="Adds a model version, or changes the role of one, without losing an event",
)
async def set_version(request: Request, name: str, model: str, caller: Operator, here: Here) -> Response:
    new = await read_json(request, here, NewVersion)
    fields = ("version", "role", "path", "callable", "runtime", "sha256")
    version: dict[str, object] = {key: value for key in fields if (value := getattr(new, key)) is not None}
    done = await here.hub.pipelines.set_version(
        name, model, version, tenant=tenant_scope(caller), actor=caller.key_id, dry_run=new.dry_run
    )
    return reply(done)


@router.get("/pipelines/{name}/logs", response_class=PlainTextResponse, summary="The log of one worker")
async def worker_log(
    name: str,
    caller: Viewer,
    here: Here,
    worker: Annotated[str, Query(max_length=64, description="E.g. think-0; GET /v1/pipelines/NAME lists them.")],
    offset: Offset = 0,
) -> Response:
    """`X-Log-Next-Offset` is the next offset."""
    page = await here.hub.pipelines.data.read_log(
        name, worker, tenant=tenant_scope(caller), offset=offset, bytes_max=LOG_BYTES_PER_PAGE
    )
    headers = {"x-log-offset": str(page.offset), "x-log-next-offset": str(page.next_offset)}
    return Response(page.data, headers=headers, media_type="text/plain; charset=utf-8")


@router.get("/pipelines/{name}/approvals", responses=answers(ActionList), summary="Actions that await approval")
async def list_approvals(name: str, caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.pipelines.actions.waiting(name, tenant=tenant_scope(caller)))


@router.post(
    "/pipelines/{name}/approvals/{cmd_id}/approve",
    responses=answers(Done),
    openapi_extra=accepts(Approval),
    summary="Approves exactly one command",
)
async def approve(request: Request, name: str, cmd_id: str, caller: Operator, here: Here) -> Response:
    """Deadline and interlocks are checked again afterwards."""
    digest = (await read_json(request, here, Approval)).digest
    await here.hub.pipelines.actions.approve(name, cmd_id, digest, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(Done())


@router.post(
    "/pipelines/{name}/approvals/{cmd_id}/reject",
    responses=answers(Done),
    openapi_extra=accepts(Rejected),
    summary="Rejects a command; it never fires",
)
async def reject(request: Request, name: str, cmd_id: str, caller: Operator, here: Here) -> Response:
    reason = (await read_json(request, here, Rejected)).reason
    await here.hub.pipelines.actions.reject(name, cmd_id, reason, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(Done())


@router.get("/pipelines/{name}/dead", responses=answers(ActionList), summary="Actions that were given up")
async def list_dead(name: str, caller: Viewer, here: Here) -> Response:
    return reply(await here.hub.pipelines.actions.letters(name, tenant=tenant_scope(caller)))


@router.post(
    "/pipelines/{name}/dead/{cmd_id}/replay",
    responses=answers(Done),
    openapi_extra=accepts(LetterReplay),
    summary="Retries a dead action; its deadline and interlocks are checked as if it were new",
)
async def replay_dead(request: Request, name: str, cmd_id: str, caller: Operator, here: Here) -> Response:
    not_executed = (await read_json(request, here, LetterReplay)).not_carried_out
    actions = here.hub.pipelines.actions
    tenant, actor = tenant_scope(caller), caller.key_id
    await actions.replay_letter(name, cmd_id, not_carried_out=not_executed, tenant=tenant, actor=actor)
    return reply(Done())


@router.delete("/pipelines/{name}/dead/{cmd_id}", responses=answers(Done), summary="Drops a dead action")
async def drop_dead(name: str, cmd_id: str, caller: Operator, here: Here) -> Response:
    await here.hub.pipelines.actions.drop_letter(name, cmd_id, tenant=tenant_scope(caller), actor=caller.key_id)
    return reply(Done())


@router.post(
    "/pipelines/{name}/replay",
    responses=answers(ReplayView),
    openapi_extra=accepts(NewReplay),
    summary="Replays dead-letter messages through the pipeline",
)
async def replay(request: Request, name: str, caller: Operator, here: Here) -> Response:
    new = await read_json(request, here, NewReplay)
    done = await here.hub.pipelines.actions.replay(
        name,
        from_seq=new.from_seq,
        since=new.since,
        dry_run=new.dry_run,
        tenant=tenant_scope(caller),
        actor=caller.key_id,
    )
    return reply(done)
