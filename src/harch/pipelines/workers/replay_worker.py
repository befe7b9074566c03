"""How does a replay run? Events that were kept, or those of a file, through SENSE and THINK of its own, and on to ACT.

A dry run ends before anybody hears of it: it counts the commands that would follow, and which of them the ledger knows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act.command import Command
from harch.pipelines.act.decisions import Planner, decision_batch
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.engine.keys import write_state
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.features import FeatureBatch, encode_features, feature_schema, rule_names
from harch.pipelines.think.messages import as_outputs, decode_outputs
from harch.pipelines.wire.header import BatchHeader, Lane, unpack_header
from harch.pipelines.workers.actor import connect_ledger
from harch.pipelines.workers.held import stage_of
from harch.pipelines.workers.history import KeptBatch, complete_from_ms, read_history
from harch.pipelines.workers.models import Models
from harch.pipelines.workers.policies import Policies
from harch.pipelines.workers.replay import EventReplay
from harch.pipelines.workers.replay_file import batches_of_file
from harch.pipelines.workers.replay_order import SHOWN_MAX, ReplayOrder, ReplayResult, ShownCommand
from harch.pipelines.workers.shell import Report, Shell
from harch.pipelines.workers.think_worker import publish_outputs
from harch.pipelines.workers.thinker import Busy, OutputMessage

TOGETHER = 64  # batches that are read at one time
TOLD_EVERY_S = 1.0
BUSY_PAUSE_S = 0.05
NS_PER_MS = 1_000_000


class ReplayWorker:
    """One run, then the process ends. Its result is in a file, also while it runs."""

    def __init__(self, shell: Shell) -> None:
        if shell.config.replay is None:
            raise HarchError("E0750", "a replay has no order", hint="let the hub write its configuration")
        self._shell = shell
        self._config = shell.config
        self._order: ReplayOrder = shell.config.replay
        self._again = self._order.run if self._order.again else ""
        self._result = ReplayResult()
        self._stopping = asyncio.Event()
        self._policies = Policies(shell.config.policy)
        self._models = Models(shell, again=self._again) if shell.config.think is not None else None
        self._planner = Planner(shell.config.act) if shell.config.act is not None else None
        self._ledger: NatsLedger | None = None
        self._schema = feature_schema(shell.config.sense)
        self._told_s = 0.0

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

    def report(self) -> Report:
        return Report(counters=msgspec.to_builtins(self._result.counts), done=float(self._result.counts.events))

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
            await self._tell(replay.take(kept))
            header = unpack_header(kept.message)
            events += header.n if isinstance(header, BatchHeader) else 0
            self._result.counts.events = events
            ahead_s = events / order.events_per_s - (self._shell.clock.monotonic_s() - began_s)
            if ahead_s > 0:
                await self._shell.clock.sleep(ahead_s)
            self._write_sometimes()
        await self._tell(replay.finish(now_ms=self._shell.now_ms(), is_all=bool(order.file)))

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

    async def _tell(self, features: list[FeatureBatch]) -> None:
        for batch in features:
            message = encode_features(batch, self._schema, source=0, lane=Lane.DURABLE)
            outputs = await self._outputs(message, f"{self._config.pipeline}/{batch.window_end_ns}")
            if self._planner is not None:
                for output in outputs:
                    await self._plan(self._planner, output.message)
            if not self._order.is_dry:
                named = [OutputMessage(f"replay/{self._order.run}/{one.identity}", one.message) for one in outputs]
                await publish_outputs(self._shell, 0, named, lambda: None)
                self._result.counts.told += len(named)
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

    async def _plan(self, planner: Planner, message: bytes) -> None:
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
            if len(self._result.new) < SHOWN_MAX:
                self._result.new.append(_shown(command))

    def _write_sometimes(self) -> None:
        now_s = self._shell.clock.monotonic_s()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._write()

    def _write(self) -> None:
        write_state(Path(self._order.result_file), msgspec.json.encode(self._result))


def _shown(command: Command) -> ShownCommand:
    return ShownCommand(
        cmd_id=command.cmd_id,
        action=command.action,
        device=command.device,
        window_end_ms=command.window // NS_PER_MS,
        steps=tuple(msgspec.to_builtins(step) for step in command.steps),
    )
