"""Which files are there, which should be merged, and which go? Decided from the list of files alone."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from harch.sentinel.archive.limits import ArchivePolicy

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


class ArchiveManifest(msgspec.Struct, frozen=True):
    version: int = 1
    segment: int = 0  # older segments of the log are done with: their rows are in files
    next_file: int = 1
    next_erasure: int = 1
    files: tuple[FileEntry, ...] = ()
    erasures: tuple[Erasure, ...] = ()


# Which files should be merged, and which go? Decided from the list of files alone.


HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
MERGE_MIN = 4  # files of one hour before they are merged


def expired(files: Sequence[FileEntry], policy: ArchivePolicy, now_ns: int) -> list[FileEntry]:
    """Files whose newest row was kept long enough, and then the oldest until the rest is small enough."""
    gone = [one for one in files if policy.keep_ns is not None and one.kept_from_ns < now_ns - policy.keep_ns]
    if policy.size_bytes_max is None:
        return gone
    left = sorted((one for one in files if one not in gone), key=lambda one: one.end_ns)
    size = sum(one.disk_bytes for one in left)
    for one in left:
        if size <= policy.size_bytes_max:
            break
        gone.append(one)
        size -= one.disk_bytes
    return gone


def merges(files: Sequence[FileEntry], policy: ArchivePolicy, now_ns: int) -> list[list[FileEntry]]:
    """Groups of small files to make one of each: of an hour, and of a whole day once that is over.

    Only neighbours by arrival are put together, so that lines of the same time stay in the order they came in.
    """
    planned: list[list[FileEntry]] = []
    for group in _grouped(files, HOUR_NS):
        runs = _runs(group, policy.merge_bytes_max)
        planned += [run for run in runs if len(run) >= MERGE_MIN or _is_over(run, now_ns)]
    if planned:
        return planned
    past = [one for one in files if one.end_ns // DAY_NS * DAY_NS + 2 * DAY_NS <= now_ns]
    return [run for group in _grouped(past, DAY_NS) for run in _runs(group, policy.merge_bytes_max)]


def _is_over(run: Sequence[FileEntry], now_ns: int) -> bool:
    """Whether late rows of that hour have become rare."""
    return max(one.end_ns for one in run) + 2 * HOUR_NS < now_ns


def _grouped(files: Iterable[FileEntry], span_ns: int) -> list[list[FileEntry]]:
    """Files that lie in one window as a whole, by window and then by arrival."""
    inside = [one for one in files if one.start_ns // span_ns == one.end_ns // span_ns]
    inside.sort(key=lambda one: (one.start_ns // span_ns, one.first))
    return [list(group) for _, group in groupby(inside, key=lambda one: one.start_ns // span_ns)]


def _runs(group: Sequence[FileEntry], bytes_max: int) -> list[list[FileEntry]]:
    runs: list[list[FileEntry]] = []
    run: list[FileEntry] = []
    for one in group:
        if run and sum(other.raw_bytes for other in run) + one.raw_bytes > bytes_max:
            runs.append(run)
            run = []
        run.append(one)
    runs.append(run)
    return [run for run in runs if len(run) > 1]
