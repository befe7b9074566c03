"""What would applying this file do, all of it? The next record and what to tell about it; nothing is stored here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, structs

from harch.base.errors import HarchError
from harch.hub.pipelines import drafts, planning, records
from harch.hub.pipelines.files import digests, missing
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.shown import apply_view
from harch.hub.pipelines.source_keys import check_secrets
from harch.hub.pipelines.state_change import lost_state
from harch.hub.pipelines.values import PipelineRecord, Wish
from harch.hub.pipelines.views import ApplyView
from harch.hub.store.database import Database
from harch.pipelines.spec.release import released_exports
from harch.pipelines.spec.settings import PipelineSpec
from harch.sovereignty.audit.entry import Draft

Table = dict[str, dict[str, float]]


class Asked(Struct, frozen=True, kw_only=True):
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


class Prepared(Struct, frozen=True, kw_only=True):
    """`record` is None if nothing is to be stored: a dry run, or nothing new."""

    view: ApplyView
    draft: Draft
    record: PipelineRecord | None


async def prepare(
    spec: PipelineSpec,
    before: PipelineRecord | None,
    asked: Asked,
    loop: PipelineLoop,
    database: Database,
    country: str,
) -> Prepared:
    """Raises E0907, E0711, E0712, E0757, E0705, E0747, E0748, E0776, E0306; E0713 if a file of a model is not here."""
    ground, folder, named = loop.ground, loop.pipeline_folder(spec.name) / "files", planning.files_named(spec)
    if before is not None and before.wish is Wish.REMOVE:
        raise HarchError("E0711", f"`{spec.name}` is being removed", hint="apply it again when it is gone")
    running = loop.running.get(spec.name)
    drains = before is not None and before.wish is Wish.DRAIN and running is not None and not running.is_at_rest
    if before is not None and drains and lost_state(planning.spec_of(before), spec):
        hint = f"`harch pipeline drain {spec.name} -w` waits for it"
        raise HarchError("E0711", f"`{spec.name}` is still draining", hint=hint)
    known = (planning.spec_of(before), before.released) if before is not None else None
    released = released_exports(spec, ground.jurisdictions, asked.authorities, now=asked.now, before=known)
    secrets = loop.secrets_of(asked.tenant, planning.plain(spec))
    check_secrets(spec, secrets)
    planned = await asyncio.to_thread(
        planning.plan,
        spec,
        ground,
        before,
        released=released,
        drop_state=asked.drop_state,
        variables=secrets,
    )
    if (spec.exports or spec.imports) and not loop.borders.is_possible:
        raise HarchError(
            "E0748",
            f"`{spec.name}` has exports or imports, and this hub is in no federation",
            hint="`harch hub init` founds one, `harch hub join` enters one",
        )
    others = [one.planned.deployment for name, one in loop.running.items() if name != spec.name]
    loop.engine.check([*others, planned.deployment])
    absent = await asyncio.to_thread(missing, folder, named)
    absent = tuple(path for path in absent if not path.endswith(".py"))  # a module may be installed
    if before is None:
        version = 1 + await asyncio.to_thread(records.last_version, database, spec.name)
        after = planning.first_record(
            planned, ground, tenant=asked.tenant, version=version, at=asked.at, by=asked.actor
        )
    else:
        after = planning.updated(before, planned, ground, at=asked.at, by=asked.actor)
    loose = await asyncio.to_thread(digests, folder, [path for path, sha256 in named.items() if sha256 is None])
    after = structs.replace(_with_beside(after, asked.enrichment, loose), released=released)
    same = before is not None and before.wish is Wish.RUN and _content(before) == _content(after)
    result = "unchanged" if same else "created" if before is None else "updated"
    version = before.version if same and before is not None else after.version
    view = apply_view(
        planned, result=result, version=version, hub=ground.hub_id, dry_run=asked.dry_run, files_missing=absent
    )
    draft = drafts.applied(after, planned, result, country=country, by=asked.actor)
    if asked.dry_run or same:
        return Prepared(view=view, draft=draft, record=None)
    if absent:
        raise HarchError(
            "E0713",
            f"`{spec.name}` needs {', '.join(absent)}, which is not here or has another hash than the file says",
            hint="`harch pipeline apply` sends it from the folder of the pipeline file",
        )
    return Prepared(view=view, draft=draft, record=after)


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
