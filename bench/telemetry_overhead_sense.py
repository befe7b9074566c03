"""SENSE as a worker runs it, with and without following windows: a partition that takes messages and delivers windows.

Importable; `telemetry_overhead.py` tells the figures. Batches of 10,000 events, each 20 ms of event time, so that a
window of a second closes every 50 batches. Packing of messages is not counted.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from harch.pipelines.client.bucket import KeyValue
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.wire.columns import COMPACT
from harch.pipelines.wire.header import BatchHeader, pack_batch
from harch.pipelines.workers.config import EngineAccess, WorkerConfig
from harch.pipelines.workers.partition import OutboxMessage, Partition, PartitionLease
from harch.pipelines.workers.telemetry import WindowSpans
from harch.sovereignty.geography import LegalSite
from pipelines_sense import T0, events_of, settings_of

EVENTS, BATCH_NS = 10_000, 20_000_000
MESSAGES = 50  # of one turn: one window


class EventClock:
    """Time goes as the events say."""

    def __init__(self) -> None:
        self.at_ns = T0

    def now(self) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.at_ns // 1000)

    def monotonic_s(self) -> float:
        return (self.at_ns - T0) / 1e9

    boot_s = monotonic_s

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class NoBucket:
    async def get(self, key: str) -> KeyValue | None:
        return None

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        return 1


class NoLane:
    windows = 0

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        self.windows += len(some)


class FollowedRounds:
    """One partition; `share` of its windows are followed."""

    def __init__(self, share: float) -> None:
        settings = settings_of(COMPACT)
        self._schema, self._payload = settings.event_schema, events_of(settings.event_schema, EVENTS, 2)
        self._clock, self.lane, self.told = EventClock(), NoLane(), 0
        self._spans = WindowSpans(_config(settings, share), self._clock, self._tell) if share else None
        devices = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
        stage = SenseStage(
            StageIdentity("bench", 0), settings, devices, ResidencyGate("here", PolicyTable(1, {"here": 0}))
        )
        lease = PartitionLease(partition=0, epoch=1, revision=1, until_s=1e12, renew_s=1e12)
        self._partition = Partition(stage, lease, NoBucket(), self.lane, self._clock, is_exact=False, spans=self._spans)
        self._seq = 0

    async def open(self) -> None:
        await self._partition.open()

    async def cpu_s(self) -> float:
        """CPU seconds of one turn."""
        messages = [self._next() for _ in range(MESSAGES)]
        began_s = time.process_time()
        for at_ns, message in messages:
            self._clock.at_ns = at_ns
            self._partition.take(message)
            if self._partition.unsent:
                await self._partition.deliver()
        if self._spans is not None:
            self._spans.flush()
        return time.process_time() - began_s

    def _tell(self, message: bytes) -> None:
        self.told += len(msgspec.msgpack.decode(message))

    def _next(self) -> tuple[int, bytes]:
        self._seq += 1
        at_ns = T0 + self._seq * BATCH_NS
        header = BatchHeader(
            schema=self._schema.id,
            n=EVENTS,
            juris_mask=1,
            policy_version=1,
            source=1,
            seq=self._seq,
            t_first_ns=at_ns,
            watermark_ns=at_ns,
            payload_len=len(self._payload),
        )
        return at_ns, pack_batch(header, self._payload)


async def sense_turns(rounds: int, share: float) -> tuple[list[float], list[float], str]:
    """CPU seconds of turns with and without, side by side, and what was done."""
    plain, followed = FollowedRounds(0.0), FollowedRounds(share)
    for one in (plain, followed):
        await one.open()
        await one.cpu_s()
    with_s, without_s = [], []
    for number in range(rounds):
        for one in (plain, followed) if number % 2 else (followed, plain):
            (with_s if one is followed else without_s).append(await one.cpu_s())
    rate = MESSAGES * EVENTS / statistics.median(without_s) / 1e6
    done = f"{rate:.1f} M events per CPU second without; {followed.told} of {followed.lane.windows} windows followed"
    return with_s, without_s, done


def _config(settings: SenseSettings, share: float) -> WorkerConfig:
    access = EngineAccess(servers=("nats://127.0.0.1:1",), user="bench", seed="-")
    return WorkerConfig(
        worker="sense-0",
        stage="sense",
        pipeline="bench",
        country="MA",
        site=LegalSite(hub="here", country="MA"),
        policy=PolicyTable(1, {"here": 0}),
        juris_mask=1,
        sense=settings,
        engine=access,
        act_engine=access,
        state_folder=".",
        trace_share=share,
    )
