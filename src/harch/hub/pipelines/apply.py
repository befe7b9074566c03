"""What would applying this file do, all of it?

The next record and its audit drafts; also for another version of a model, or a version in another role. Nothing is
stored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from harch.base.errors import HarchError
from harch.hub.pipelines import audit, planning, records
from harch.hub.pipelines.files import digests, missing
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.pipeline_status import apply_view
from harch.hub.pipelines.planning import lost_state
from harch.hub.pipelines.sources import check_secrets
from harch.hub.pipelines.values import DesiredState, PipelineRecord
from harch.hub.store.database import Database
from harch.pipelines.spec.release import released_exports
from harch.pipelines.spec.settings import PipelineSpec
from harch.pipelines.think.settings import ModelRole, ModelSettings, VersionSettings
from harch.sovereignty.audit.chain import Draft
from harch.wire.pipelines import ApplyView

Table = dict[str, dict[str, float]]


class ApplyRequest(Struct, frozen=True, kw_only=True):
    """Who wants it, when, and with which table by device; without one, the stored table stays. `drop_state`: what SENSE
    has saved may be given up."""

    tenant: str
    actor: str
    at: str
    now: datetime
    dry_run: bool
    drop_state: bool = False
    authorities: Mapping[str, bytes] = {}  # who may sign that an export is looser than its data
    enrichment: Table | None = None


class PreparedApply(Struct, frozen=True, kw_only=True):
    """`record` is None if nothing is to be stored: a dry run, or nothing new."""

    view: ApplyView
    draft: Draft
    record: PipelineRecord | None


async def prepare(
    spec: PipelineSpec,
    before: PipelineRecord | None,
    request: ApplyRequest,
    loop: PipelineLoop,
    database: Database,
    country: str,
) -> PreparedApply:
    """Raises E0907, E0711, E0712, E0757, E0705, E0747, E0748, E0776, E0306; E0713 if a file of a model is not here."""
    ground, folder, named = loop.ground, loop.pipeline_folder(spec.name) / "files", planning.files_named(spec)
    if before is not None and before.desired is DesiredState.REMOVE:
        raise HarchError("E0711", f"`{spec.name}` is being removed", hint="apply it again once it is removed")
    running = loop.running.get(spec.name)
    drains = (
        before is not None and before.desired is DesiredState.DRAIN and running is not None and not running.is_at_rest
    )
    if before is not None and drains and lost_state(planning.spec_of(before), spec):
        hint = f"`harch pipeline drain {spec.name} --wait` waits for it"
        raise HarchError("E0711", f"`{spec.name}` is still draining", hint=hint)
    known = (planning.spec_of(before), before.released) if before is not None else None
    released = released_exports(spec, ground.jurisdictions, request.authorities, now=request.now, before=known)
    secrets = loop.secrets_of(request.tenant, planning.plain(spec))
    check_secrets(spec, secrets)
    planned = await asyncio.to_thread(
        planning.plan,
        spec,
        ground,
        before,
        released=released,
        drop_state=request.drop_state,
        variables=secrets,
    )
    if (spec.exports or spec.imports) and not loop.borders.is_possible:
        raise HarchError(
            "E0748",
            f"`{spec.name}` has exports or imports, but this hub is not in a federation",
            hint="create one with `harch hub init`, or join one with `harch hub join`",
        )
    others = [one.planned.deployment for name, one in loop.running.items() if name != spec.name]
    loop.engine.check([*others, planned.deployment])
    absent = await asyncio.to_thread(missing, folder, named)
    absent = tuple(path for path in absent if not path.endswith(".py"))  # a module may be installed
    if before is None:
        version = 1 + await asyncio.to_thread(records.last_version, database, spec.name)
        after = planning.first_record(
            planned, ground, tenant=request.tenant, version=version, at=request.at, by=request.actor
        )
    else:
        after = planning.updated(before, planned, ground, at=request.at, by=request.actor)
    loose = await asyncio.to_thread(digests, folder, [path for path, sha256 in named.items() if sha256 is None])
    after = structs.replace(_with_beside(after, request.enrichment, loose), released=released)
    same = before is not None and before.desired is DesiredState.RUN and _content(before) == _content(after)
    result = "unchanged" if same else "created" if before is None else "updated"
    version = before.version if same and before is not None else after.version
    view = apply_view(
        planned, result=result, version=version, hub=ground.hub_id, dry_run=request.dry_run, files_missing=absent
    )
    draft = audit.applied(after, planned, result, country=country, by=request.actor)
    if request.dry_run or same:
        return PreparedApply(view=view, draft=draft, record=None)
    if absent:
        raise HarchError(
            "E0713",
            f"`{spec.name}` needs {', '.join(absent)}, which is missing or has a different hash than declared",
            hint="`harch pipeline apply` uploads it from the folder of the pipeline file",
        )
    return PreparedApply(view=view, draft=draft, record=after)


def _with_beside(record: PipelineRecord, table: Table | None, loose: dict[str, str]) -> PipelineRecord:
    """What belongs to a pipeline beside its file: a new table is for new SENSE workers, new code for new THINK ones."""
    generations = dict(record.generations)
    if table is not None and table != record.enrichment:
        generations["sense"] = record.version
        record = structs.replace(record, enrichment=table)
    if loose != record.loose_files:
        if any(record.loose_files.get(path, sha256) != sha256 for path, sha256 in loose.items()):
            generations["think"] = record.version
        record = structs.replace(record, loose_files=loose)
    return structs.replace(record, generations=generations)


def _content(record: PipelineRecord) -> tuple[object, ...]:
    return (record.spec, record.fixed, record.enrichment, record.loose_files)


# What does a pipeline look like with another version of a model, or with a version in another role? Pure.


def with_version(spec: PipelineSpec, model: str, wanted: Mapping[str, object]) -> PipelineSpec:
    """`wanted` holds `version`, `role`, and for a new version its file. Raises E0201.

    A version that becomes active makes the one before it `loaded`, so that going back is one step; a version with the
    role `retired` leaves the specification."""
    if spec.think is None:
        raise HarchError("E0201", f"`{spec.name}` has no models", hint="add `think` to its file")
    models = {one.name: one for one in spec.think.models}
    if model not in models:
        raise HarchError("E0201", f"`{spec.name}` has no model `{model}`", hint=f"it has {', '.join(models)}")
    models[model] = _changed(models[model], dict(wanted))
    return structs.replace(spec, think=structs.replace(spec.think, models=tuple(models.values())))


def _changed(model: ModelSettings, wanted: dict[str, object]) -> ModelSettings:
    name = str(wanted.get("version", ""))
    known = {one.version: one for one in model.versions}
    before = known.get(name)
    if wanted.get("role") == "retired":
        if before is None or before.role is ModelRole.ACTIVE:
            words = "is active" if before else "does not exist"
            raise HarchError("E0201", f"{model.name}@{name} {words}", hint="make another version active first")
        return structs.replace(model, versions=tuple(one for one in model.versions if one.version != name))
    merged = {**(msgspec.to_builtins(before) if before else {}), **wanted}
    try:
        after = msgspec.convert({key: value for key, value in merged.items() if value is not None}, VersionSettings)
    except msgspec.ValidationError as error:
        raise HarchError("E0201", f"{model.name}@{name}: {error}", hint="give version, role and a file") from error
    if before is not None and before.role is ModelRole.ACTIVE and after.role is not ModelRole.ACTIVE:
        raise HarchError("E0201", f"{model.name}@{name} is active", hint="make another version active first")
    if before is None and after.path is None and after.callable is None:
        raise HarchError("E0201", f"{model.name}@{name} is new and has no file", hint="add `--file model.onnx`")
    others = [
        structs.replace(one, role=ModelRole.LOADED)
        if after.role is ModelRole.ACTIVE and one.role is ModelRole.ACTIVE
        else one
        for one in model.versions
        if one.version != name
    ]
    return structs.replace(model, versions=(*others, after))
