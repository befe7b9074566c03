"""In the hot lane a decision does not wait for a checkpoint; nothing that a checkpoint holds is forgotten either."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from batches import batch

from harch.base.clock import SystemClock
from harch.pipelines.client.bucket import KeyValue
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.settings import CheckpointSettings, SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.workers.partition import OutboxMessage, Partition, PartitionLease, decode_saved

SECOND_NS = 1_000_000_000
DEVICES = ("a", "b", "c")


class SlowBucket:
    """Stores nothing before `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.value = b""
        self.revision = 0

    async def get(self, key: str) -> KeyValue | None:
        return None

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        await self.gate.wait()
        self.value, self.revision = value, self.revision + 1
        return self.revision


class Lane:
    def __init__(self) -> None:
        self.told: list[int] = []

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        await asyncio.sleep(0)
        self.told += [told.seq for told in some]


def hot_partition(bucket: SlowBucket, lane: Lane, clock: SystemClock) -> Partition:
    settings = SenseSettings(
        devices=DEVICES,
        devices_max=len(DEVICES),
        windows=WindowSettings(size_s=1.0, lateness_s=0.0, skew_s=0.5, future_s=0.5),
        checkpoint=CheckpointSettings(every_s=3600),
    )
    stage = SenseStage(
        StageIdentity("fields", 0),
        settings,
        DeviceTable(settings.devices, len(DEVICES), settings.metrics),
        ResidencyGate("here", PolicyTable(1, {"here": 0})),
    )
    lease = PartitionLease(
        partition=0, epoch=1, revision=1, until_s=clock.boot_s() + 3600, renew_s=clock.boot_s() + 1800
    )
    return Partition(stage, lease, bucket, lane, clock, is_exact=False)


async def test_windows_are_delivered_while_a_checkpoint_is_being_stored() -> None:
    bucket, lane, clock = SlowBucket(), Lane(), SystemClock()
    bucket.gate.set()
    partition = hot_partition(bucket, lane, clock)
    await partition.open()
    bucket.gate.clear()
    now_ns = round(clock.now().timestamp()) * SECOND_NS - 10 * SECOND_NS
    for seq in (1, 2, 3):
        partition.take(batch(seq, [0, 1, 2], first_ns=now_ns + seq * SECOND_NS))
    saving = asyncio.create_task(partition.save(now=True))
    await asyncio.sleep(0)
    await partition.deliver()
    assert lane.told == [1, 2], "two windows are over, and their decisions wait for nothing"
    assert not saving.done()
    bucket.gate.set()
    await saving
    saved, checkpoint = decode_saved(bucket.value)
    assert [told.seq for told in saved.outbox] == [1, 2], "after a crash they are told again under the same ids"
    assert checkpoint is not None
    assert partition.unsent == 0
