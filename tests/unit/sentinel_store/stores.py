"""Stores for tests: databases in folders, with disks that fail when told to, and what they hold as plain values."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.selection import Selection
from harch.sentinel.store.blocks.tenant import TenantBlocks
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.wal.segments import SystemDisk
from harch.testing.clock import SimClock

ALL_TIMES = (int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max))
ANY_AGE = TenantLimits(out_of_order_ms=None, samples_in_memory_max=1 << 20, series_max=1 << 14)

Content = dict[Labels, dict[int, int]]


class TestDisk(SystemDisk):
    """Does not wait for the platter, and is full when told to be."""

    __test__ = False

    def __init__(self) -> None:
        self.full = False
        self.writes_until_full: int | None = None

    def write(self, file: int, parts: list[memoryview | bytes], offset: int) -> None:
        if self.full:
            os.pwrite(file, bytes(parts[0])[:3], offset)  # a part of it arrives all the same
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(file, b"".join(bytes(piece) for piece in parts), offset)


def open_database(folder: Path, *, limits: TenantLimits = ANY_AGE, disk: SystemDisk | None = None) -> TenantDatabase:
    return TenantDatabase(
        folder, TenantBlocks.open(folder / "blocks"), SimClock(), limits=limits, disk=disk or TestDisk()
    )


def matcher(name: str, value: str, kind: MatchKind = MatchKind.EQUAL) -> Matcher:
    return Matcher(kind, name, value)


def content(selection: Selection) -> Content:
    """Samples by labels: time -> bits of the value. Checks on the way that times ascend."""
    found: Content = {}
    samples = selection.samples
    for place in range(selection.series.count):
        first, count = int(samples.first[place]), int(samples.count[place])
        times = samples.timestamps[first : first + count]
        assert (np.diff(times) > 0).all()
        values = samples.values[first : first + count].view(np.uint64)
        if count:
            found[selection.series.labels_of(place)] = dict(zip(times.tolist(), values.tolist(), strict=True))
    return found


def everything(database: TenantDatabase, matchers: Sequence[Matcher] = ()) -> Content:
    return content(database.select(matchers, *ALL_TIMES, limit=1 << 40))
