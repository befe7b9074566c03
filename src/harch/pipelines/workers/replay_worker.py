"""How does a replay run?

Events that were kept, or those of a file, through SENSE and THINK of its own in the time of then, and on to ACT.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act.decisions import ActionPlanner, decision_batch
from harch.pipelines.act.ledger import ActionCommand
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.engine.keys import write_state
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.features import FeatureBatch, encode_features, feature_schema, rule_names
from harch.pipelines.sense.inputs.file import FileInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import NS_PER_S, FileSource, HttpSource, MqttSource, SenseSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.think.messages import as_outputs, decode_outputs
from harch.pipelines.wire.header import HEADER_BYTES, BatchHeader, BatchLane, Flags, pack_batch, unpack_header
from harch.pipelines.wire.rows import RowFormat, RowReader
from harch.pipelines.workers.act_worker import connect_ledger
from harch.pipelines.workers.config import COMMANDS_LISTED_MAX, CommandSummary, ReplayCounts, ReplayOrder, ReplayResult
from harch.pipelines.workers.sense_worker import stage_of
from harch.pipelines.workers.shared_state import Policies
from harch.pipelines.workers.shell import Shell, StageReport
from harch.pipelines.workers.source_storage import KeptBatch, complete_from_ms, read_history
from harch.pipelines.workers.think_worker import Busy, OutputMessage, WorkerModels, publish_outputs

# Which windows come of events that came before? Kept batches through their own SENSE, in the time of then. No I/O.
#
# It starts empty, so a window is emitted only if everything that belongs to it can be here: it lies within the time
# asked for, and after the moment since which all is kept.


class EventReplay:
    """One run. Batches come in the order in which they were accepted."""

    def __init__(
        self,
        stage: SenseStage,
        permit: Permit,
        counts: ReplayCounts,
        *,
        since_ns: int = 0,
        until_ns: int | None = None,
        complete_from_ms: int = 0,
    ) -> None:
        self._stage = stage
        self._permit = permit
        self._counts = counts
        # What was accepted before may have been as far ahead of its clock as is believed.
        future_ns = round(stage.settings.windows.future_s * NS_PER_S) if complete_from_ms else 0
        self._from_ns = max(since_ns, complete_from_ms * NS_PER_MS + future_ns)
        self._until_ns = until_ns
        self._seqs: dict[int, int] = {}
        self._last_ms = 0

    def take(self, kept: KeptBatch) -> list[FeatureBatch]:
        """Windows that are over with this batch. What is no batch of this pipeline's schema is passed over."""
        header = unpack_header(kept.message)
        if isinstance(header, Rejection) or header.schema != self._stage.settings.event_schema.id:
            return []
        if self._until_ns is not None and header.t_first_ns >= self._until_ns:
            return []
        self._last_ms = max(self._last_ms, kept.at_ms)
        now_ns, now_s = self._last_ms * NS_PER_MS, self._last_ms / 1000
        outcome = self._stage.take(self._stamped(header, kept.message), now_ns=now_ns, now_s=now_s)
        passed = self._stage.tick(now_ns=now_ns, now_s=now_s)
        return self._whole([*outcome.features, *passed.features])

    def finish(self, *, now_ms: int, is_all: bool) -> list[FeatureBatch]:
        """The last windows: those that time has closed since. `is_all`: nothing more belongs to any of them."""
        found = self._stage.tick(now_ns=now_ms * NS_PER_MS, now_s=max(self._last_ms, now_ms) / 1000).features
        if is_all or self._until_ns is not None or now_ms - self._last_ms > self._silence_ms():
            found += self._stage.flush().features
        complete = self._whole(found)
        counters = self._stage.counters
        self._counts.events = counters.events_in
        self._counts.events_aside = counters.events_aside + counters.events_dropped + counters.events_refused
        return complete

    def _silence_ms(self) -> float:
        """After so long without a word, windows of a pipeline that runs are closed as well."""
        settings = self._stage.settings
        windows = settings.windows
        return 1000 * (2 * settings.source_idle_s + windows.size_s + windows.lateness_s + windows.skew_s)

    def _stamped(self, header: BatchHeader, message: bytes) -> bytes:
        """Numbered from 1 per source, and permitted where the pipeline permits."""
        if header.is_watermark_only:
            seq = self._seqs.get(header.source, 0)
        else:
            seq = self._seqs[header.source] = self._seqs.get(header.source, 0) + 1
        mask = header.juris_mask
        if header.policy_version == self._permit.policy_version:
            mask &= self._permit.juris_mask
        flags = header.flags | Flags.REPLAY
        return pack_batch(replace(header, seq=seq, juris_mask=mask, flags=flags), message[HEADER_BYTES:])

    def _whole(self, features: list[FeatureBatch]) -> list[FeatureBatch]:
        found = []
        for batch in features:
            is_late = self._until_ns is not None and batch.window_end_ns > self._until_ns
            if batch.window_start_ns < self._from_ns or is_late:
                self._counts.windows_cut += 1
            else:
                self._counts.windows += 1
                self._counts.rows += len(batch.device)
                found.append(batch)
        return found


