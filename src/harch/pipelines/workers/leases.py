"""Who may advance a partition? Whoever holds its lease, and only as long as it can say so itself.

A lease is one key, written by compare-and-set. Its holder renews it, and stops by itself when the last renewal it began
is `HOLDER_SHARE` of the time to live ago. Others may take it when they have seen it unchanged for the whole time to
live. Nobody compares clocks of two machines: each measures a time that passed on its own, so only clocks that run at
very different speeds could make two holders; and even then the checkpoint refuses the older of them (`partition`).
"""

from __future__ import annotations

import contextlib
from enum import Enum

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.pipelines.workers.bucket import Bucket, Conflict, KeyValue, Unreachable
from harch.pipelines.workers.names import lease_key

HOLDER_SHARE = 0.8
RENEW_SHARE = 0.25
_FREE = ""


class LeaseRecord(Struct, frozen=True):
    """What the key says. `epoch` grows with every holder; `process` tells two lives of one worker apart."""

    owner: str
    process: str
    epoch: int


class Lease(Struct):
    """A lease that is held. `until_s` is boot time: it also runs out while the machine sleeps."""

    partition: int
    epoch: int
    revision: int
    until_s: float
    renew_s: float  # when to renew it next

    def is_valid(self, now_s: float) -> bool:
        return now_s < self.until_s


class Renewal(Enum):
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

    async def take(self, partition: int) -> Lease | None:
        """The lease, or None while another one holds it or nobody answers."""
        try:
            entry = await self._bucket.get(lease_key(partition))
            if not self._may_take(partition, entry):
                return None
            before = _read(entry)
            return await self._write(partition, before.epoch + 1, entry.revision if entry else 0)
        except (Conflict, Unreachable):
            return None

    async def renew(self, lease: Lease) -> Renewal:
        """Changes `lease` itself. After LOST nothing more may be done in its name."""
        now_s = self._clock.boot_s()
        if not lease.is_valid(now_s):
            return Renewal.LOST
        try:
            renewed = await self._write(lease.partition, lease.epoch, lease.revision)
        except Unreachable:
            return Renewal.UNKNOWN
        except Conflict:
            return await self._find_out(lease)
        lease.revision, lease.until_s, lease.renew_s = renewed.revision, renewed.until_s, renewed.renew_s
        return Renewal.RENEWED

    async def give_back(self, lease: Lease) -> None:
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

    async def _write(self, partition: int, epoch: int, revision: int) -> Lease:
        began_s = self._clock.boot_s()  # before it is written, so that we never believe in it for too long
        record = msgspec.json.encode(LeaseRecord(self._worker, self._process, epoch))
        written = await self._bucket.put(lease_key(partition), record, revision=revision)
        until_s, renew_s = began_s + HOLDER_SHARE * self._ttl_s, began_s + RENEW_SHARE * self._ttl_s
        return Lease(partition, epoch, written, until_s, renew_s)

    async def _find_out(self, lease: Lease) -> Renewal:
        """Refused: either somebody took it, or an earlier renewal of ours arrived after all."""
        try:
            entry = await self._bucket.get(lease_key(lease.partition))
        except Unreachable:
            return Renewal.UNKNOWN
        record = _read(entry)
        if entry is None or (record.process, record.epoch) != (self._process, lease.epoch):
            return Renewal.LOST
        lease.revision = max(lease.revision, entry.revision)
        return Renewal.UNKNOWN


def _read(entry: KeyValue | None) -> LeaseRecord:
    """What cannot be read is nobody's, like what is not there; its revision still guards the next write."""
    try:
        return msgspec.json.decode(entry.value, type=LeaseRecord) if entry else LeaseRecord(_FREE, "", 0)
    except msgspec.MsgspecError:
        return LeaseRecord(_FREE, "", 0)
