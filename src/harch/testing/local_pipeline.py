"""How does a whole pipeline run on one machine? Engines, streams and workers from its parts, kept running.

For tests, benchmarks and programs of one's own; a hub runs workers by its keeper (`harch.hub.pipelines`). Everything it
keeps is below one folder; after a crash of the supervisor, `start` on the same folder goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.pipelines.client.bucket import NatsBucket
from harch.pipelines.client.errors import NatsError, as_harch_error
from harch.pipelines.engine.layout import ServerLimits
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.think.rollout import WantedModels
from harch.pipelines.think.settings import VersionSettings
from harch.pipelines.workers.config import WorkerStage, write_config
from harch.pipelines.workers.local_engine import LocalMessageEngine
from harch.pipelines.workers.names import ASSIGNMENT_KEY, MODELS_KEY, POLICY_KEY
from harch.pipelines.workers.parts import WORKERS_MAX, PipelineParts, worker_config
from harch.pipelines.workers.process import DRAIN_GRACE_S, WorkerEvent, WorkerProcess
from harch.pipelines.workers.scaling import UNASSIGNED, PartitionAssignment, reassigned
from harch.pipelines.workers.telemetry import WorkerStatus, read_statuses

READY_TIMEOUT_S = 60.0
POLL_S = 0.1
STAGES: tuple[WorkerStage, ...] = ("source", "sense", "think", "act", "fused")


class LocalPipeline:
    """One pipeline. `start` first, `stop` last; in between `scale`, `serve_models`, `renew` and `statuses`."""

    def __init__(
        self,
        parts: PipelineParts,
        folder: Path,
        *,
        synced_act: bool = True,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
        on_event: Callable[[WorkerEvent | EngineEvent], None] = lambda event: None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.parts = parts
        self.folder = folder
        self.workers: dict[str, WorkerProcess] = {}
        self._clock = clock or SystemClock()
        self._on_event = on_event
        self._environment = environment
        self.engine = LocalMessageEngine(
            parts, folder / "engine", synced_act=synced_act, limits=limits, clock=self._clock, on_event=on_event
        )
        self._assignment = UNASSIGNED
        self._models = WantedModels(0, {})
        self._started: dict[WorkerStage, int] = {}  # names are never used twice, so that no two workers share one

    async def start(self) -> None:
        """Engines, streams, then workers. Returns when they are started; `ready` waits until all of them say so."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self.engine.start()
        await self._remember()
        for stage in STAGES:
            await self._add_all(stage, self.parts.workers.get(stage, 0))
        await self._assign()

    async def stop(self, *, drain: bool = True) -> None:
        """Sources first, so that nothing new comes; then each stage finishes what the one before it gave it."""
        for stage in STAGES:
            some = [worker for worker in self.workers.values() if worker.stage == stage]
            grace_s = DRAIN_GRACE_S if drain else 0.0
            await asyncio.gather(*(worker.stop(grace_s=grace_s) for worker in some))
        self.workers.clear()
        await self.engine.stop()

    async def drain(self, stage: WorkerStage) -> None:
        """Stops the workers of one stage when they have finished; the others go on."""
        await self.scale(stage, 0)

    async def scale(self, stage: WorkerStage, count: int) -> None:
        """Starts or stops workers of one stage. Partitions move at the border between two batches."""
        if not 0 <= count <= WORKERS_MAX:
            raise HarchError("E0201", f"{count} workers of {stage}", hint=f"use 0 to {WORKERS_MAX}")
        there = [worker.worker for worker in self.workers.values() if worker.stage == stage]
        if stage == "source" and count != len(there):
            await self._end(there)  # two of them cannot read the same source, not even for a moment
            await self._add_all(stage, count)
        elif stage == "act" and count != len(there):
            await self.ready(await self._add_all(stage, count))  # each with its share of the devices
            await self._end(there)
        else:
            for _ in range(count - len(there)):
                await self._add(stage)
            await self._end(there[count:])

    async def renew(self, stage: WorkerStage, parts: PipelineParts | None = None) -> None:
        """New processes in place of the old ones, with new code or settings: each takes over when it is ready.

        A source cannot share its port and its buffer, so it ends before the next one starts; senders wait meanwhile.
        """
        if parts is not None:
            self.parts = parts
        old = [name for name, worker in self.workers.items() if worker.stage == stage]
        if stage == "source":
            await self._end(old)
            await self._add_all(stage, len(old))
        else:
            await self.ready(await self._add_all(stage, len(old)))
            await self._end(old)

    async def serve_models(self, versions: Mapping[str, tuple[VersionSettings, ...]]) -> int:
        """The versions that THINK should serve from now on, by model. Answers the revision that workers will report."""
        self._models = WantedModels(self._models.revision + 1, {**self._models.versions, **versions})
        await self._want(MODELS_KEY, msgspec.json.encode(self._models))
        return self._models.revision

    async def learn_policy(self, table: PolicyTable) -> None:
        """A new numbering of hubs, for all workers within half a second."""
        await self._want(POLICY_KEY, msgspec.json.encode(table))

    async def statuses(self) -> list[WorkerStatus]:
        """What the workers said last. Raises E0701 while the engine is away."""
        try:
            return await read_statuses(self.engine.admin, self.parts.names)
        except NatsError as error:
            raise as_harch_error(error, "reading the status of workers") from error

    async def ready(self, workers: list[str] | None = None, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Returns when these workers, or all of them and with all partitions, say that they are well. Raises E0751."""
        wanted = set(self.workers if workers is None else workers)
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            missing = "the message engine"
            with contextlib.suppress(HarchError):
                missing = self._missing(wanted, await self.statuses(), all_held=workers is None)
            if not missing:
                return
            if self._clock.monotonic_s() > until_s:
                log = self.workers[missing].log_file if missing in self.workers else self.folder
                raise HarchError("E0751", f"`{missing}` did not become ready", hint=f"see {log}")
            await self._clock.sleep(POLL_S)

    def _missing(self, wanted: set[str], statuses: list[WorkerStatus], *, all_held: bool) -> str:
        """Who is not well yet; with `all_held`, also a partition that nobody holds."""
        pids = {worker.worker: worker.pid for worker in self.workers.values()}
        well = [one for one in statuses if one.health == "ok" and pids.get(one.worker) == one.pid]
        if absent := sorted(wanted - {one.worker for one in well}):
            return absent[0]
        held = {number for one in well for number in one.partitions}
        unheld = sorted(set(range(self.parts.sense.partitions)) - held) if all_held and self._holders() else []
        return f"partition {unheld[0]}" if unheld else ""

    async def _add_all(self, stage: WorkerStage, count: int) -> list[str]:
        return [await self._add(stage, (number, count)) for number in range(count)]

    async def _end(self, workers: list[str]) -> None:
        """Partitions go to those who stay; then each ends when it has finished."""
        gone = [self.workers.pop(name) for name in workers]
        await self._assign()
        await asyncio.gather(*(worker.stop() for worker in gone))

    async def _add(self, stage: WorkerStage, share: tuple[int, int] = (0, 1)) -> str:
        number = self._started.get(stage, 0)
        self._started[stage] = number + 1
        name = f"{stage}-{number}"
        engine, act_engine = self.engine.access(stage)
        state = self.folder / "state" / stage
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = worker_config(
            self.parts,
            stage,
            name,
            engine=engine,
            act_engine=act_engine,
            state_folder=str(state),
            share=share,
            kept_folder=str(self.folder / "kept"),
        )
        path = self.folder / "config" / f"{name}.json"
        write_config(path, config)
        process = WorkerProcess(
            name,
            stage,
            path,
            self.folder / "log" / f"{name}.log",
            clock=self._clock,
            on_event=self._on_event,
            environment=self._environment,
        )
        self.workers[name] = process
        await process.start()
        return name

    async def _assign(self) -> None:
        """Partitions to those workers that are there now."""
        after = reassigned(self._assignment, self.parts.sense.partitions, self._holders())
        if after is not self._assignment:
            self._assignment = after
            await self._want(ASSIGNMENT_KEY, msgspec.json.encode(after))

    def _holders(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.stage == self.parts.sensing_stage]

    async def _want(self, key: str, value: bytes) -> None:
        client = self.engine.admin.client
        try:
            await client.publish_stored(f"$KV.{self.parts.names.state_bucket}.{key}", value)
            client.publish(self.parts.names.control, key.encode())
        except NatsError as error:
            raise as_harch_error(error, "notifying the workers") from error

    async def _remember(self) -> None:
        """What was wanted before the supervisor itself was started again."""
        bucket = NatsBucket(self.engine.admin.client, self.parts.names.state_bucket)
        if (found := await bucket.get(ASSIGNMENT_KEY)) is not None:
            self._assignment = msgspec.json.decode(found.value, type=PartitionAssignment)
        if (found := await bucket.get(MODELS_KEY)) is not None:
            self._models = msgspec.json.decode(found.value, type=WantedModels)
