"""Which devices does the pipeline know now? What an operator added since a worker was started."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from harch.pipelines.workers.bucket import Bucket
from harch.pipelines.workers.names import DEVICES_KEY


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
