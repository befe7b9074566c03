"""What can be asked of a hub about pipelines? Apply, see, scale, halt, drain, remove; promised is what is on disk.

Nothing of the engine or of the stages is imported before the first pipeline is asked for, or engine.toml is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harch.base.clock import Clock, iso
from harch.base.errors import HarchError
from harch.fleet.model import Fleet, Hub
from harch.hub.pipelines import records
from harch.hub.pipelines.context import HubContext
from harch.hub.pipelines.files import LOGS
from harch.hub.pipelines.packages import engine_settings, loop_maker
from harch.hub.pipelines.values import DesiredState, PipelineRecord
from harch.hub.pipelines.views import InferenceStats
from harch.hub.policy.service import Note, Write
from harch.hub.store.database import Database
from harch.sovereignty.audit.chain import Draft
from harch.wire.pipelines import ApplyView, PipelineDetails, PipelineList, PipelineView, SourceKeyView, VersionView

if TYPE_CHECKING:
    from harch.hub.pipelines.actions import PipelineActions
    from harch.hub.pipelines.data import PipelineData
    from harch.hub.pipelines.loop import PipelineLoop
    from harch.hub.pipelines.pipeline import RunningPipeline
    from harch.hub.pipelines.promotion import Promotion
    from harch.pipelines.spec.settings import PipelineSpec
    from harch.pipelines.workers.telemetry import WorkerStatus

PIPELINES_MAX = 100
BY_RULE = "rule:promote"


class HubPipelines:
    """Behind the API. `tenant` None means all tenants."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        folder: Path,
        clock: Clock,
        database: Database,
        write: Write,
        note: Note,
        open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
        around: HubContext | None = None,
    ) -> None:
        self._fleet, self._hub, self._folder, self._clock = fleet, hub, folder / "pipelines", clock
        self._database, self._write, self._note, self._open_secrets = database, write, note, open_secrets
        self._around = around or HubContext()
        self._stored = {record.name: record for record in records.all_records(database)}
        self._loop: PipelineLoop | None = None
        self._actions: PipelineActions | None = None
        self._data: PipelineData | None = None
        self._opened = asyncio.Event()
        self._changing = asyncio.Lock()
        self._settings = engine_settings(folder)
        self._outside = self._settings is not None and self._settings.external is not None
        if self._stored or self._outside:
            self._opened.set()

    async def run(self) -> None:
        """Until cancelled. Without pipelines it only waits."""
        await self._opened.wait()
        with contextlib.suppress(HarchError):  # E0740, which is in the log: the hub itself works without pipelines
            await self._open().run()

    async def close(self) -> None:
        if self._data is not None:
            await self._data.close()
        if self._actions is not None:
            await self._actions.close()
        if self._loop is not None:
            await self._loop.stop()

    def signals(self) -> dict[str, bytes]:
        """What other hubs hear of the pipelines here: what of them may cross borders."""
        return self._loop.borders.signals() if self._loop is not None else {}

    # Seen

    async def listed(self, *, tenant: str | None) -> PipelineList:
        items = [await self._view(record) for record in self._stored.values() if tenant in (None, record.tenant)]
        return PipelineList(items=tuple(sorted(items, key=lambda one: one.name)), total=len(items))

    async def show(self, name: str, *, tenant: str | None) -> PipelineDetails:
        from harch.hub.pipelines.pipeline_status import streams_of, worker_views

        record, running = self._find(name, tenant), self._open().running.get(name)
        rows = await asyncio.to_thread(records.versions, self._database, name)
        return PipelineDetails(
            pipeline=await self._view(record),
            workers=() if running is None else worker_views(running),
            spec=record.spec,
            versions=tuple(
                VersionView(version=row.version, applied_at=row.applied_at, applied_by=row.applied_by) for row in rows
            ),
            streams={} if running is None else streams_of(running.planned.deployment),
            borders=() if running is None else self._open().borders.views(running),
        )

    async def _view(self, record: PipelineRecord) -> PipelineView:
        from harch.hub.pipelines.pipeline_status import pipeline_view

        loop = self._open()
        running = loop.running.get(record.name)
        return pipeline_view(
            record,
            running,
            hub=self._hub.id,
            country=self._hub.country,
            now=self._clock.now(),
            waiting=await running.waiting() if running is not None else None,
            trouble=loop.troubles.get(record.name, "") or loop.troubles.get("", ""),
        )

    def inference_metrics(self) -> dict[tuple[str, str, str], dict[str, float]]:
        """For metrics, by pipeline, stage and tenant, as of the last round."""
        if self._loop is None:
            return {}
        from harch.hub.pipelines.pipeline_status import metrics_of

        return {key: found for running in self._loop.running.values() for key, found in metrics_of(running).items()}

    def worker_counts(self) -> dict[tuple[str, str, str, str], dict[str, int]]:
        """For metrics, by pipeline, stage, tenant and worker, as of the last round."""
        if self._loop is None:
            return {}
        from harch.hub.pipelines.pipeline_status import worker_counts_of

        running = self._loop.running.values()
        return {key: found for one in running for key, found in worker_counts_of(one).items()}

    def statuses(self) -> dict[str, tuple[WorkerStatus, ...]]:
        """What the workers of each pipeline last said."""
        return {} if self._loop is None else {name: tuple(one.statuses) for name, one in self._loop.running.items()}

    def worker_logs(self) -> list[tuple[str, str, Path]]:
        """Pipeline, tenant and file of everything that workers here print. Threads may ask."""
        found = []
        for record in tuple(self._stored.values()):
            folder = self._folder / "pipelines" / record.name / LOGS
            found += [(record.name, record.tenant, path) for path in sorted(folder.glob("*.log"))]
        return found

    def inference(self) -> list[InferenceStats]:
        """What models do, for the public dashboards."""
        if self._loop is None:
            return []
        from harch.hub.pipelines.pipeline_status import inference_of

        running = self._loop.running.values()
        found = (inference_of(one.record.name, one.statuses) for one in running)
        return [metrics for metrics in found if metrics is not None]

    # Changed

    async def apply(
        self,
        text: bytes,
        source: str,
        *,
        tenant: str,
        actor: str,
        dry_run: bool = False,
        drop_state: bool = False,
        enrichment: dict[str, dict[str, float]] | None = None,
    ) -> ApplyView:
        """Creates or updates; the same file again changes nothing. Raises E0250, E0312, E0705, E0711-E0713, E0907."""
        ground = self._open().ground
        from harch.hub.pipelines import planning

        spec = await asyncio.to_thread(planning.read_one, text, source, ground)
        async with self._changing:
            before = self._mine(spec.name, tenant)
            if before is None and len(self._stored) >= PIPELINES_MAX:
                raise HarchError("E0401", f"this hub has {PIPELINES_MAX} pipelines", hint="remove one first")
            more = {"drop_state": drop_state, "enrichment": enrichment}
            return await self._deploy(spec, before, tenant, actor, dry_run=dry_run, **more)

    async def set_version(
        self, name: str, model: str, version: dict[str, object], *, tenant: str | None, actor: str, dry_run: bool
    ) -> ApplyView:
        """Adds a version of a model or gives one another role: loaded, shadow, canary, active. Nothing restarts."""
        from harch.hub.pipelines import planning
        from harch.hub.pipelines.apply import with_version

        async with self._changing:
            record = self._find(name, tenant)
            spec = with_version(planning.spec_of(record), model, version)
            return await self._deploy(spec, record, record.tenant, actor, dry_run=dry_run)

    async def _promoted(self, name: str, what: Promotion) -> None:
        """A rule of the file gives a version another role, as a person would."""
        wanted: dict[str, object] = {"version": what.version, "role": what.role}
        await self.set_version(name, what.model, wanted, tenant=None, actor=BY_RULE, dry_run=False)
        self._note("pipeline.promoted", name, f"{what.model}@{what.version} is {what.role}: {what.reason}")

    async def _deploy(
        self, spec: PipelineSpec, before: PipelineRecord | None, tenant: str, actor: str, *, dry_run: bool, **more: Any
    ) -> ApplyView:
        from harch.hub.pipelines import audit
        from harch.hub.pipelines.apply import ApplyRequest, prepare

        now, country, known = self._clock.now(), self._hub.country, self._around.authorities()
        request = ApplyRequest(
            tenant=tenant, actor=actor, at=iso(now), now=now, dry_run=dry_run, authorities=known, **more
        )
        try:
            if (refusal := await self._open().sandbox_refusal()) is not None:
                raise refusal
            done = await prepare(spec, before, request, self._open(), self._database, country)
        except HarchError as error:
            await self._write([], [audit.refused(spec.name, error, country=country, tenant=tenant, by=actor)])
            raise
        if done.record is not None:
            await self._keep(done.record, done.draft, new=True)
            self._note(f"pipeline.{done.view.result}", spec.name, f"version {done.record.version} by {actor}")
        return done.view

    async def scale(self, name: str, counts: dict[str, int | None], *, tenant: str | None, actor: str) -> PipelineView:
        """Numbers of workers by stage; None gives a stage back to its load. Raises E0201."""
        from harch.hub.pipelines import audit, planning

        async with self._changing:
            record = self._find(name, tenant)
            after = structs.replace(record, fixed=planning.with_counts(record, counts))
            await self._keep(after, audit.scaled(after, country=self._hub.country, by=actor))
        self._note("pipeline.scaled", name, ", ".join(f"{k}={v or 'auto'}" for k, v in counts.items()) + f" by {actor}")
        return await self._view(after)

    async def halt(self, name: str, reason: str, *, tenant: str | None, actor: str) -> PipelineView:
        """The emergency stop: ACT sends nothing until `resume`, across restarts. On disk and in the ledger when this
        returns. Raises E0755 without ACT; E0751 or E0775 where only the disk has it, and then the loop goes on."""
        from harch.hub.pipelines import audit

        record = self._acting(name, tenant)
        reason = reason or f"halted by {actor}"
        with contextlib.suppress(HarchError):  # at once, without waiting for a change of the file that is under way
            await self._acting_pipeline(name).write_stop(reason)
        async with self._changing:
            record = self._acting(name, tenant)
            after = structs.replace(record, halted=reason)
            if after != record:
                await self._keep(after, audit.halted(after, country=self._hub.country, by=actor))
                self._note("pipeline.halted", name, f"{reason}, by {actor}")
            try:
                await self._acting_pipeline(name).write_stop(reason)
            except HarchError as error:
                raise HarchError(
                    error.code,
                    f"the halt is stored, and workers of `{name}` could not be reached yet: {error.message}",
                    hint="the hub goes on trying; repeat this to see it confirmed",
                    retry_after_s=2,
                ) from error
        return await self._view(after)

    async def resume(self, name: str, *, tenant: str | None, actor: str) -> PipelineView:
        """Ends a halt. The ledger first: whatever fails in between leaves the pipeline halted."""
        from harch.hub.pipelines import audit

        self._acting(name, tenant)
        async with self._open().busy, self._changing:  # no round may write the old reason once more
            record = self._acting(name, tenant)
            await self._acting_pipeline(name).write_stop("")
            after = structs.replace(record, halted="")
            await self._keep(after, audit.halted(after, country=self._hub.country, by=actor))
            self._note("pipeline.resumed", name, f"by {actor}")
        return await self._view(after)

    async def drain(self, name: str, *, tenant: str | None, actor: str) -> PipelineView:
        """Sources stop, the rest finishes; streams, checkpoints and ledger stay. Applying the file starts it again."""
        return await self._set_desired_state(name, DesiredState.DRAIN, tenant, actor)

    async def remove(self, name: str, *, tenant: str | None, actor: str) -> PipelineView:
        """Stops it and deletes its streams, state and files. What its ledger has goes too; the audit chain stays."""
        return await self._set_desired_state(name, DesiredState.REMOVE, tenant, actor)

    async def source_key(
        self, name: str, source: str, *, tenant: str | None, actor: str, renew: bool = False
    ) -> SourceKeyView:
        """What senders of a source show. `renew` makes another key; the old one ends when the source's worker has been
        replaced. Raises E0201 for a source that does not listen, E0711 for one whose key is a secret."""
        from harch.hub.pipelines import audit, planning
        from harch.hub.pipelines.sources import made_for

        async with self._changing:
            record = self._find(name, tenant)
            found = made_for(planning.spec_of(record), source)
            if renew:
                revisions = {**record.key_revisions, found: record.key_revisions.get(found, 0) + 1}
                record = structs.replace(record, key_revisions=revisions)
                await self._keep(record, audit.source_key(record, audit.KEY_RENEWED, found, by=actor))
                self._note("pipeline.key_renewed", name, f"source {found}, by {actor}")
            else:
                await self._write([], [audit.source_key(record, audit.KEY_READ, found, by=actor)])
        loop = self._open()
        return SourceKeyView(
            pipeline=name,
            source=found,
            key=loop.source_keys.made(record, found),
            address=(await self._view(record)).sources.get(found, ""),
        )

    async def _set_desired_state(
        self, name: str, desired: DesiredState, tenant: str | None, actor: str
    ) -> PipelineView:
        from harch.hub.pipelines import audit

        async with self._changing:
            record = self._find(name, tenant)
            after = structs.replace(
                record, desired=desired if record.desired is not DesiredState.REMOVE else DesiredState.REMOVE
            )
            if after != record:
                await self._keep(after, audit.wished(after, country=self._hub.country, by=actor))
                self._note(f"pipeline.{desired.value}", name, f"requested by {actor}")
        return await self._view(after)

    @property
    def data(self) -> PipelineData:
        """What goes into pipelines and comes out of them. Raises E0740."""
        if self._data is None:
            loop = self._open()
            from harch.hub.pipelines.data import PipelineData

            self._data = PipelineData(self._find, self._mine, self._view, loop, self._hub.country, self._write)
        return self._data

    @property
    def actions(self) -> PipelineActions:
        """What waits for a person, and what was given up. Raises E0740."""
        if self._actions is None:
            self._open()
            from harch.hub.pipelines.actions import PipelineActions

            self._actions = PipelineActions(self._find, self._open(), clock=self._clock, write=self._write)
        return self._actions

    # Inside

    def _find(self, name: str, tenant: str | None) -> PipelineRecord:
        record = self._stored.get(name)
        if record is None or tenant not in (None, record.tenant):
            raise HarchError(
                "E0710", f"no pipeline `{name[:64]}` at hub {self._hub.name}", hint="`harch pipeline ls` lists them"
            )
        return record

    def _acting(self, name: str, tenant: str | None) -> PipelineRecord:
        record = self._find(name, tenant)
        if not record.spec.get("act"):
            raise HarchError("E0755", f"`{name}` has no actions", hint="`harch pipeline drain` stops the pipeline")
        return record

    def _acting_pipeline(self, name: str) -> RunningPipeline:
        loop = self._open()
        found = loop.running.get(name)
        if found is None:
            why = loop.troubles.get(name, "starting")
            raise HarchError("E0751", f"`{name}` is not running: {why}", hint="try again in a moment", retry_after_s=2)
        return found

    def _mine(self, name: str, tenant: str) -> PipelineRecord | None:
        record = self._stored.get(name)
        if record is not None and record.tenant != tenant:
            raise HarchError("E0711", f"`{name}` belongs to another tenant", hint="use another name")
        return record

    async def _keep(self, record: PipelineRecord, draft: Draft, *, new: bool = False) -> None:
        statements = records.save_version(record) if new else records.save(record)
        await self._write(statements, [draft])
        self._stored[record.name] = record
        self._opened.set()
        self._open().wake()

    def _open(self) -> PipelineLoop:
        """Raises E0740 where the packages of pipelines are not installed."""
        if self._loop is None:
            self._loop = loop_maker(own_engine=not self._outside)(
                self._fleet,
                self._hub,
                self._folder,
                clock=self._clock,
                database=self._database,
                write=self._write,
                note=self._note,
                open_secrets=self._open_secrets,
                settings=self._settings,
                around=self._around,
            )
            self._loop.records = self._stored
            self._loop.on_promotion = self._promoted
        return self._loop
