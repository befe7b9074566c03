"""SENSE workers, one partition, a store and a network that lose things, on simulated time; any await is a place to die.

Workers are coroutines that are moved on by hand. The real lease, partition, stage and flow control run in them; store,
lane, network and clocks are simulated. What the lane was told, and who wrote what under which epoch, is written down.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from msgspec import structs

from harch.pipelines.client.bucket import Conflict, KeyValue, Unreachable
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.flow_control import Credit, Offered, Sending
from harch.pipelines.sense.gate import PolicyTable, ResidencyGate
from harch.pipelines.sense.settings import CheckpointSettings, SenseSettings, WindowSettings
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.sense.state import StageIdentity
from harch.pipelines.wire.columns import Columns, decode_columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, Flags, check_payload, pack_batch, unpack_header
from harch.pipelines.workers.names import checkpoint_key
from harch.pipelines.workers.partition import (
    Leases,
    OutboxMessage,
    Partition,
    PartitionLease,
    PartitionLost,
    PartitionRenewal,
    Undelivered,
    decode_saved,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL_S = 3.0
DEVICES = 4
STEP_S = 0.01
SETTINGS = SenseSettings(
    devices=tuple(f"d{number}" for number in range(DEVICES)),
    devices_max=DEVICES,
    statistics=("count",),
    windows=WindowSettings(size_s=0.2, lateness_s=0.05, skew_s=5.0, future_s=5.0),
    source_idle_s=3600.0,
    checkpoint=CheckpointSettings(every_s=0.3),
)
# Sources that are further apart than windows wait: which events come too late depends on the order of arrival.
APART = structs.replace(SETTINGS, windows=WindowSettings(size_s=0.2, lateness_s=0.05, skew_s=0.1, future_s=0.1))
APART_S = 0.3
SCHEMA = SETTINGS.event_schema
TABLE = PolicyTable(1, {"here": 0})


class Turn(Awaitable[None]):
    """Gives the turn back to the world."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class SimBucket:
    """Compare-and-set in memory, over a network: answers get lost, and requests may arrive after they were given up."""

    world: World
    rows: dict[str, KeyValue] = field(default_factory=dict)
    revision: int = 0
    under_way: list[tuple[float, str, bytes, int | None]] = field(default_factory=list)

    async def get(self, key: str) -> KeyValue | None:
        await Turn()
        if self.world.trouble():
            raise Unreachable(key)
        return self.rows.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        await Turn()
        if self.world.trouble():
            kind = self.world.random.randrange(3)
            if kind == 1:
                late_s = self.world.now_s + self.world.random.uniform(0, 6)
                self.under_way.append((late_s, key, value, revision))
            elif kind == 2:
                self._write(key, value, revision)
            raise Unreachable(key)
        written = self._write(key, value, revision)
        await Turn()  # written, and the writer may die before it hears so
        return written

    def arrive(self) -> None:
        """Requests that everybody has given up reach the store after all."""
        due = [one for one in self.under_way if one[0] <= self.world.now_s]
        self.under_way = [one for one in self.under_way if one[0] > self.world.now_s]
        for _, key, value, revision in due:
            try:
                self._write(key, value, revision)
            except Conflict:
                continue

    def _write(self, key: str, value: bytes, revision: int | None) -> int:
        there = self.rows.get(key)
        if revision is not None and (there.revision if there else 0) != revision:
            raise Conflict(key)
        if key == checkpoint_key(0):
            self.world.epochs_written.append(decode_saved(value)[0].epoch)
        self.revision += 1
        self.rows[key] = KeyValue(value, self.revision)
        return self.revision


@dataclass
class SimClock:
    """The machine of one worker: its clocks run a little fast or slow."""

    world: World
    rate: float

    def now(self) -> datetime:
        return START + timedelta(seconds=self.world.now_s)

    def monotonic_s(self) -> float:
        return self.world.now_s * self.rate

    def boot_s(self) -> float:
        return self.world.now_s * self.rate

    async def sleep(self, delay_s: float) -> None:
        until_s = self.world.now_s + delay_s
        while self.world.now_s < until_s:
            await Turn()


