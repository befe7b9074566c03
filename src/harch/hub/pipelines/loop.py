"""Who keeps all pipelines of a hub what they should be?

One loop: engines, workers, streams, audit, alerts, removal. Imported with the first pipeline, not before.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.tracing.tracer import batch_share
from harch.fleet.model import Fleet, Hub
from harch.hub.pipelines import records
from harch.hub.pipelines.audit import Write, take_entries
from harch.hub.pipelines.context import HubContext
from harch.hub.pipelines.cross_border.links import HubBorders
from harch.hub.pipelines.engine import HubEngine
from harch.hub.pipelines.engine_backends import OutsideCluster, OwnServers
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.planning import PlannedPipeline, PlanningContext, plan, secrets_named, spec_of
from harch.hub.pipelines.promotion import Promotion
from harch.hub.pipelines.sources import SourceKeys
from harch.hub.pipelines.supervisor_client import SupervisorClient
from harch.hub.pipelines.values import DesiredState, PipelineRecord
from harch.hub.store.database import Database
from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.keys import KeyFolder
from harch.pipelines.engine.log_lines import EngineEvent, EngineEventKind
from harch.pipelines.engine.settings import EngineSettings
from harch.pipelines.spec.deployment import Deployment
from harch.pipelines.workers.telemetry import WorkerAlert
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import Violation
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force

AGAIN_S = 10.0  # one alert of a rule and stage in so long; the others are counted and reported with the next
KNOWN_MAX = 1000


class AlertThrottle:
    """`hear` takes a message as it came; `now_s` is on a monotonic clock."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._reported: dict[tuple[str, str, str], tuple[float, int]] = {}  # when, and how many were held back since

    def hear(self, payload: bytes, now_s: float) -> None:
        try:
            alert = msgspec.json.decode(payload, type=WorkerAlert)
        except msgspec.MsgspecError:
            return  # a worker of another release; its log has it
        key = (alert.pipeline, alert.stage, alert.rule)
        at_s, held = self._reported.get(key, (-AGAIN_S, 0))
        if now_s - at_s < AGAIN_S:
            self._reported[key] = (at_s, held + 1)
            return
        if len(self._reported) >= KNOWN_MAX:
            self._reported.clear()
        self._reported[key] = (now_s, 0)
        more = f"; {held} more held back" if held else ""
        self._note("pipeline.alert", alert.pipeline, f"{alert.worker}: {alert.rule}: {alert.detail[:300]}{more}")


# Who keeps all pipelines of a hub what they should be? One loop: engines, workers, streams, audit, removal.
#
# A round looks at everything and does the next step, so a crash at any moment is only a pause. One pipeline in trouble
# does not hold up the others.


ROUND_S = 1.0
BORDERS = "*borders"  # among troubles; no pipeline is called so

_REPORTED_EVENTS = (
    EngineEventKind.ENDED,
    EngineEventKind.GIVEN_UP,
    EngineEventKind.PUBLISH_REFUSED,
    EngineEventKind.SUBSCRIBE_REFUSED,
)

log = logging.getLogger("harch.hub")

Note = Callable[[str, str, str], None]