# How does a file of rows become batches of a replay? As a source of the pipeline would read it.


WAITING_MAX = 64  # batches


async def batches_of_file(shell: Shell, order: ReplayOrder) -> AsyncIterator[bytes]:
    """Batches in the order of the file; its last one says that it ends. Raises E0202 for what is no such file."""
    settings, config = shell.config.sense, shell.config
    rows, disorder_s = _form(settings, order.source)
    source = FileSource(
        name="replay",
        path=order.file,
        format="csv" if order.file.endswith(".csv") else "ndjson",
        rows=rows,
        disorder_s=disorder_s,
    )
    permit = Permit(config.juris_mask, config.policy.version)
    edge = EdgeBatcher(f"replay/{order.run}", settings, permit, disorder_s=disorder_s, priority=source.priority)
    names = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
    reader = RowReader(settings.event_schema, names, rows)
    handed = _Handed(Quarantine(settings.limits.quarantine_kept))
    file = FileInput(source, settings.event_schema, edge, reader, handed, shell.clock)
    reading = asyncio.create_task(handed.read(file), name="file")
    try:
        while (message := await handed.waiting.get()) is not None:
            yield message
        await reading  # raises what ended it
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Handed(Intake):
    """Hands batches on one by one; None comes last."""

    def __init__(self, quarantine: Quarantine) -> None:
        super().__init__(bytes_max=1, quarantine=quarantine)
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX)

    async def put(self, message: bytes) -> None:
        await self.waiting.put(message)

    async def read(self, file: FileInput) -> None:
        try:
            await file.run()
        finally:
            await self.waiting.put(None)


def _form(settings: SenseSettings, wanted: str) -> tuple[RowFormat, float]:
    """How rows are written, as one of the pipeline's sources has it. Raises E0201."""
    having = {
        source.name: (source.rows, source.disorder_s)
        for source in settings.sources
        if isinstance(source, HttpSource | MqttSource | FileSource)
    }
    if wanted and wanted not in having:
        raise HarchError(
            "E0201", f"no source `{wanted}` accepts rows", hint=f"sources that do: {', '.join(having) or 'none'}"
        )
    return having[wanted] if wanted else next(iter(having.values()), (RowFormat(), 0.0))


# How does a replay run? Events that were kept, or those of a file, through SENSE and THINK of its own, and on to ACT.
#
# A dry run ends before anybody hears of it: it counts the commands that would follow, and which of them the ledger
# knows.


TOGETHER = 64  # batches that are read at one time
REPORT_EVERY_S = 1.0
BUSY_PAUSE_S = 0.05
NS_PER_MS = 1_000_000


