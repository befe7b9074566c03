"""How does one partition live through crashes of its workers?

State, outbox and lease, in an order that loses nothing.

1. `open` reads what was saved and writes it again under its own epoch: from then on the store refuses an older holder.
2. `take` counts events in memory only. Sources keep them until step 3 has released them.
3. `settle` saves state and new features as one value, and only then delivers the features, in order. Whoever opens the
   value after a crash delivers what is left of them under the same ids, so each window is emitted once, as it was
   closed.

In the hot lane features are delivered at once, and maybe twice after a crash, under the same id.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import Protocol

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.pipelines.client.bucket import Bucket, Conflict, KeyValue, Unreachable
from harch.pipelines.sense.accounting import SideBatch, StageAlert
from harch.pipelines.sense.checkpoint import (
    VALUE_BYTES_MAX,
    SenseCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    unusable,
)
from harch.pipelines.sense.features import encode_features, feature_schema
from harch.pipelines.sense.flow_control import Credit, Receiving
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.runner import RunnerTurn, turn
from harch.pipelines.sense.settings import NS_PER_S
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.header import BatchLane, Buffer, crc32c
from harch.pipelines.workers.names import checkpoint_key, lease_key
from harch.pipelines.workers.telemetry import Latency, Made, WindowSpans

# What is kept of a partition? One value: the state of SENSE, and the features that it emitted but nobody has yet.
#
# Features are part of the value, so that a window is emitted exactly as it was closed: whoever starts from it sends
# them again under the same ids, and goes on with a state in which that window is closed.


_MAGIC = b"HRPT"
_HEAD_BYTES = len(_MAGIC) + 4
_MESSAGE_OVERHEAD_BYTES = 64 << 10  # of the engine, around a value
SAVED_BYTES_MAX = VALUE_BYTES_MAX - _MESSAGE_OVERHEAD_BYTES


class OutboxMessage(Struct, frozen=True, array_like=True):
    """Features of one window, as they travel. `seq` is gapless per partition and makes their id."""

    seq: int
    message: bytes


class SavedPartition(Struct, frozen=True, array_like=True):
    """`epoch` of the lease under which it was written: two holders never write the same bytes."""

    epoch: int
    state: bytes  # a checkpoint of SENSE, empty before the first event
    outbox: list[OutboxMessage]


def encode_saved(
    epoch: int, checkpoint: SenseCheckpoint | None, outbox: list[OutboxMessage], *, compress: bool
) -> bytes:
    """Raises E0741 where it is larger than a value may be: nothing of it could be stored."""
    state = encode_checkpoint(checkpoint, compress=compress) if checkpoint is not None else b""
    body = msgspec.msgpack.encode(SavedPartition(epoch, state, outbox))
    if len(body) + _HEAD_BYTES > SAVED_BYTES_MAX:
        raise unusable(f"{len(body)} bytes; a value has at most {SAVED_BYTES_MAX}: use more partitions, or compress")
    return b"".join((_MAGIC, crc32c(body).to_bytes(4, "little"), body))


def decode_saved(value: bytes) -> tuple[SavedPartition, SenseCheckpoint | None]:
    """Raises E0741 for what is damaged."""
    body = value[_HEAD_BYTES:]
    if value[: len(_MAGIC)] != _MAGIC or crc32c(body) != int.from_bytes(value[len(_MAGIC) : _HEAD_BYTES], "little"):
        raise unusable("the saved partition is damaged")
    try:
        saved = msgspec.msgpack.decode(body, type=SavedPartition)
    except msgspec.MsgspecError as error:
        raise unusable(f"the saved partition cannot be read: {error}") from error
    return saved, decode_checkpoint(saved.state) if saved.state else None


# Who may advance a partition? Whoever holds its lease, and only as long as it can say so itself.
#
# A lease is one key, written by compare-and-set. Its holder renews it, and stops by itself when the last renewal it
# began
# is `HOLDER_SHARE` of the time to live ago. Others may take it when they have seen it unchanged for the whole time to
# live. Nobody compares clocks of two machines: each measures a time that passed on its own, so only clocks that run at
# very different speeds could make two holders; and even then the checkpoint refuses the older of them (`partition`).


HOLDER_SHARE = 0.8
RENEW_SHARE = 0.25
_FREE = ""


class LeaseRecord(Struct, frozen=True):
    """What the key says. `epoch` grows with every holder; `process` tells two lives of one worker apart."""

    owner: str
    process: str
    epoch: int


class PartitionLease(Struct):
    """A lease that is held. `until_s` is boot time: it also runs out while the machine sleeps."""

    partition: int
    epoch: int
    revision: int
    until_s: float
    renew_s: float  # when to renew it next

    def is_valid(self, now_s: float) -> bool:
        return now_s < self.until_s


class PartitionRenewal(Enum):
    RENEWED = "renewed"
    UNKNOWN = "unknown"  # no answer; it is valid until it runs out
    LOST = "lost"


class Leases:
    """The hands of one worker. `inherits`: no other process of this worker's name lives, so its leases are ours."""

    def __init__(
        self, bucket: Bucket, worker: str, process: str, clock: Clock, *, ttl_s: float, inherits: bool
    ) -> None:
        self._bucket = bucket
        self._worker = worker
        self._process = process
        self._clock = clock
        self._ttl_s = ttl_s
        self._inherits = inherits
        self._seen: dict[int, tuple[int, float]] = {}  # revision, and since when we see it unchanged

    async def take(self, partition: int) -> PartitionLease | None:
        """The lease, or None while another one holds it or nobody answers."""
        try:
            entry = await self._bucket.get(lease_key(partition))
            if not self._may_take(partition, entry):
                return None
            before = _read(entry)
            return await self._write(partition, before.epoch + 1, entry.revision if entry else 0)
        except (Conflict, Unreachable):
            return None

    async def renew(self, lease: PartitionLease) -> PartitionRenewal:
        """Changes `lease` itself. After LOST nothing more may be done in its name."""
        now_s = self._clock.boot_s()
        if not lease.is_valid(now_s):
            return PartitionRenewal.LOST
        try:
            renewed = await self._write(lease.partition, lease.epoch, lease.revision)
        except Unreachable:
            return PartitionRenewal.UNKNOWN
        except Conflict:
            return await self._find_out(lease)
        lease.revision, lease.until_s, lease.renew_s = renewed.revision, renewed.until_s, renewed.renew_s
        return PartitionRenewal.RENEWED

    async def give_back(self, lease: PartitionLease) -> None:
        """Another may have it at once. If this cannot be said, it runs out instead."""
        record = msgspec.json.encode(LeaseRecord(_FREE, "", lease.epoch))
        with contextlib.suppress(Conflict, Unreachable):
            await self._bucket.put(lease_key(lease.partition), record, revision=lease.revision)

    def _may_take(self, partition: int, entry: KeyValue | None) -> bool:
        record = _read(entry)
        if entry is None or record.owner == _FREE or (self._inherits and record.owner == self._worker):
            return True
        now_s = self._clock.boot_s()
        revision, since_s = self._seen.get(partition, (-1, now_s))
        if revision != entry.revision:
            self._seen[partition] = (entry.revision, now_s)
            return False
        return now_s - since_s >= self._ttl_s

    async def _write(self, partition: int, epoch: int, revision: int) -> PartitionLease:
        began_s = self._clock.boot_s()  # before it is written, so that we never believe in it for too long
        record = msgspec.json.encode(LeaseRecord(self._worker, self._process, epoch))
        written = await self._bucket.put(lease_key(partition), record, revision=revision)
        until_s, renew_s = began_s + HOLDER_SHARE * self._ttl_s, began_s + RENEW_SHARE * self._ttl_s
        return PartitionLease(partition, epoch, written, until_s, renew_s)

    async def _find_out(self, lease: PartitionLease) -> PartitionRenewal:
        """Refused: either somebody took it, or an earlier renewal of ours arrived after all."""
        try:
            entry = await self._bucket.get(lease_key(lease.partition))
        except Unreachable:
            return PartitionRenewal.UNKNOWN
        record = _read(entry)
        if entry is None or (record.process, record.epoch) != (self._process, lease.epoch):
            return PartitionRenewal.LOST
        lease.revision = max(lease.revision, entry.revision)
        return PartitionRenewal.UNKNOWN