class SimLane:
    """The stream of THINK: keeps each id once, and remembers if it ever came with other bytes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[int, bytes] = {}
        self.contradictions: list[int] = []
        self.repeats = 0
        self.is_closed = False

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None:
        for told in some:
            await self._keep(told)

    async def _keep(self, told: OutboxMessage) -> None:
        await Turn()
        if self.is_closed or self.world.trouble():
            raise Undelivered("not now")
        if told.seq in self.told:
            self.repeats += 1
            if self.told[told.seq] != told.message:
                self.contradictions.append(told.seq)
        self.told.setdefault(told.seq, told.message)
        await Turn()

    def counts(self) -> Counter[tuple[int, int]]:
        """Events by window and device, as the features tell them."""
        schema = feature_schema(SETTINGS)
        found: Counter[tuple[int, int]] = Counter()
        for message in self.told.values():
            header = unpack_header(message)
            assert isinstance(header, BatchHeader)
            payload = check_payload(header, message)
            assert isinstance(payload, memoryview)
            columns = decode_columns(schema, header.n, payload)
            assert isinstance(columns, Columns)
            for device, count in zip(columns.device, columns.values[0], strict=True):
                found[(header.t_first_ns, int(device))] += int(count)
        return found


class SimWorker:
    """One process: a task that holds and settles, a task that renews, a handler of messages. They die together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimClock(world, world.random.uniform(0.95, 1.05))
        self.partition: Partition | None = None
        self.lease: PartitionLease | None = None
        self.asleep_until_s = 0.0
        self.awaits = 0
        world.lives += 1
        self._leases = Leases(
            world.bucket, name, f"{name}-{world.lives}", self.clock, ttl_s=TTL_S, inherits=world.lives_inherit
        )
        self._tasks: list[Coroutine[Any, Any, None]] = [self._hold(), self._renew()]

    def advance(self) -> None:
        """One of its tasks comes one await further."""
        self.awaits += 1
        self.world.random.choice(self._tasks).send(None)

    def die(self) -> None:
        for task in self._tasks:
            task.close()

    def handle(self, message: bytes) -> None:
        if self.partition is not None:
            try:
                self.partition.take(message)
            except PartitionLost:
                self.partition = None

    @property
    def believes(self) -> bool:
        return self.lease is not None and self.partition is not None and self.lease.is_valid(self.clock.boot_s())

    async def _hold(self) -> None:
        while True:
            lease = await self._leases.take(0)
            if lease is None:
                await self.clock.sleep(0.2)
                continue
            stage = SenseStage(
                StageIdentity("p", 0),
                self.world.settings,
                DeviceTable(SETTINGS.devices, DEVICES, SETTINGS.metrics),
                ResidencyGate("here", TABLE),
            )
            partition = Partition(stage, lease, self.world.bucket, self.world.lane, self.clock)
            try:
                await partition.open()
            except (PartitionLost, Unreachable):
                await self._leases.give_back(lease)
                continue
            self.partition, self.lease = partition, lease
            await self._settle(partition)
            self.partition = self.lease = None

    async def _settle(self, partition: Partition) -> None:
        while self.partition is partition:
            try:
                partition.tick()
                for credit in partition.credits():
                    self.world.grant(credit)
                await partition.settle()
            except PartitionLost:
                return
            except Undelivered:
                await self.clock.sleep(0.1)
            await Turn()

    async def _renew(self) -> None:
        while True:
            lease = self.lease
            is_due = lease is not None and self.clock.boot_s() >= lease.renew_s
            if is_due and await self._leases.renew(lease) is PartitionRenewal.LOST and self.lease is lease:
                self.partition = None
            await Turn()


