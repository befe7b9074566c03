"""Where do the features of SENSE go?

Into THINK's stream or that of results, onto THINK's subject, to rules of ACT, or to THINK and ACT in the same process
(the fused worker).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.errors import NatsError
from harch.pipelines.sense.features import feature_schema, rule_names
from harch.pipelines.think.messages import as_outputs
from harch.pipelines.workers.act_worker import ActRunner, NotYet
from harch.pipelines.workers.partition import FeatureLane, OutboxMessage, Undelivered
from harch.pipelines.workers.sense_worker import SenseWorker
from harch.pipelines.workers.shell import Shell, StageReport
from harch.pipelines.workers.telemetry import Latency
from harch.pipelines.workers.think_worker import Busy, FeatureScorer, OutputMessage, WorkerModels, publish_outputs


async def _all(deliveries: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Each comes to its end before the first failure is reported, so that nothing goes on unseen."""
    for found in await asyncio.gather(*deliveries, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found


class DurableLane:
    """JetStream has it when `deliver` returns; what it has already is not stored again."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        await _all(self._store(partition, pending) for pending in some)

    async def _store(self, partition: int, pending: OutboxMessage) -> None:
        config, names = self._shell.config, self._shell.names
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{pending.seq}"
        try:
            await self._shell.client.publish_stored(
                names.into(config.into, partition), pending.message, msg_id=identity
            )
        except NatsError as error:
            raise Undelivered(str(error)) from error


class RuleLane:
    """Features as what they are for rules of ACT, in ACT's stream: a pipeline without models."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._schema = feature_schema(shell.config.sense)
        self._names = rule_names(shell.config.sense)

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        await _all(self._store(partition, pending) for pending in some)

    async def _store(self, partition: int, pending: OutboxMessage) -> None:
        config = self._shell.config
        message = as_outputs(
            pending.message,
            self._schema,
            self._names,
            pipeline=config.pipeline,
            partition=partition,
            at_ms=self._shell.now_ms(),
        )
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{pending.seq}"
        try:
            await self._shell.act_client.publish_stored(self._shell.names.outputs(partition), message, msg_id=identity)
        except NatsError as error:
            raise Undelivered(str(error)) from error


class HotLane:
    """On its way when `deliver` returns, and lost if nobody listens: for features that the next window replaces."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        try:
            for pending in some:
                self._shell.client.publish(self._shell.names.features(partition), pending.message)
            await self._shell.client.drain()
        except NatsError as error:
            raise Undelivered(str(error)) from error


class ExportingLane:
    """Any lane, and a copy of all that goes into it for the hub, which decides what of it may leave the country."""

    def __init__(self, shell: Shell, lane: FeatureLane) -> None:
        self._shell = shell
        self._lane = lane

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        await self._lane.deliver(partition, some)
        for pending in some:  # in order: whoever reads them takes an older one that comes later for a repetition
            await self._copy(partition, pending)

    async def _copy(self, partition: int, pending: OutboxMessage) -> None:
        config, names = self._shell.config, self._shell.names
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{pending.seq}"
        try:
            await self._shell.client.publish_stored(names.exported(partition), pending.message, msg_id=identity)
        except NatsError as error:
            raise Undelivered(str(error)) from error


def lane_of(shell: Shell) -> FeatureLane:
    """The lane of a SENSE worker: only features for THINK may travel without being stored."""
    lane: FeatureLane
    if shell.config.into == "act":
        lane = RuleLane(shell)
    else:
        lane = HotLane(shell) if shell.config.route.is_hot else DurableLane(shell)
    return ExportingLane(shell, lane) if shell.config.exports else lane


class FusedLane:
    """THINK in the same process, and ACT too if there is an actor; else outputs go into ACT's stream."""

    def __init__(self, shell: Shell, thinker: FeatureScorer, actor: ActRunner | None) -> None:
        self._shell = shell
        self._thinker = thinker
        self._actor = actor
        self.dead = self.commands = self.retries = 0
        self.latency = Latency()

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        await _all(self._think(partition, pending) for pending in some)

    async def _think(self, partition: int, pending: OutboxMessage) -> None:
        began_s, spans = self._shell.clock.monotonic_s(), self._shell.spans
        followed = spans.trace_in(pending.message) if spans is not None else None
        began_ns = spans.now_ns() if spans is not None and followed is not None else 0
        try:
            outputs = await self._thinker.outputs(pending.message, partition)
            if spans is not None and followed is not None and not isinstance(outputs, Rejection):
                spans.thought(partition, followed, began_ns, pending.message, [one.message for one in outputs])
            if isinstance(outputs, Rejection):
                await self._bury(partition, pending.message, outputs)
            elif self._actor is None:
                await publish_outputs(self._shell, partition, outputs, self._retried)
            else:
                await self._act(self._actor, partition, outputs)
        except (Busy, NotYet, NatsError) as error:
            raise Undelivered(str(error)) from error
        except HarchError as error:
            raise Undelivered(error.message) from error
        self.latency.add((self._shell.clock.monotonic_s() - began_s) * 1000)

    async def _act(self, actor: ActRunner, partition: int, outputs: list[OutputMessage]) -> None:
        for output in outputs:
            taken = await actor.take(output.message)
            if isinstance(taken, Rejection):
                await self._bury(partition, output.message, taken)
            else:
                self.commands += taken

    async def _bury(self, partition: int, message: bytes, why: Rejection) -> None:
        self.dead += 1
        self._shell.alert("dead", f"partition {partition}: {why.rule}: {why.detail}")
        await self._shell.client.publish_stored(self._shell.names.dead(partition), message)

    def _retried(self) -> None:
        self.retries += 1


# How do SENSE and THINK (and ACT) run in one process? The same parts, without the message engine between them.


DRAIN_S = 15.0


class FusedWorker:
    """Holds partitions like a SENSE worker; their features are thought about before the next value is delivered."""

    def __init__(self, shell: Shell) -> None:
        self._models = WorkerModels(shell)
        self._actor = ActRunner(shell, self._models.policies) if shell.config.act is not None else None
        self._lane = FusedLane(shell, self._models.thinker, self._actor)
        self._sense = SenseWorker(shell, self._lane)
        self._ready = False

    async def run(self) -> None:
        await self._models.load()
        parts = [asyncio.create_task(self._models.service.run(), name="think-service")]
        if self._actor is not None:
            await self._actor.open()
            parts.append(asyncio.create_task(self._actor.run(), name="act-stage"))
        self._ready = True
        try:
            sensing = asyncio.create_task(self._sense.run(), name="sense")
            await asyncio.wait((sensing, *parts), return_when=asyncio.FIRST_COMPLETED)
            for part in (sensing, *parts):
                if part.done():
                    await part
            if self._actor is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_S):
                        await self._actor.stage.drain()
        finally:
            self._models.service.stop()
            for part in parts[1:]:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if self._actor is not None:
                await self._actor.close()

    def stop(self) -> None:
        self._sense.stop()

    async def look(self) -> None:
        await self._sense.look()
        if self._ready:
            await self._models.look()
            if self._actor is not None:
                for table in self._models.policies.tables:
                    self._actor.gate.learn(table)
                self._actor.stage.wake()

    def report(self) -> StageReport:
        report = self._sense.report()
        thought = self._models.report()
        report.counters |= {f"think_{name}": count for name, count in thought.counters.items()}
        report.counters |= {"messages_dead": self._lane.dead, "commands": self._lane.commands}
        if self._ready and self._actor is not None:
            report.counters |= {f"act_{name}": count for name, count in self._actor.stage.counters.as_dict().items()}
        report.details |= thought.details
        report.latency_ms = self._lane.latency.summary()
        report.latency_counts = tuple(self._lane.latency.histogram.counts)
        report.trouble = ("" if self._ready else "loading its models") or report.trouble or thought.trouble
        return report
