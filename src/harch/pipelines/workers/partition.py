"""How does one partition live through crashes of its workers? State, outbox and lease, in an order that loses nothing.

1. `open` reads what was saved and writes it again under its own epoch: from then on the store refuses an older holder.
2. `take` counts events in memory only. Sources keep them until step 3 has told them otherwise.
3. `settle` saves state and new features as one value, and only then delivers the features, in order. Whoever opens the
   value after a crash delivers what is left of them under the same ids, so each window is told once, as it was closed.

In the hot lane features are delivered at once and may be told twice after a crash, under the same id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from harch.base.clock import Clock
from harch.pipelines.sense.checkpoint import Checkpoint
from harch.pipelines.sense.features import encode_features, feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.outcome import SideBatch, StageAlert
from harch.pipelines.sense.receiving import Receiving
from harch.pipelines.sense.runner import Turn, turn
from harch.pipelines.sense.settings import NS_PER_S
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.credit import Credit
from harch.pipelines.wire.header import Lane
from harch.pipelines.workers.bucket import Bucket, Conflict, Unreachable
from harch.pipelines.workers.leases import Lease
from harch.pipelines.workers.names import checkpoint_key
from harch.pipelines.workers.saved import Told, decode_saved, encode_saved
from harch.pipelines.workers.status import Latency
from harch.pipelines.workers.window_spans import Made, WindowSpans

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

    async def deliver(self, partition: int, some: Sequence[Told]) -> None: ...


class Partition:
    """One partition, held by us. `take`, `tick` and `credits` never wait; one task calls `settle` again and again."""

    def __init__(
        self,
        stage: SenseStage,
        lease: Lease,
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
        self._fresh: list[Told] = []  # not saved yet
        self._outbox: deque[Told] = deque()  # saved, not delivered yet
        self._credits: list[Credit] = []
        self._untold_bytes = 0
        self.not_taken = 0  # messages that came while there was no room
        self._made_s: dict[int, float] = {}  # when the features of a window were made
        self.latency = Latency()  # from there until the lane had them

    async def open(self) -> None:
        """Reads what was saved and makes it ours. Raises PartitionLost, Unreachable or E0741."""
        entry = await self._bucket.get(checkpoint_key(self.number))
        checkpoint: Checkpoint | None = None
        if entry is not None:
            saved, checkpoint = decode_saved(entry.value)
            self._outbox.extend(saved.outbox)
            self._untold_bytes = sum(len(told.message) for told in saved.outbox)
            self._revision = entry.revision
            if saved.epoch >= self.lease.epoch:
                raise PartitionLost(f"partition {self.number}: a later holder has written")
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
        found = Turn()
        for outcome in self.stage.learn_policy(table, now_ns=self._now_ns(), now_s=self._clock.monotonic_s()):
            found.add(outcome)
        self._keep(found)

    @property
    def is_full(self) -> bool:
        return self.untold >= OUTBOX_MAX or self._untold_bytes >= OUTBOX_BYTES_FULL

    @property
    def untold(self) -> int:
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
            checkpoint, untold = self.stage.snapshot(), [*self._outbox, *self._fresh]
            self._outbox, self._fresh = deque(untold), []
            await self._store(checkpoint, untold)
            self._receiving.checkpointed({one.source: one.seq for one in checkpoint.sources})

    async def deliver(self) -> None:
        """The second half."""
        while self._outbox:
            self._check_lease()
            some = tuple(islice(self._outbox, DELIVERED_TOGETHER))
            await self._lane.deliver(self.number, some)
            for told in some:
                self._outbox.popleft()
                self._untold_bytes -= len(told.message)
                if (made_s := self._made_s.pop(told.seq, None)) is not None:
                    self.latency.add((self._clock.monotonic_s() - made_s) * 1000)
                if self._followed and self._spans is not None and (made := self._followed.pop(told.seq, None)):
                    self._spans.sensed(self.number, made)

    async def close(self) -> None:
        """The last value before the lease is given back: nothing has to be replayed."""
        await self.settle(now=True)

    def _turn(self, messages: tuple[Buffer, ...]) -> None:
        self._check_lease()
        if self._untold_bytes >= OUTBOX_BYTES_MAX:
            self.not_taken += len(messages)
            return
        now_ns = self._now_ns()
        found = turn(self.stage, messages, now_ns=now_ns, now_s=self._clock.monotonic_s(), receiving=self._receiving)
        self._keep(found, now_ns)

    def _keep(self, found: Turn, began_ns: int = 0) -> None:
        lane = Lane.DURABLE if self._is_exact else Lane.HOT
        for batch in found.features:
            message = encode_features(batch, self._schema, source=self.stage.name.source, lane=lane)
            (self._fresh if self._is_exact else self._outbox).append(Told(batch.seq, message))
            self._made_s[batch.seq] = self._clock.monotonic_s()
            self._untold_bytes += len(message)
            if self._spans is not None and (trace_id := self._spans.trace_of(batch.window_end_ns)) is not None:
                self._followed[batch.seq] = Made(trace_id, began_ns or self._now_ns(), len(batch.device))
        self.alerts.extend(found.alerts)
        self.aside.extend(found.aside)
        self._credits += found.credits

    async def _store(self, checkpoint: Checkpoint | None, told: list[Told]) -> None:
        """Until it is stored or known to be refused. The same bytes each time, so that our own write is recognised."""
        compress = self.stage.settings.checkpoint.compress
        value = encode_saved(self.lease.epoch, checkpoint, told, compress=compress)
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
            raise PartitionLost(f"partition {self.number}: another holder has written")
        return False  # the read was older than our write: ask again

    def _check_lease(self) -> None:
        if not self.lease.is_valid(self._clock.boot_s()):
            raise PartitionLost(f"the lease of partition {self.number} ran out")

    def _now_ns(self) -> int:
        return round(self._clock.now().timestamp() * NS_PER_S)