class World:
    """Everything. `run` moves it on; `finish` ends all trouble and waits until nothing is open."""

    def __init__(
        self,
        seed: int,
        *,
        workers: int = 2,
        trouble: float = 0.05,
        lives_inherit: bool = False,
        are_apart: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.settings = APART if are_apart else SETTINGS
        self.now_s = 0.0
        self.lives = 0
        self.lives_inherit = lives_inherit
        self._trouble = trouble
        self.epochs_written: list[int] = []
        self.two_believed = 0
        self.accepted = self.events_in = 0  # as the last holder counts them
        self.bucket = SimBucket(self)
        self.lane = SimLane(self)
        self.truth: Counter[tuple[int, int]] = Counter()
        self.workers = [SimWorker(self, f"w{number}") for number in range(workers)]
        self.sources = [Sending(_header(number, 0, 0, 0, Flags.WATERMARK_ONLY)) for number in range(1 + are_apart)]
        self._grants: list[Credit] = []

    def trouble(self) -> bool:
        return self.random.random() < self._trouble

    def grant(self, credit: Credit) -> None:
        if not self.trouble():
            self._grants.append(credit)

    def run(self, steps: int, *, crash_at: int | None = None, deaths: float = 0.0, stalls: float = 0.0) -> None:
        """`crash_at`: the first worker dies at its await of this number. `deaths`, `stalls`: chances per step."""
        for step in range(steps):
            self.step(sends=step % 4 == 0)
            for place, worker in enumerate(self.workers):
                dies = place == 0 and crash_at is not None and worker.awaits >= crash_at
                if dies or self.random.random() < deaths:
                    crash_at = None if dies else crash_at
                    self.kill(place)
                elif self.random.random() < stalls:
                    worker.asleep_until_s = self.now_s + self.random.uniform(0, 3 * TTL_S)

    def kill(self, place: int) -> None:
        """As kill -9: whatever it was doing ends; another life begins under the same name."""
        self.workers[place].die()
        self.workers[place] = SimWorker(self, self.workers[place].name)

    def step(self, *, sends: bool) -> None:
        self.now_s += self.random.uniform(0, 2 * STEP_S)
        self.bucket.arrive()
        if sends:
            self._offer()
        for credit in self._take_grants():
            for source in self.sources:
                source.credit(credit)  # each looks whether it is meant
        for source in self.sources:
            for message in source.due(self.now_s):
                self._broadcast(bytes(message))
        for worker in self.random.sample(self.workers, len(self.workers)):
            if worker.asleep_until_s <= self.now_s:
                worker.advance()
        self.two_believed += sum(worker.believes for worker in self.workers) > 1

    def finish(self, steps_max: int = 60_000) -> None:
        self._trouble = 0.0
        for worker in self.workers:
            worker.asleep_until_s = 0.0
        self.now_s += 1.0
        last_ns = self._now_ns()
        self.now_s += 1.0
        for _ in range(steps_max):
            for source in self.sources:
                source.watermark(self._now_ns())
            self.step(sends=False)
            held = [worker.partition for worker in self.workers if worker.believes and worker.partition is not None]
            told = held and held[0].unsent == 0 and held[0].stage.watermark_ns > last_ns + 10**9
            if all(source.is_drained for source in self.sources) and told:
                self.accepted = held[0].stage.counters.events_accepted
                self.events_in = held[0].stage.counters.events_in
                return
        raise AssertionError("the partition does not come to rest")

    def _offer(self) -> None:
        """A few events of now; what they are is remembered as the truth."""
        n = self.random.randrange(1, 6)
        number = self.random.randrange(len(self.sources))
        source = self.sources[number]
        first_ns = self._now_ns() - round(number * APART_S * 1e9)
        ticks = np.sort(np.array([self.random.randrange(0, 2000) for _ in range(n)], np.uint64))
        device = np.array([self.random.randrange(DEVICES) for _ in range(n)], np.uint32)
        zeros = np.zeros(n)
        payload = encode_columns(SCHEMA, Columns(ticks, device, zeros, zeros, np.ones((2, n))))
        header = _header(number, source.next_seq, n, first_ns, Flags(0), len(payload))
        if source.offer(pack_batch(header, payload)) is not Offered.KEPT:
            raise AssertionError("nothing is shed here")
        pane_ns = SETTINGS.windows.pane_ns
        for tick, place in zip(ticks, device, strict=True):
            time_ns = first_ns + int(tick) * 1000
            self.truth[((time_ns // pane_ns + 1) * pane_ns, int(place))] += 1

    def _broadcast(self, message: bytes) -> None:
        """Everybody who listens hears it, also one who should not listen any more; or nobody."""
        if self.trouble():
            return
        for worker in self.workers:
            if worker.asleep_until_s <= self.now_s:
                worker.handle(message)

    def _take_grants(self) -> list[Credit]:
        found, self._grants = self._grants, []
        self.random.shuffle(found)
        return found

    def _now_ns(self) -> int:
        return round((START + timedelta(seconds=self.now_s)).timestamp() * 1e9)


def _header(number: int, seq: int, n: int, first_ns: int, flags: Flags, size: int = 0) -> BatchHeader:
    return BatchHeader(
        schema=SCHEMA.id,
        n=n,
        juris_mask=1,
        policy_version=1,
        source=7 + number,
        seq=seq,
        t_first_ns=first_ns,
        watermark_ns=first_ns,
        payload_len=size,
        flags=flags,
    )
