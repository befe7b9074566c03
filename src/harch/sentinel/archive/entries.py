"""What does the list of files say? Files with their times and sizes, erasures, and from where on the log is needed."""

from __future__ import annotations

import msgspec

LATE_NS = 86_400 * 10**9


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file with its index. `first` orders files by the arrival of what they hold."""

    name: str
    first: int
    start_ns: int
    end_ns: int  # of the newest row, included
    rows: int
    raw_bytes: int
    disk_bytes: int
    clean_to: int = 0  # erasures up to this number have been carried out in it
    came_ns: int = 0  # when the last of its rows came from memory; 0: before this was noted

    @property
    def kept_from_ns(self) -> int:
        """When retention begins to count: with the newest row's own time, or with its arrival if it came late."""
        return self.came_ns if self.came_ns - self.end_ns > LATE_NS else self.end_ns


class Erasure(msgspec.Struct, frozen=True):
    """What must not be answered any more, and is taken out of files that are older than the erasure."""

    number: int
    content: bytes  # as the store of lines or of spans wrote it


class Manifest(msgspec.Struct, frozen=True):
    version: int = 1
    segment: int = 0  # older segments of the log are done with: their rows are in files
    next_file: int = 1
    next_erasure: int = 1
    files: tuple[FileEntry, ...] = ()
    erasures: tuple[Erasure, ...] = ()