class PipelineLoop:
    """`records` is what is wanted, by name; whoever changes it calls `wake`."""

    def __init__(
        self,
        ground: PlanningContext,
        country: str,
        folder: Path,
        *,
        clock: Clock,
        database: Database,
        write: Write,
        note: Note,
        open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
        settings: EngineSettings,
        around: HubContext,
    ) -> None:
        self.records: dict[str, PipelineRecord] = {}
        self.running: dict[str, RunningPipeline] = {}
        self.troubles: dict[str, str] = {}
        self.on_removed: Callable[[str], Awaitable[None]] | None = None
        self.on_promotion: Callable[[str, Promotion], Awaitable[None]] | None = None
        self.ground, self.folder = ground, folder
        self._clock, self._database, self._write, self._note = clock, database, write, note
        self._open_secrets = open_secrets
        alerts = AlertThrottle(note)
        keys = KeyFolder(folder / "engine" / "keys")
        self.source_keys = SourceKeys(keys)
        self._place = self._engine_place(settings, country, keys)
        self.engine = HubEngine(
            country,
            self._place,
            keys,
            folder / "engine" / "where",
            clock=clock,
            on_violation=self._violated,
            on_alert=lambda payload: alerts.hear(payload, clock.monotonic_s()),
            on_spans=around.on_spans,
        )
        self.borders = HubBorders(
            ground,
            country,
            folder / "engine" / "border",
            around=around,
            settings=settings.border,
            keys=keys,
            engine=self.engine,
            clock=clock,
            write=write,
            note=note,
            on_event=self._on_engine_event,
        )
        self._supervisor = SupervisorClient(folder)
        self._deployed: tuple[Deployment, ...] = ()
        self._news = asyncio.Event()
        self.busy = asyncio.Lock()  # a round; taken before any lock of those who change records

    def wake(self) -> None:
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._look_outside()
        while True:
            if self.records:
                try:
                    async with self.busy:
                        await self._round()
                except HarchError as error:
                    log.warning("pipelines: %s", error.message)
                    self.troubles[""] = error.message
                except Exception:
                    log.exception("pipeline loop failed")
            await self._until_due()

    async def stop(self) -> None:
        """Workers first, then the engines; everything goes on from disk at the next start."""
        async with self.busy:
            await self.borders.stop()
            await self._supervisor.stop()
            await self.engine.stop()

    def _engine_place(self, settings: EngineSettings, country: str, keys: KeyFolder) -> OwnServers | OutsideCluster:
        if settings.external is not None:
            return OutsideCluster(country, settings=settings, external=settings.external, keys=keys, clock=self._clock)
        return OwnServers(
            self.ground.hub_id,
            country,
            self.folder / "engine",
            settings=settings,
            keys=keys,
            clock=self._clock,
            on_event=self._on_engine_event,
        )

    async def _look_outside(self) -> None:
        """An engine that others run is tried when the hub starts, so that its operators hear of mistakes then."""
        if isinstance(self._place, OutsideCluster):
            try:
                await self._place.look(self.engine.main)
            except HarchError as error:
                log.warning("pipelines: %s (%s)", error.message, error.hint)
                self.troubles[""] = error.message
                self._note("pipeline.engine", self.engine.main, error.message)

    def pipeline_folder(self, name: str) -> Path:
        return self.folder / "pipelines" / name

    async def _round(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._supervisor.settle()
        self._learn(await self._supervisor.refusal())
        await self._deploy()
        self.troubles.pop("", None)
        kept = self._supervisor.report()
        for name, pipeline in list(self.running.items()):
            try:
                for stage, why in (await pipeline.step(kept)).items():
                    count = pipeline.scale[stage].workers
                    self._note("pipeline.scaled", name, f"{stage}: {count} workers: {why}")
                for promotion in pipeline.promotions():
                    if self.on_promotion is not None:
                        await self.on_promotion(name, promotion)
                if pipeline.parts.act is not None:
                    admin = self.engine.admin(pipeline.act_domain)
                    await take_entries(admin, pipeline.names, self._database, self._write)
                pipeline.trouble = ""
            except HarchError as error:
                pipeline.trouble = error.message
            except NatsError as error:
                pipeline.trouble = str(error)
        orders = tuple(order for pipeline in self.running.values() for order in pipeline.orders())
        self._supervisor.order(orders)
        await self._step_borders()
        await self._remove()

    async def _step_borders(self) -> None:
        """What keeps a border shut holds up nothing at home."""
        try:
            await self.borders.step(self.running)
            self.troubles.pop(BORDERS, None)
        except (HarchError, NatsError) as error:
            message = error.message if isinstance(error, HarchError) else str(error)
            if self.troubles.get(BORDERS) != message:
                self.troubles[BORDERS] = message
                self._note("pipeline.border", self.ground.hub_id, message)

    async def sandbox_refusal(self) -> HarchError | None:
        """Why no worker of a pipeline may be started on this machine."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await self._supervisor.refusal()

    def _learn(self, refusal: HarchError | None) -> None:
        """Plans of records that are new or changed. A plan that no longer holds stops its pipeline, and so does a
        machine that refuses its workers."""
        for name, record in self.records.items():
            running = self.running.get(name)
            if refusal is None and running is not None and running.record == record:
                continue
            try:
                if refusal is not None:
                    raise refusal
                planned = plan(
                    spec_of(record),
                    self.ground,
                    released=record.released,
                    variables=self.secrets_of(record.tenant, record.spec),
                )
                keys = self.source_keys.of(record, planned.spec, self.secrets_of(record.tenant, record.spec))
            except HarchError as error:
                if self.troubles.get(name) != error.message:
                    self.troubles[name] = error.message
                    self._note("pipeline.refused", name, error.message)
                self.running.pop(name, None)
                continue
            self.troubles.pop(name, None)
            self._take(record, planned, keys, running)

    def secrets_of(self, tenant: str, spec: dict[str, Any]) -> dict[str, str]:
        """Those that sources and sinks name, as far as they are stored."""
        return self._open_secrets(tenant, secrets_named(spec))

    def _take(
        self, record: PipelineRecord, planned: PlannedPipeline, keys: dict[str, str], running: RunningPipeline | None
    ) -> None:
        folder = self.pipeline_folder(record.name)
        environment = {"PYTHONPATH": str(folder / "files"), **self.secrets_of(record.tenant, record.spec)}
        if running is not None:
            running.take(record, planned, environment, keys)
            return
        self.running[record.name] = RunningPipeline(
            record,
            planned,
            self.ground,
            folder,
            engine=self.engine,
            clock=self._clock,
            environment=environment,
            source_keys=keys,
        )

    async def _deploy(self) -> None:
        deployments = tuple(pipeline.planned.deployment for pipeline in self.running.values())
        if deployments != self._deployed or not self.engine.is_whole:
            await self.engine.ensure(deployments)
            self._deployed = deployments

    async def _remove(self) -> None:
        """Those that are to go and whose workers have ended: streams, keys, files, and last the record."""
        gone = [one for one in self.running.values() if one.record.desired is DesiredState.REMOVE and one.is_at_rest]
        for pipeline in gone:
            name = pipeline.record.name
            rest = [one.planned.deployment for one in self.running.values() if one is not pipeline]
            await self.engine.ensure(rest, remove=[pipeline.planned.deployment])
            self._deployed = tuple(rest)
            del self.running[name]
            await asyncio.to_thread(shutil.rmtree, pipeline.folder, ignore_errors=True)
            if self.on_removed is not None:
                await self.on_removed(name)
            await self._write(records.forget(name), [])
            self.records.pop(name, None)
            self._note("pipeline.removed", name, "its workers, streams and files are deleted")
        unplanned = [
            name for name, one in self.records.items() if one.desired is DesiredState.REMOVE and name in self.troubles
        ]
        for name in unplanned:
            await self._write(records.forget(name), [])
            self.records.pop(name, None)
            self.troubles.pop(name, None)
        if not self.records:
            await self.borders.stop()
            await self._supervisor.stop()
            await self.engine.stop()
            self._deployed = ()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(ROUND_S if self.records else None):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _on_engine_event(self, event: EngineEvent) -> None:
        if event.what in _REPORTED_EVENTS:
            self._note("pipeline.engine", event.server, f"{event.what}: {event.user} {event.subject} {event.detail}")

    def _violated(self, violation: Violation) -> None:
        reasons = "; ".join(f"{one.rule}: {one.detail}" for one in violation.rejections)
        actions = ", ".join(action.value for action in violation.actions)
        self._note("pipeline.violation", violation.subject, f"{reasons} ({actions})")


# How is the loop of pipelines put together? Apart from `service`, so that its imports happen when it is needed.


def open_loop(
    fleet: Fleet,
    hub: Hub,
    folder: Path,
    *,
    clock: Clock,
    database: Database,
    write: Write,
    note: Note,
    open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
    settings: EngineSettings | None,
    around: HubContext,
) -> PipelineLoop:
    jurisdictions = jurisdictions_in_force()
    ground = PlanningContext(
        hub_id=hub.id,
        rules=Rules(terrain_of(fleet, jurisdictions)),
        jurisdictions=jurisdictions,
        trace_share=batch_share(),
    )
    return PipelineLoop(
        ground,
        hub.country,
        folder,
        clock=clock,
        database=database,
        write=write,
        note=note,
        open_secrets=open_secrets,
        settings=settings or EngineSettings(),
        around=around,
    )
