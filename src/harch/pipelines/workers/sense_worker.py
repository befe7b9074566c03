"""How does a SENSE worker run?

It holds partitions by lease, each with its subscription and its task, and hands features on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from harch.base.errors import HarchError
from harch.pipelines.client.bucket import Unreachable
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message
from harch.pipelines.sense.accounting import SideBatch, StageCounters
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.flow_control import pack_credit
from harch.pipelines.sense.gate import ResidencyGate
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.wire.columns import encode_columns
from harch.pipelines.wire.header import pack_batch
from harch.pipelines.workers.config import WorkerConfig
from harch.pipelines.workers.names import ASSIGNMENT_KEY
from harch.pipelines.workers.partition import (
    FeatureLane,
    Leases,
    Partition,
    PartitionLost,
    PartitionRenewal,
    Undelivered,
)
from harch.pipelines.workers.scaling import PartitionAssignment
from harch.pipelines.workers.shared_state import DeviceNews, Policies
from harch.pipelines.workers.shell import Shell, StageReport
from harch.pipelines.workers.telemetry import Latency


class OwnedPartition:
    """A partition with its subscription and its task."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.news = asyncio.Event()
        self.sid = 0
        self.lost = ""
        self.is_leaving = False
        self.task: asyncio.Task[None] | None = None


def handler_of(held: OwnedPartition) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        if held.lost:
            return
        try:
            held.partition.take(message.payload)
        except PartitionLost as error:
            held.lost = str(error)
            return
        if held.partition.unsent:
            held.news.set()

    return handle


def stage_of(config: WorkerConfig, number: int, policies: Policies, known: tuple[str, ...] | None = None) -> SenseStage:
    """`known`: devices that are known by now, if more than the settings name."""
    settings = config.sense
    devices = DeviceTable(known or settings.devices, settings.devices_max, settings.metrics)
    gate = ResidencyGate(config.site.hub, policies.tables[0])
    for table in policies.tables:
        gate.learn(table)
    stage = SenseStage(StageIdentity(config.pipeline, number), settings, devices, gate)
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


# How does a SENSE worker run? It holds partitions by lease, feeds each from its subject, and hands features on.
#
# Several of them share the partitions of a pipeline. One that is killed is replaced by whoever takes its leases next:
# state comes from the checkpoint, events since then from the sources, which kept them.


TICK_S = 0.02
UNDELIVERED_PAUSE_S = 0.2
REFUSED_PAUSE_S = 10.0  # a state that could not be used is looked at again after this, in case it was mended

log = logging.getLogger(__name__)


