"""Sources with credit, a real message engine, and a SENSE stage that pauses or is killed: every event counts once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from nats_world import LIMITS, World, until, world

from harch.base.clock import SystemClock
from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.layout import EngineLayout
from harch.pipelines.sense.accounting import SideBatch, StageAlert
from harch.pipelines.sense.checkpoint import decode_checkpoint
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.flow_control import Credit, Offered, Receiving, Sending, pack_credit, unpack_credit
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.inputs.batches import NatsInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.runner import SenseRunner
from harch.pipelines.sense.settings import CheckpointSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.header import BatchHeader, unpack_header
from unit.pipelines.sense.sense_world import T0, S, batch_of, settings_of, stage_of

EVENTS_SUBJECT, CREDIT_SUBJECT = "juris.ma.soil.sense.0", "juris.ma.soil.credit.0"
SETTINGS = settings_of(checkpoint=CheckpointSettings(every_s=0.1), start_wait_s=1.0)
BATCHES, EVENTS_PER_BATCH = 300, 2000
MESSAGE_BYTES_MAX = 40_000
BUFFER_BYTES_MAX = 4 << 20


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start(EngineLayout(domains=(made.morocco(made.server("ma-1")),), limits=LIMITS))
        yield made


def message_of(source: int, seq: int) -> bytes:
    """Batches of both sources are as far as each other, ten of them in each second of event time."""
    return batch_of(seq, [(seq / 10, source, 0, 1.0)] * EVENTS_PER_BATCH, source=source)


class Source:
    """Offers its batches as fast as its buffer allows, and sends what it has credit for."""

    def __init__(self, number: int, client: AioClient) -> None:
        header = unpack_header(message_of(number, 1))
        assert isinstance(header, BatchHeader)
        self.sending = Sending(header, buffer_bytes_max=BUFFER_BYTES_MAX)
        self.buffered_bytes_most = 0
        self._number, self._client = number, client
        client.subscribe(CREDIT_SUBJECT, self._credit)

    async def run(self) -> None:
        clock = SystemClock()
        while True:
            while (
                self.sending.next_seq <= BATCHES and self.sending.buffered_bytes + MESSAGE_BYTES_MAX < BUFFER_BYTES_MAX
            ):
                assert self.sending.offer(message_of(self._number, self.sending.next_seq)) is Offered.KEPT
            self.buffered_bytes_most = max(self.buffered_bytes_most, self.sending.buffered_bytes)
            for message in self.sending.due(clock.monotonic_s()):
                self._client.publish(EVENTS_SUBJECT, message)
            await self._client.drain()
            await asyncio.sleep(0.005)

    def _credit(self, message: Message) -> None:
        credit = unpack_credit(bytes(message.payload))
        assert not isinstance(credit, Rejection)
        self.sending.credit(credit)


class Outputs:
    """Keeps features by their key and the last checkpoint; credit goes out over the engine."""

    def __init__(self, client: AioClient) -> None:
        self.client = client
        self.told: dict[tuple[str, int, int], float] = {}
        self.stored: list[bytes] = []

    async def features(self, batches: Sequence[FeatureBatch]) -> None:
        for batch in batches:
            count = float(batch.matrix[:, batch.names.index("flow.count")].sum())
            assert self.told.setdefault(batch.key, count) == count  # told again is told the same

    async def aside(self, batches: Sequence[SideBatch]) -> None:
        raise AssertionError([batch.reasons[:3] for batch in batches])

    async def alerts(self, alerts: Sequence[StageAlert]) -> None:
        raise AssertionError(alerts)

    async def credits(self, credits: Sequence[Credit]) -> None:
        for credit in credits:
            self.client.publish(CREDIT_SUBJECT, pack_credit(credit))

    async def policy(self, version: int) -> PolicyTable | None:
        raise AssertionError(version)

    async def store(self, checkpoint: bytes) -> None:
        self.stored.append(checkpoint)


class Receiver:
    """One life of the stage, from the last checkpoint on."""

    def __init__(self, outputs: Outputs, incarnation: int) -> None:
        clock = SystemClock()
        self.stage: SenseStage = stage_of(SETTINGS)
        receiving = Receiving(incarnation, window_bytes=1 << 20, message_bytes_max=MESSAGE_BYTES_MAX)
        if outputs.stored:
            saved = decode_checkpoint(outputs.stored[-1])
            self.stage.restore(saved, clock.monotonic_s())
            receiving.resume({one.source: one.seq for one in saved.sources}, clock.monotonic_s())
        self.intake = Intake(bytes_max=8 << 20, quarantine=self.stage.quarantine)
        runner = SenseRunner(self.stage, self.intake, outputs, clock, receiving=receiving)
        self.task = asyncio.create_task(runner.run([NatsInput(outputs.client, EVENTS_SUBJECT, self.intake)]))

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_stage_that_is_killed_again_and_again_counts_every_event_once(engine: World) -> None:
    options = engine.controller_options("ma-1", "MA")
    async with AioClient(options) as sending, AioClient(options) as receiving:
        sources = [Source(number, sending) for number in (1, 2)]
        outputs = Outputs(receiving)
        receiver = Receiver(outputs, 1)
        pumps = [asyncio.create_task(source.run()) for source in sources]
        for life in range(2, 5):
            before = receiver.stage.counters.batches_in
            await until(lambda wanted=before + 60, one=receiver: one.stage.counters.batches_in >= wanted, "some work")
            await receiver.kill()
            receiver = Receiver(outputs, life)
        await until(
            lambda: all(source.sending.is_drained and source.sending.next_seq > BATCHES for source in sources), "end"
        )
        receiver.stage.flush()
        counters = receiver.stage.counters
        assert counters.events_in == counters.events_accepted == 2 * BATCHES * EVENTS_PER_BATCH
        assert sum(source.sending.counters.batches_shed for source in sources) == 0
        assert sum(source.sending.counters.batches_replayed for source in sources) > 0
        full = {10 * EVENTS_PER_BATCH * 2.0}
        assert {count for key, count in outputs.told.items() if key[2] > T0 + S} == full  # no window is told in part
        assert len(outputs.told) >= BATCHES / 10 - 5
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await receiver.kill()


async def test_a_stage_that_pauses_is_not_cut_off_and_nothing_piles_up(engine: World) -> None:
    options = engine.controller_options("ma-1", "MA")
    async with AioClient(options) as sending, AioClient(options) as receiving:
        outputs = Outputs(receiving)
        gate = asyncio.Event()

        async def slow(credits: Sequence[Credit], send=outputs.credits) -> None:  # type: ignore[no-untyped-def]
            await gate.wait()  # the stage stands still in the middle of its loop
            await send(credits)

        source = Source(1, sending)
        outputs.credits = slow  # type: ignore[method-assign]
        receiver = Receiver(outputs, 1)
        pump = asyncio.create_task(source.run())
        gate.set()
        await until(lambda: receiver.stage.counters.batches_in > 20, "a start")
        gate.clear()
        await until(lambda: source.sending.buffered_bytes + 2 * MESSAGE_BYTES_MAX > BUFFER_BYTES_MAX, "a full buffer")
        await asyncio.sleep(1.0)  # sources have long stopped: nothing may grow
        assert receiver.intake.bytes <= 2 << 20
        assert source.buffered_bytes_most <= BUFFER_BYTES_MAX
        gate.set()
        await until(lambda: source.sending.is_drained and source.sending.next_seq > BATCHES, "the end")
        assert receiver.stage.counters.events_accepted == BATCHES * EVENTS_PER_BATCH
        assert (sending.reconnects, receiving.reconnects, receiver.stage.counters.holes) == (0, 0, 0)
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        await receiver.kill()