class ReplayWorker:
    """One run, then the process ends. Its result is in a file, also while it runs."""

    def __init__(self, shell: Shell) -> None:
        if shell.config.replay is None:
            raise HarchError("E0750", "a replay has no order", hint="have the hub write its configuration")
        self._shell = shell
        self._config = shell.config
        self._order: ReplayOrder = shell.config.replay
        self._again = self._order.run if self._order.again else ""
        self._result = ReplayResult()
        self._stopping = asyncio.Event()
        self._policies = Policies(shell.config.policy)
        self._models = WorkerModels(shell, again=self._again) if shell.config.think is not None else None
        self._planner = ActionPlanner(shell.config.act) if shell.config.act is not None else None
        self._ledger: NatsLedger | None = None
        self._schema = feature_schema(shell.config.sense)
        self._reported_s = 0.0

    async def run(self) -> None:
        service = None
        try:
            await self._policies.look(self._shell.state)
            if self._models is not None:
                await self._models.load()
                service = asyncio.create_task(self._models.service.run(), name="think-service")
            if self._config.act is not None:
                client = await connect_ledger(self._config.act_engine, self._config)
                retention_s = self._config.act.retention_s
                self._ledger = await NatsLedger.open(
                    client, bucket=self._shell.names.ledger_bucket, retention_s=retention_s
                )
            await self._replay()
            self._result.state = "stopped" if self._stopping.is_set() else "done"
        except HarchError as error:
            self._result.state, self._result.trouble = "failed", error.message
            raise
        finally:
            if self._models is not None and service is not None:
                self._models.service.stop()
                await asyncio.gather(service, return_exceptions=True)
            if self._ledger is not None:
                await self._ledger.close()
            self._write()

    def stop(self) -> None:
        self._stopping.set()

    async def look(self) -> None:
        """Nothing is wanted of a run but its order."""

    def report(self) -> StageReport:
        return StageReport(counters=msgspec.to_builtins(self._result.counts), done=float(self._result.counts.events))

    async def _replay(self) -> None:
        order, config = self._order, self._config
        stage = stage_of(config, 0, self._policies)
        stage.warm_up()
        replay = EventReplay(
            stage,
            Permit(config.juris_mask, config.policy.version),
            self._result.counts,
            since_ns=order.since_ns,
            until_ns=order.until_ns,
            complete_from_ms=0 if order.file else self._complete_from_ms(),
        )
        began_s, events = self._shell.clock.monotonic_s(), 0
        async for kept in self._batches():
            if self._stopping.is_set():
                return
            await self._publish(replay.take(kept))
            header = unpack_header(kept.message)
            events += header.n if isinstance(header, BatchHeader) else 0
            self._result.counts.events = events
            ahead_s = events / order.events_per_s - (self._shell.clock.monotonic_s() - began_s)
            if ahead_s > 0:
                await self._shell.clock.sleep(ahead_s)
            self._write_sometimes()
        await self._publish(replay.finish(now_ms=self._shell.now_ms(), is_all=bool(order.file)))

    def _folders(self) -> list[Path]:
        folder = Path(self._config.kept_folder)
        found = [folder / source.name for source in self._config.sense.sources]
        return [one for one in found if one.is_dir()]

    def _complete_from_ms(self) -> int:
        return max((complete_from_ms(folder) for folder in self._folders()), default=0)

    async def _batches(self) -> AsyncIterator[KeptBatch]:
        if self._order.file:
            async for message in batches_of_file(self._shell, self._order):
                yield KeptBatch(self._shell.now_ms(), message)
            return
        kept: Iterator[KeptBatch] = heapq.merge(*map(read_history, self._folders()), key=lambda one: one.at_ms)
        while some := await asyncio.to_thread(lambda: list(islice(kept, TOGETHER))):
            for one in some:
                yield one

    async def _publish(self, features: list[FeatureBatch]) -> None:
        for batch in features:
            message = encode_features(batch, self._schema, source=0, lane=BatchLane.DURABLE)
            outputs = await self._outputs(message, f"{self._config.pipeline}/{batch.window_end_ns}")
            if self._planner is not None:
                for output in outputs:
                    await self._plan(self._planner, output.message)
            if not self._order.is_dry:
                named = [OutputMessage(f"replay/{self._order.run}/{one.identity}", one.message) for one in outputs]
                await publish_outputs(self._shell, 0, named, lambda: None)
                self._result.counts.sent += len(named)
            self._write_sometimes()

    async def _outputs(self, message: bytes, identity: str) -> list[OutputMessage]:
        """What goes on from here: outputs of models, features for rules, or the features themselves."""
        config = self._config
        if self._models is None and config.act is None:
            return [OutputMessage(identity, message)]
        if self._models is None:
            names, at_ms = rule_names(config.sense), self._shell.now_ms()
            made = as_outputs(
                message,
                self._schema,
                names,
                pipeline=config.pipeline,
                partition=0,
                at_ms=at_ms,
                again=self._again,
            )
            return [OutputMessage(identity, made)]
        while True:
            try:
                found = await self._models.thinker.outputs(message, 0)
            except Busy:
                await self._shell.clock.sleep(BUSY_PAUSE_S)
                continue
            self._result.counts.rows_dropped = sum(self._models.thinker.dropped.values())
            if isinstance(found, Rejection):
                self._result.trouble = f"{found.rule}: {found.detail}"
                return []
            return found

    async def _plan(self, planner: ActionPlanner, message: bytes) -> None:
        found = decode_outputs(message)
        if isinstance(found, Rejection) or self._ledger is None:
            return
        devices = self._config.sense.devices
        names = [*devices, *(str(number) for number in range(len(devices), self._config.sense.devices_max))]
        plan = planner.plan(decision_batch(found[1], names))
        self._result.counts.commands_unmade += len(plan.unmade)
        for command in plan.commands:
            if await self._ledger.get(command.cmd_id) is not None:
                self._result.counts.commands_known += 1
                continue
            self._result.counts.commands_new += 1
            if len(self._result.new) < COMMANDS_LISTED_MAX:
                self._result.new.append(_summary(command))

    def _write_sometimes(self) -> None:
        now_s = self._shell.clock.monotonic_s()
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            self._write()

    def _write(self) -> None:
        write_state(Path(self._order.result_file), msgspec.json.encode(self._result))


def _summary(command: ActionCommand) -> CommandSummary:
    return CommandSummary(
        cmd_id=command.cmd_id,
        action=command.action,
        device=command.device,
        window_end_ms=command.window // NS_PER_MS,
        steps=tuple(msgspec.to_builtins(step) for step in command.steps),
    )
