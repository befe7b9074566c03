"""What does a SENSE worker keep for each partition that it holds? The partition, its subscription and its task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.gate import Gate
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageName
from harch.pipelines.workers.config import WorkerConfig
from harch.pipelines.workers.partition import Partition, PartitionLost
from harch.pipelines.workers.policies import Policies


class Held:
    """A partition with its subscription and its task."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.news = asyncio.Event()
        self.sid = 0
        self.lost = ""
        self.is_leaving = False
        self.task: asyncio.Task[None] | None = None


def handler_of(held: Held) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        if held.lost:
            return
        try:
            held.partition.take(message.payload)
        except PartitionLost as error:
            held.lost = str(error)
            return
        if held.partition.untold:
            held.news.set()

    return handle


def stage_of(config: WorkerConfig, number: int, policies: Policies, known: tuple[str, ...] | None = None) -> SenseStage:
    """`known`: devices that are known by now, if more than the settings name."""
    settings = config.sense
    devices = DeviceTable(known or settings.devices, settings.devices_max, settings.metrics)
    gate = Gate(config.site.hub, policies.tables[0])
    for table in policies.tables:
        gate.learn(table)
    stage = SenseStage(StageName(config.pipeline, number), settings, devices, gate)
    _join(config, stage)
    return stage


def learn_devices(config: WorkerConfig, stage: SenseStage, devices: tuple[str, ...]) -> None:
    """From the next batch on; rows of the table that were waiting for them are joined from the next window on."""
    for name in devices:
        stage.state.devices.add(name)
    _join(config, stage)


def _join(config: WorkerConfig, stage: SenseStage) -> None:
    settings, devices = config.sense.enrichment, stage.state.devices
    if settings is not None and config.enrichment:
        version = 1 + devices.version - len(config.sense.devices)
        stage.learn_enrichment(EnrichmentTable.of(version, settings.columns, config.enrichment, devices))
