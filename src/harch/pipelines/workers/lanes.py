"""Where do the features of SENSE go? Into THINK's stream or that of results, onto THINK's subject, to rules of ACT, or
to a THINK in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.client.errors import NatsError
from harch.pipelines.sense.features import feature_schema, rule_names
from harch.pipelines.think.messages import as_outputs
from harch.pipelines.workers.actor import Actor, NotYet
from harch.pipelines.workers.partition import FeatureLane, Undelivered
from harch.pipelines.workers.saved import Told
from harch.pipelines.workers.shell import Shell
from harch.pipelines.workers.status import Latency
from harch.pipelines.workers.think_worker import publish_outputs
from harch.pipelines.workers.thinker import Busy, OutputMessage, Thinker


async def _all(deliveries: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Each comes to its end before the first failure is told, so that nothing goes on unseen."""
    for found in await asyncio.gather(*deliveries, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found


class DurableLane:
    """JetStream has it when `deliver` returns; what it has already is not stored again."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def deliver(self, partition: int, some: Sequence[Told]) -> None:
        await _all(self._store(partition, told) for told in some)

    async def _store(self, partition: int, told: Told) -> None:
        config, names = self._shell.config, self._shell.names
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{told.seq}"
        try:
            await self._shell.client.publish_stored(names.into(config.into, partition), told.message, msg_id=identity)
        except NatsError as error:
            raise Undelivered(str(error)) from error


class RuleLane:
    """Features as what they are for rules of ACT, in ACT's stream: a pipeline without models."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._schema = feature_schema(shell.config.sense)
        self._names = rule_names(shell.config.sense)

    async def deliver(self, partition: int, some: Sequence[Told]) -> None:
        await _all(self._store(partition, told) for told in some)

    async def _store(self, partition: int, told: Told) -> None:
        config = self._shell.config
        message = as_outputs(
            told.message,
            self._schema,
            self._names,
            pipeline=config.pipeline,
            partition=partition,
            at_ms=self._shell.now_ms(),
        )
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{told.seq}"
        try:
            await self._shell.act_client.publish_stored(self._shell.names.outputs(partition), message, msg_id=identity)
        except NatsError as error:
            raise Undelivered(str(error)) from error


class HotLane:
    """On its way when `deliver` returns, and lost if nobody listens: for features that the next window replaces."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def deliver(self, partition: int, some: Sequence[Told]) -> None:
        try:
            for told in some:
                self._shell.client.publish(self._shell.names.features(partition), told.message)
            await self._shell.client.drain()
        except NatsError as error:
            raise Undelivered(str(error)) from error


class ExportingLane:
    """Any lane, and a copy of all that goes into it for the hub, which decides what of it may leave the country."""

    def __init__(self, shell: Shell, lane: FeatureLane) -> None:
        self._shell = shell
        self._lane = lane

    async def deliver(self, partition: int, some: Sequence[Told]) -> None:
        await self._lane.deliver(partition, some)
        for told in some:  # in order: whoever reads them takes an older one that comes later for a repetition
            await self._copy(partition, told)

    async def _copy(self, partition: int, told: Told) -> None:
        config, names = self._shell.config, self._shell.names
        identity = f"{config.state_version}/{config.pipeline}/{partition}/{told.seq}"
        try:
            await self._shell.client.publish_stored(names.exported(partition), told.message, msg_id=identity)
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

    def __init__(self, shell: Shell, thinker: Thinker, actor: Actor | None) -> None:
        self._shell = shell
        self._thinker = thinker
        self._actor = actor
        self.dead = self.commands = self.retries = 0
        self.latency = Latency()

    async def deliver(self, partition: int, some: Sequence[Told]) -> None:
        await _all(self._think(partition, told) for told in some)

    async def _think(self, partition: int, told: Told) -> None:
        began_s, spans = self._shell.clock.monotonic_s(), self._shell.spans
        followed = spans.trace_in(told.message) if spans is not None else None
        began_ns = spans.now_ns() if spans is not None and followed is not None else 0
        try:
            outputs = await self._thinker.outputs(told.message, partition)
            if spans is not None and followed is not None and not isinstance(outputs, Rejection):
                spans.thought(partition, followed, began_ns, told.message, [one.message for one in outputs])
            if isinstance(outputs, Rejection):
                await self._bury(partition, told.message, outputs)
            elif self._actor is None:
                await publish_outputs(self._shell, partition, outputs, self._retried)
            else:
                await self._act(self._actor, partition, outputs)
        except (Busy, NotYet, NatsError) as error:
            raise Undelivered(str(error)) from error
        except HarchError as error:
            raise Undelivered(error.message) from error
        self.latency.add((self._shell.clock.monotonic_s() - began_s) * 1000)

    async def _act(self, actor: Actor, partition: int, outputs: list[OutputMessage]) -> None:
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
