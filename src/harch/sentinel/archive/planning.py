"""Which files should be merged, and which go? Decided from the list of files alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from harch.sentinel.archive.entries import FileEntry
from harch.sentinel.archive.limits import Keeping

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
MERGE_MIN = 4  # files of one hour before they are merged


def expired(files: Sequence[FileEntry], keeping: Keeping, now_ns: int) -> list[FileEntry]:
    """Files whose newest row was kept long enough, and then the oldest until the rest is small enough."""
    gone = [one for one in files if keeping.keep_ns is not None and one.kept_from_ns < now_ns - keeping.keep_ns]
    if keeping.size_bytes_max is None:
        return gone
    left = sorted((one for one in files if one not in gone), key=lambda one: one.end_ns)
    size = sum(one.disk_bytes for one in left)
    for one in left:
        if size <= keeping.size_bytes_max:
            break
        gone.append(one)
        size -= one.disk_bytes
    return gone


def merges(files: Sequence[FileEntry], keeping: Keeping, now_ns: int) -> list[list[FileEntry]]:
    """Groups of small files to make one of each: of an hour, and of a whole day once that is over.

    Only neighbours by arrival are put together, so that lines of the same time stay in the order they came in.
    """
    planned: list[list[FileEntry]] = []
    for group in _grouped(files, HOUR_NS):
        runs = _runs(group, keeping.merge_bytes_max)
        planned += [run for run in runs if len(run) >= MERGE_MIN or _is_over(run, now_ns)]
    if planned:
        return planned
    past = [one for one in files if one.end_ns // DAY_NS * DAY_NS + 2 * DAY_NS <= now_ns]
    return [run for group in _grouped(past, DAY_NS) for run in _runs(group, keeping.merge_bytes_max)]


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
