"""Where do workers agree, and what do they learn while they run?

A key-value bucket of JetStream (of two writes to the same revision, one is refused), policy tables and devices.
"""

from __future__ import annotations

import contextlib

import msgspec
from msgspec import Struct

from harch.pipelines.client.bucket import Bucket, Conflict
from harch.pipelines.sense.gate import VERSIONS_KEPT, PolicyTable
from harch.pipelines.workers.names import DEVICES_KEY, POLICIES_KEY, POLICY_KEY

# Which hub is which bit, in all versions that may still be under way? What a worker was started with, and what others
# know.
#
# Batches, windows and checkpoints name hubs by the numbering of one policy version. Whoever meets another version than
# its own needs that table: without it, nothing is permitted. So all workers keep the last few in one key.


class Policies:
    """All tables that this worker knows; `current` is the newest."""

    def __init__(self, own: PolicyTable) -> None:
        self._tables = {own.version: own}

    @property
    def tables(self) -> list[PolicyTable]:
        """Oldest first, the last few of them."""
        return [self._tables[version] for version in sorted(self._tables)][-VERSIONS_KEPT:]

    @property
    def current(self) -> PolicyTable:
        return self._tables[max(self._tables)]

    async def look(self, bucket: Bucket) -> list[PolicyTable]:
        """Tables that are new to us; what others lack is sent to them. Raises Unreachable."""
        known = set(self._tables)
        wanted = await bucket.get(POLICY_KEY)
        if wanted is not None:
            self._learn(msgspec.json.decode(wanted.value, type=PolicyTable))
        shared = await bucket.get(POLICIES_KEY)
        theirs = msgspec.json.decode(shared.value, type=list[PolicyTable]) if shared is not None else []
        for table in theirs:
            self._learn(table)
        if self.tables != theirs:
            with contextlib.suppress(Conflict):  # another worker was faster; the next look sees what it wrote
                revision = shared.revision if shared is not None else 0
                await bucket.put(POLICIES_KEY, msgspec.json.encode(self.tables), revision=revision)
        return [table for table in self.tables if table.version not in known]

    def renumbered(self, mask: int, version: int, to: PolicyTable) -> int:
        """The same hubs by the bits of another table; those that either does not know are gone."""
        table = self._tables.get(version)
        hubs = [hub for hub, bit in table.bits.items() if mask >> bit & 1] if table is not None else []
        return sum(1 << to.bits[hub] for hub in hubs if hub in to.bits)

    def _learn(self, table: PolicyTable) -> None:
        self._tables.setdefault(table.version, table)


# Which devices does the pipeline know now? What an operator added since a worker was started.


class KnownDevices(Struct, frozen=True):
    """All of them, in their order: a number never changes its meaning."""

    revision: int
    devices: tuple[str, ...]


class DeviceNews:
    """`devices` is what this worker knows; it only grows."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices
        self._revision = 0

    async def look(self, bucket: Bucket) -> bool:
        """True if there are more than before. Raises Unreachable."""
        entry = await bucket.get(DEVICES_KEY)
        if entry is None:
            return False
        found = msgspec.json.decode(entry.value, type=KnownDevices)
        if found.revision <= self._revision or found.devices[: len(self.devices)] != self.devices:
            return False  # of a file that is no longer in force
        self._revision = found.revision
        has_more = len(found.devices) > len(self.devices)
        self.devices = found.devices
        return has_more