class SenseWorker:
    """All partitions that this worker holds now."""

    def __init__(self, shell: Shell, lane: FeatureLane) -> None:
        self._shell = shell
        self._config = shell.config
        self._lane = lane
        self._settings = shell.config.sense
        self._leases = Leases(
            shell.state,
            shell.config.worker,
            shell.process,
            shell.clock,
            ttl_s=shell.config.leases.ttl_s,
            inherits=True,  # `claim_name` has shown that no other process of this name lives
        )
        self._held: dict[int, OwnedPartition] = {}
        self._policies = Policies(shell.config.policy)
        self._devices = DeviceNews(shell.config.sense.devices)
        self._wanted: tuple[int, ...] = shell.config.partitions
        self._wanted_version = 0
        self._has_looked = False  # at the policies of others, without which older windows would permit nothing
        self._stopping = asyncio.Event()
        self._refused: dict[int, str] = {}  # partitions whose state we cannot use
        self._refused_s: dict[int, float] = {}
        self._totals = StageCounters()  # of partitions that are no longer held
        self._lost = 0
        self._aside_failed = 0

    async def run(self) -> None:
        stage_of(self._config, 0, self._policies).warm_up()
        helpers = [
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._renew(), name="renew"),
        ]
        try:
            while not self._stopping.is_set():
                await self._arrange()
                await self._pause(self._config.leases.poll_s)
            await asyncio.gather(*(self._give_back(held) for held in list(self._held.values())))
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    def stop(self) -> None:
        self._stopping.set()

    async def look(self) -> None:
        entry = await self._shell.state.get(ASSIGNMENT_KEY)
        if entry is not None:
            assignment = msgspec.json.decode(entry.value, type=PartitionAssignment)
            if assignment.version > self._wanted_version:
                self._wanted, self._wanted_version = assignment.of(self._config.worker), assignment.version
        for table in await self._policies.look(self._shell.state):
            for held in self._held.values():
                held.partition.learn_policy(table)
        if await self._devices.look(self._shell.state):
            for held in self._held.values():
                learn_devices(self._config, held.partition.stage, self._devices.devices)
        self._has_looked = True

    def report(self) -> StageReport:
        counters = {name: getattr(self._totals, name) for name in StageCounters.__struct_fields__}
        reasons: dict[str, int] = {}
        for held in self._held.values():
            for name in counters:
                counters[name] += getattr(held.partition.stage.counters, name)
            for reason, count in held.partition.stage.quarantine.counts.items():
                reasons[f"aside_{reason}"] = reasons.get(f"aside_{reason}", 0) + count
        unsent = sum(held.partition.unsent for held in self._held.values())
        not_taken = sum(held.partition.not_taken for held in self._held.values())
        latency = Latency()
        for held in self._held.values():
            latency.join(held.partition.latency)
        missing = [number for number in self._wanted if number not in self._held]
        trouble = next(iter(self._refused.values()), "")
        if missing and not trouble and not self._stopping.is_set():
            trouble = f"waiting for partitions {', '.join(map(str, missing[:8]))}"
        return StageReport(
            counters={
                **counters,
                **reasons,
                "partitions_lost": self._lost,
                "aside_failed": self._aside_failed,
                "not_taken": not_taken,
            },
            gauges={"untold_windows": float(unsent)},
            partitions=tuple(sorted(self._held)),
            lag=float(unsent),
            done=float(counters["events_in"]),
            drained=float(counters["windows_closed"]),
            latency_ms=latency.summary(),
            latency_counts=tuple(latency.histogram.counts),
            trouble=trouble,
            details={"assignment": str(self._wanted_version)},
        )

    # Leases

    async def _renew(self) -> None:
        """On its own, so that no other wait can make a lease run out."""
        while True:
            now_s = self._shell.clock.boot_s()
            due = [held for held in self._held.values() if not held.lost and held.partition.lease.renew_s <= now_s]
            answers = await asyncio.gather(*(self._leases.renew(held.partition.lease) for held in due))
            for held, answer in zip(due, answers, strict=True):
                if answer is PartitionRenewal.LOST:
                    held.lost = "its lease expired, or another worker took it"
            await self._shell.clock.sleep(self._config.leases.ttl_s / 20)

    async def _arrange(self) -> None:
        """Lets go of what is lost or no longer wanted, and takes what is wanted and free."""
        for number, held in list(self._held.items()):
            if held.lost or (held.task is not None and held.task.done()):
                await self._drop(held)
            elif number not in self._wanted:
                await self._give_back(held)
        wanted = [number for number in self._wanted if number not in self._held and self._has_looked]
        await asyncio.gather(*(self._take(number) for number in wanted))

    async def _take(self, number: int) -> None:
        refused_s = self._refused_s.get(number)
        if refused_s is not None and self._shell.clock.monotonic_s() - refused_s < REFUSED_PAUSE_S:
            return
        lease = await self._leases.take(number)
        if lease is None:
            return
        stage = stage_of(self._config, number, self._policies, self._devices.devices)
        shell, exact = self._shell, self._config.lane == "durable"
        partition = Partition(stage, lease, shell.state, self._lane, shell.clock, is_exact=exact, spans=shell.spans)
        try:
            await partition.open()
        except (PartitionLost, Unreachable) as error:
            log.warning("could not open partition %d: %s", number, error)
            await self._leases.give_back(lease)
            return
        except HarchError as error:
            self._refuse(number, error)
            await self._leases.give_back(lease)
            return
        self._refused.pop(number, None)
        held = OwnedPartition(partition)
        held.sid = self._shell.client.subscribe(self._shell.names.events(number), handler_of(held))
        held.task = asyncio.create_task(self._settle(held), name=f"settle-{number}")
        self._held[number] = held
        log.info("acquired partition %d, epoch %d", number, lease.epoch)

    def _refuse(self, number: int, error: HarchError) -> None:
        """Tells it once, and lets some time pass before the next attempt."""
        if self._refused.get(number) != error.message:
            self._refused[number] = error.message
            self._shell.alert("checkpoint", f"partition {number}: {error.message}")
        self._refused_s[number] = self._shell.clock.monotonic_s()

    async def _drop(self, held: OwnedPartition) -> None:
        """Lost: nothing is saved or given back. What we did since the last checkpoint did not happen."""
        self._forget(held)
        if held.task is not None:
            held.task.cancel()
            await asyncio.gather(held.task, return_exceptions=True)
        self._lost += 1
        log.warning("lost partition %d: %s", held.partition.number, held.lost or "its task ended")

    async def _give_back(self, held: OwnedPartition) -> None:
        """At the border between two batches: save, deliver, let go."""
        self._forget(held)
        held.is_leaving = True
        held.news.set()
        if held.task is not None:
            await asyncio.gather(held.task, return_exceptions=True)
        try:
            await held.partition.close()
        except (PartitionLost, Undelivered) as error:
            log.warning("partition %d closed before delivering all: %s", held.partition.number, error)
        counters = held.partition.stage.counters
        self._totals = StageCounters(
            *(getattr(self._totals, name) + getattr(counters, name) for name in StageCounters.__struct_fields__)
        )
        await self._leases.give_back(held.partition.lease)

    def _forget(self, held: OwnedPartition) -> None:
        self._held.pop(held.partition.number, None)
        with contextlib.suppress(NatsError):  # the connection is away, and so is the subscription
            self._shell.client.unsubscribe(held.sid)

    # Work

    async def _tick(self) -> None:
        """Time passes, credit is granted, and what was set aside is reported."""
        while True:
            for held in list(self._held.values()):
                if not held.lost:
                    self._tick_one(held)
            await self._shell.clock.sleep(TICK_S)

    def _tick_one(self, held: OwnedPartition) -> None:
        partition = held.partition
        try:
            partition.tick()
        except PartitionLost as error:
            held.lost = str(error)
            return
        if partition.unsent:
            held.news.set()
        try:
            for credit in partition.credits():
                self._shell.client.publish(self._shell.names.credit(partition.number), pack_credit(credit))
            while partition.aside:
                self._publish_aside(partition.number, partition.aside.popleft())
        except NatsError:
            self._aside_failed += 1  # credit is repeated, and what was set aside is counted
        while partition.alerts:
            alert = partition.alerts.popleft()
            self._shell.alert(alert.rule, alert.detail, alert.count)

    def _publish_aside(self, number: int, side: SideBatch) -> None:
        payload = encode_columns(self._settings.event_schema, side.columns)
        header = msgspec.structs.replace(side.header, n=side.columns.n, payload_len=len(payload))
        identity = f"late/{self._config.pipeline}/{number}/{header.source}/{header.seq}"
        message = pack_batch(header, payload)
        self._shell.client.publish(self._shell.names.late(number), message, headers={"Nats-Msg-Id": identity})

    async def _settle(self, held: OwnedPartition) -> None:
        """Until it is lost or given back. A step that is storing is never cut off, so that we know what is stored."""
        partition = held.partition
        exact = self._config.lane == "durable"
        steps = (partition.settle,) if exact else (partition.deliver, partition.save)
        await asyncio.gather(*(self._repeat(held, step) for step in steps))

    async def _repeat(self, held: OwnedPartition, step: Callable[[], Awaitable[None]]) -> None:
        while not held.lost and not held.is_leaving:
            try:
                await step()
            except PartitionLost as error:
                held.lost = str(error)
                return
            except HarchError as error:  # the state has outgrown what can be stored
                held.lost = error.message
                self._refuse(held.partition.number, error)
                return
            except Undelivered as error:
                log.warning("partition %d: features delayed: %s", held.partition.number, error)
                await self._shell.clock.sleep(UNDELIVERED_PAUSE_S)
                continue
            try:
                async with asyncio.timeout(self._settings.checkpoint.every_s / 4):
                    await held.news.wait()
            except TimeoutError:
                pass
            held.news.clear()

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            pass
