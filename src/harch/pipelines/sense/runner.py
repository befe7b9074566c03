"""Who feeds the stage? A thin loop: messages from the intake, features to the next stage, checkpoints, credit, time.

`turn` is everything but waiting, so that another loop (one process with THINK, or one on blocking sockets) can use it
too. Features of a turn are handed over before a checkpoint that knows of them is stored: after a crash they are sent
again under the same key, never forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from harch.base.clock import Clock
from harch.pipelines.sense.accounting import Disposition, SenseOutcome, SideBatch, StageAlert
from harch.pipelines.sense.checkpoint import SenseCheckpoint, encode_checkpoint
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.flow_control import Credit, Receiving
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.inputs import Input
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.settings import NS_PER_S
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.header import BatchHeader, Buffer, unpack_header

TICK_S = 0.025


class RunnerTurn(Struct, kw_only=True):
    """What came of some messages and of the time that has passed."""

    features: list[FeatureBatch] = field(default_factory=list)
    aside: list[SideBatch] = field(default_factory=list)
    alerts: list[StageAlert] = field(default_factory=list)
    fetch_versions: set[int] = field(default_factory=set)
    credits: list[Credit] = field(default_factory=list)

    def add(self, outcome: SenseOutcome) -> None:
        self.features += outcome.features
        self.aside += outcome.aside
        self.alerts += outcome.alerts
        self.fetch_versions |= outcome.fetch_versions


class Outputs(Protocol):
    """Where things go. Each returns when they are there; what raises ends the runner."""

    async def features(self, batches: Sequence[FeatureBatch]) -> None: ...

    async def aside(self, batches: Sequence[SideBatch]) -> None: ...

    async def alerts(self, alerts: Sequence[StageAlert]) -> None: ...

    async def credits(self, credits: Sequence[Credit]) -> None: ...

    async def policy(self, version: int) -> PolicyTable | None:
        """The table of a version; None if nobody has it yet, and then it is asked for again."""
        ...

    async def store(self, checkpoint: bytes) -> None: ...


def turn(
    stage: SenseStage, messages: Sequence[Buffer], *, now_ns: int, now_s: float, receiving: Receiving | None = None
) -> RunnerTurn:
    """Some messages, and the time. Does not wait for anything."""
    found = RunnerTurn()
    for message in messages:
        outcome = stage.take(message, now_ns=now_ns, now_s=now_s)
        found.add(outcome)
        if receiving is not None:
            _count(receiving, message, outcome, now_s)
    passed = stage.tick(now_ns=now_ns, now_s=now_s)
    found.add(passed)
    if receiving is not None:
        for source, size in passed.released:
            receiving.taken(source, size, now_s)
        found.credits = receiving.due(now_s)
    return found


class SenseRunner:
    """One stage with its inputs, until it is cancelled or every input has ended."""

    def __init__(
        self, stage: SenseStage, intake: Intake, outputs: Outputs, clock: Clock, *, receiving: Receiving | None = None
    ) -> None:
        self._stage = stage
        self._intake = intake
        self._outputs = outputs
        self._clock = clock
        self._receiving = receiving
        self._storing: asyncio.Task[None] | None = None

    async def run(self, inputs: Sequence[Input]) -> None:
        self._stage.warm_up()
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(one.run()) for one in inputs]
            await self._loop(group, readers)
        await self._store(self._stage.snapshot())

    async def _loop(self, group: asyncio.TaskGroup, readers: Sequence[asyncio.Task[None]]) -> None:
        while True:
            has_ended = bool(readers) and all(reader.done() for reader in readers)
            messages = await self._messages()
            now_ns, now_s = self._now()
            await self._do(turn(self._stage, messages, now_ns=now_ns, now_s=now_s, receiving=self._receiving))
            if has_ended and not self._intake.bytes:
                return
            is_free = self._storing is None or self._storing.done()
            if is_free and self._stage.checkpoint_due(self._clock.monotonic_s()):
                self._storing = group.create_task(self._store(self._stage.snapshot()))

    async def _messages(self) -> list[bytes]:
        """What waits, or nothing after a tick."""
        try:
            async with asyncio.timeout(TICK_S):
                return await self._intake.get()
        except TimeoutError:
            return []

    async def _do(self, found: RunnerTurn) -> None:
        if found.features:
            await self._outputs.features(found.features)
        if found.aside:
            await self._outputs.aside(found.aside)
        if found.alerts:
            await self._outputs.alerts(found.alerts)
        if found.credits:
            await self._outputs.credits(found.credits)
        for version in sorted(found.fetch_versions):
            if (table := await self._outputs.policy(version)) is not None:
                decided = RunnerTurn()
                now_ns, now_s = self._now()
                for outcome in self._stage.learn_policy(table, now_ns=now_ns, now_s=now_s):
                    decided.add(outcome)
                await self._do(decided)

    async def _store(self, checkpoint: SenseCheckpoint) -> None:
        compress = self._stage.settings.checkpoint.compress
        await self._outputs.store(await asyncio.to_thread(encode_checkpoint, checkpoint, compress=compress))
        if self._receiving is not None:
            self._receiving.checkpointed({one.source: one.seq for one in checkpoint.sources})

    def _now(self) -> tuple[int, float]:
        return round(self._clock.now().timestamp() * NS_PER_S), self._clock.monotonic_s()


def _count(receiving: Receiving, message: Buffer, outcome: SenseOutcome, now_s: float) -> None:
    if outcome.disposition is Disposition.DAMAGED:
        return  # its source is not to be believed; the hole that it leaves will be seen
    header = unpack_header(message)
    if isinstance(header, BatchHeader):
        waits = outcome.disposition is Disposition.AHEAD  # it gets no credit for more until it was taken
        receiving.taken(header.source, 0 if waits else len(message), now_s)
        if outcome.disposition is Disposition.HOLE:
            receiving.hole(header.source, now_s)