def _read(entry: KeyValue | None) -> LeaseRecord:
    """What cannot be read is nobody's, like what is not there; its revision still guards the next write."""
    try:
        return msgspec.json.decode(entry.value, type=LeaseRecord) if entry else LeaseRecord(_FREE, "", 0)
    except msgspec.MsgspecError:
        return LeaseRecord(_FREE, "", 0)


OUTBOX_MAX = 256  # windows that nobody took yet; beyond it, or beyond these bytes, no source gets credit
OUTBOX_BYTES_FULL = 1 << 20
OUTBOX_BYTES_MAX = 3 << 20  # what still comes then is not taken: its source sends it again. State needs room beside it
ASIDE_MAX = 1024
DELIVERED_TOGETHER = 16  # after a delay the windows that wait need one round trip, not one each
RETRY_S = 0.2


class PartitionLost(Exception):
    """The lease ran out, or another holder wrote: nothing more may be done in this partition's name."""


class Undelivered(Exception):
    """The next stage did not take it; it is tried again."""


class FeatureLane(Protocol):
    """Where features go. Returns when they are as safe there as the lane promises. Raises Undelivered, and then gets
    all of them again under the same ids."""

    async def deliver(self, partition: int, some: Sequence[OutboxMessage]) -> None: ...


class Partition:
    """One partition, held by us. `take`, `tick` and `credits` never wait; one task calls `settle` again and again."""

    def __init__(
        self,
        stage: SenseStage,
        lease: PartitionLease,
        bucket: Bucket,
        lane: FeatureLane,
        clock: Clock,
        *,
        is_exact: bool = True,
        spans: WindowSpans | None = None,
    ) -> None:
        self.stage = stage
        self.lease = lease
        self.number = lease.partition
        self.alerts: deque[StageAlert] = deque(maxlen=ASIDE_MAX)
        self.aside: deque[SideBatch] = deque(maxlen=ASIDE_MAX)
        self._receiving = Receiving(lease.epoch)
        self._bucket = bucket
        self._lane = lane
        self._clock = clock
        self._is_exact = is_exact
        self._spans = spans
        self._followed: dict[int, Made] = {}  # windows on their way, by number
        self._schema = feature_schema(stage.settings)
        self._revision = 0
        self._fresh: list[OutboxMessage] = []  # not saved yet
        self._outbox: deque[OutboxMessage] = deque()  # saved, not delivered yet
        self._credits: list[Credit] = []
        self._unsent_bytes = 0
        self.not_taken = 0  # messages that came while there was no room
        self._made_s: dict[int, float] = {}  # when the features of a window were made
        self.latency = Latency()  # from there until the lane had them

    async def open(self) -> None:
        """Reads what was saved and makes it ours. Raises PartitionLost, Unreachable or E0741."""
        entry = await self._bucket.get(checkpoint_key(self.number))
        checkpoint: SenseCheckpoint | None = None
        if entry is not None:
            saved, checkpoint = decode_saved(entry.value)
            self._outbox.extend(saved.outbox)
            self._unsent_bytes = sum(len(sent.message) for sent in saved.outbox)
            self._revision = entry.revision
            if saved.epoch >= self.lease.epoch:
                raise PartitionLost(f"partition {self.number}: written by a later holder")
        now_s = self._clock.monotonic_s()
        if checkpoint is not None:
            self.stage.restore(checkpoint, now_s)
            self._receiving.resume({one.source: one.seq for one in checkpoint.sources}, now_s)
        await self._store(checkpoint, list(self._outbox))

    # Never waiting.

    def take(self, message: Buffer) -> None:
        """One message of a source. Raises PartitionLost where the lease has run out."""
        self._turn((message,))

    def tick(self) -> None:
        """Time passes."""
        self._turn(())

    def credits(self) -> list[Credit]:
        """What to tell sources now. Nothing while the next stage does not take our features."""
        found, self._credits = self._credits, []
        return [] if self.is_full else found

    def learn_policy(self, table: PolicyTable) -> None:
        found = RunnerTurn()
        for outcome in self.stage.learn_policy(table, now_ns=self._now_ns(), now_s=self._clock.monotonic_s()):
            found.add(outcome)
        self._keep(found)

    @property
    def is_full(self) -> bool:
        return self.unsent >= OUTBOX_MAX or self._unsent_bytes >= OUTBOX_BYTES_FULL

    @property
    def unsent(self) -> int:
        """Windows whose features wait to be delivered."""
        return len(self._fresh) + len(self._outbox)

    # Waiting.

    async def settle(self, *, now: bool = False) -> None:
        """Saves if there is a reason to, or if it must be `now`; then delivers. Raises PartitionLost or Undelivered.

        In the hot lane `save` and `deliver` may run side by side: a decision need not wait for a checkpoint there."""
        await self.save(now=now)
        await self.deliver()

    async def save(self, *, now: bool = False) -> None:
        """The first half of `settle`."""
        self._check_lease()
        due = self.stage.checkpoint_due(self._clock.monotonic_s())
        if now or due or (self._is_exact and self._fresh):
            # No await between these two lines: the state has closed exactly the windows whose features are with it.
            checkpoint, unsent = self.stage.snapshot(), [*self._outbox, *self._fresh]
            self._outbox, self._fresh = deque(unsent), []
            await self._store(checkpoint, unsent)
            self._receiving.checkpointed({one.source: one.seq for one in checkpoint.sources})

    async def deliver(self) -> None:
        """The second half."""
        while self._outbox:
            self._check_lease()
            some = tuple(islice(self._outbox, DELIVERED_TOGETHER))
            await self._lane.deliver(self.number, some)
            for sent in some:
                self._outbox.popleft()
                self._unsent_bytes -= len(sent.message)
                if (made_s := self._made_s.pop(sent.seq, None)) is not None:
                    self.latency.add((self._clock.monotonic_s() - made_s) * 1000)
                if self._followed and self._spans is not None and (made := self._followed.pop(sent.seq, None)):
                    self._spans.sensed(self.number, made)

    async def close(self) -> None:
        """The last value before the lease is given back: nothing has to be replayed."""
        await self.settle(now=True)

    def _turn(self, messages: tuple[Buffer, ...]) -> None:
        self._check_lease()
        if self._unsent_bytes >= OUTBOX_BYTES_MAX:
            self.not_taken += len(messages)
            return
        now_ns = self._now_ns()
        found = turn(self.stage, messages, now_ns=now_ns, now_s=self._clock.monotonic_s(), receiving=self._receiving)
        self._keep(found, now_ns)

    def _keep(self, found: RunnerTurn, began_ns: int = 0) -> None:
        lane = BatchLane.DURABLE if self._is_exact else BatchLane.HOT
        for batch in found.features:
            message = encode_features(batch, self._schema, source=self.stage.name.source, lane=lane)
            (self._fresh if self._is_exact else self._outbox).append(OutboxMessage(batch.seq, message))
            self._made_s[batch.seq] = self._clock.monotonic_s()
            self._unsent_bytes += len(message)
            if self._spans is not None and (trace_id := self._spans.trace_of(batch.window_end_ns)) is not None:
                self._followed[batch.seq] = Made(trace_id, began_ns or self._now_ns(), len(batch.device))
        self.alerts.extend(found.alerts)
        self.aside.extend(found.aside)
        self._credits += found.credits

    async def _store(self, checkpoint: SenseCheckpoint | None, sent: list[OutboxMessage]) -> None:
        """Until it is stored or known to be refused. The same bytes each time, so that our own write is recognised."""
        compress = self.stage.settings.checkpoint.compress
        value = encode_saved(self.lease.epoch, checkpoint, sent, compress=compress)
        key = checkpoint_key(self.number)
        while True:
            self._check_lease()
            try:
                self._revision = await self._bucket.put(key, value, revision=self._revision)
                return
            except Unreachable:
                await self._clock.sleep(RETRY_S)
            except Conflict:
                if await self._is_ours(key, value):
                    return

    async def _is_ours(self, key: str, value: bytes) -> bool:
        """A write of ours whose answer got lost is stored; anything else is another holder's."""
        try:
            entry = await self._bucket.get(key)
        except Unreachable:
            return False
        if entry is not None and entry.value == value:
            self._revision = entry.revision
            return True
        if entry is None or entry.revision > self._revision:
            raise PartitionLost(f"partition {self.number}: written by another holder")
        return False  # the read was older than our write: ask again

    def _check_lease(self) -> None:
        if not self.lease.is_valid(self._clock.boot_s()):
            raise PartitionLost(f"lease of partition {self.number} expired")

    def _now_ns(self) -> int:
        return round(self._clock.now().timestamp() * NS_PER_S)
