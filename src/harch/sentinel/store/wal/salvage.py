"""What of a segment can be read? All of it, mostly; else its torn end is told from damage, and damage from the rest.

A torn end is what a crash leaves of a write that nobody was told of: it stands at the end, and is shorter than it says
or empty. Everything else that is not as it was written is damage: it is put right with the segment's guard, or left out
as a gap, with the file set aside for people. Reading goes on behind a gap, with the next frame that is whole.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harch.base.set_aside import SUFFIX
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.checksum import crc32c
from harch.sentinel.store.wal.guard import BLOCK, Guard, guard_path, guarded_numbers, is_damaged_guard, read_guard
from harch.sentinel.store.wal.segments import FRAME, MAGIC, frame_end, segment_numbers, segment_path, sync_folder

DAMAGED_FILES_MAX = 16  # of one folder: the newest are kept
_REPAIRS_MAX = 256  # of one segment: beyond that, the disk is the problem
_WINDOW = 1 << 20
_KIND_MAX = 31  # every payload begins with the kind of its first record, a small number
_SCAN_BYTES_MAX = 1 << 30  # that looking for the next frame may run checksums over, for one segment

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment that was not as it was written."""

    number: int
    lost_bytes: int  # 0: all could be put right

    @property
    def is_restored(self) -> bool:
        return self.lost_bytes == 0


@dataclass(slots=True)
class Segment:
    """What a segment holds."""

    data: Array
    frames: list[tuple[int, int]] = field(default_factory=list)  # start and end of each payload
    gaps: list[tuple[int, int]] = field(default_factory=list)  # what cannot be read
    torn_bytes: int = 0  # at the end: what was never acknowledged
    repairs: int = 0

    def pieces(self) -> Iterator[tuple[int, int, bool]]:
        """Start and end of each payload, and whether something before it is lost."""
        ends = [end for _, end in self.gaps]
        for start, end in self.frames:
            lost = bool(ends) and ends[0] <= start - FRAME.size
            while ends and ends[0] <= start - FRAME.size:
                ends.pop(0)
            yield start, end, lost


def read_segment(path: Path, damaged: list[DamagedSegment]) -> Segment:
    """Reads what can be read, cuts a torn end off, and sets aside and notes what is damaged."""
    guard = read_guard(path)
    if is_damaged_guard(path):
        _log.error("E0619: %s is damaged; what it guards is read without it", guard_path(path))
    size = path.stat().st_size
    data = _read(path, max(size, guard.synced_bytes if guard else 0))
    segment = Segment(data)
    _Reading(segment, guard, size).read()
    number = int(path.stem)
    if segment.gaps or segment.repairs:
        lost = sum(end - start for start, end in segment.gaps)
        damaged.append(DamagedSegment(number, lost))
        kept = _set_aside(path)
        if lost:
            _log.error("E0619: %d bytes of %s are damaged and cannot be read; kept as %s", lost, path, kept.name)
        else:
            _rewrite(path, data[: len(data) - segment.torn_bytes])
            _log.error("E0619: %s was damaged and could be put right; as it was, it is kept as %s", path, kept.name)
    elif segment.torn_bytes:
        _log.warning("the end of %s was never acknowledged and is cut off: %d bytes", path, segment.torn_bytes)
        os.truncate(path, size - segment.torn_bytes)
    return segment


def note_unreadable(path: Path, size: int, damaged: list[DamagedSegment]) -> None:
    """A part of a segment that is as it was written, and cannot be understood."""
    damaged.append(DamagedSegment(int(path.stem), size))
    _log.error("E0619: %d bytes of %s make no sense; kept as %s", size, path, _set_aside(path).name)


def note_missing(folder: Path, first: int, damaged: list[DamagedSegment]) -> None:
    """Segments of which only the guard is left, from the number on that is needed."""
    for number in sorted(set(guarded_numbers(folder)) - set(segment_numbers(folder))):
        path = segment_path(folder, number)
        guard = read_guard(path)
        if number >= first and guard is not None and guard.synced_bytes:
            damaged.append(DamagedSegment(number, guard.synced_bytes))
            _log.error("E0619: %s is gone, and with it %d bytes", path, guard.synced_bytes)
        guard_path(path).unlink(missing_ok=True)


def damaged_files(folder: Path) -> list[Path]:
    """What was set aside and waits for somebody to look at it."""
    return sorted(folder.glob(f"*{SUFFIX}"))


class _Reading:
    """One pass over a segment, from frame to frame."""

    def __init__(self, segment: Segment, guard: Guard | None, size: int) -> None:
        self._segment, self._guard, self._size = segment, guard, size
        self._data = segment.data
        self._view = memoryview(self._data)
        self._synced = guard.synced_bytes if guard else 0
        self._scan_left = _SCAN_BYTES_MAX

    def read(self) -> None:
        if not len(self._data):
            return
        at = self._read_magic()
        while at < len(self._data):
            end = frame_end(self._view, at)
            if end < 0 and at < self._synced and self._restore(at):
                end = frame_end(self._view, at)
            if end >= 0:
                self._segment.frames.append((at + FRAME.size, end))
                at = end
                continue
            following = self._next_frame(at)
            if following < 0 and at >= self._synced and self._is_torn(at):
                self._segment.torn_bytes = self._size - at
                return
            self._segment.gaps.append((at, following if following >= 0 else len(self._data)))
            at = self._segment.gaps[-1][1]

    def _read_magic(self) -> int:
        """Where the first frame begins."""
        begin = len(MAGIC)
        is_whole = bytes(self._view[:begin]) == MAGIC
        if not is_whole and self._guard and self._guard.restore(self._data, 0, 0, self._has_magic):
            self._segment.repairs += 1
        elif not is_whole and (len(self._data) > begin or self._synced):
            self._segment.gaps.append((0, begin))
        elif not is_whole:
            self._segment.torn_bytes = self._size
            return len(self._data)
        return begin

    def _has_magic(self) -> bool:
        return bytes(self._view[: len(MAGIC)]) == MAGIC

    def _restore(self, at: int) -> bool:
        if self._guard is None or self._segment.repairs >= _REPAIRS_MAX:
            return False
        length = FRAME.unpack_from(self._view, at)[0] if at + FRAME.size <= len(self._data) else 0
        end = min(at + FRAME.size + length, len(self._data))
        found = self._guard.restore(self._data, at, end, lambda: frame_end(self._view, at) >= 0)
        self._segment.repairs += found
        return found

    def _is_torn(self, at: int) -> bool:
        """Whether a crash can have left this as the last that is there."""
        if at + FRAME.size > len(self._data):
            return True
        length, _ = FRAME.unpack_from(self._view, at)
        if length == 0:
            return not self._data[at:].any()
        return bool(at + FRAME.size + length > len(self._data))

    def _next_frame(self, at: int) -> int:
        """Where the next frame is; -1 if there is none.

        If the head of the damaged frame is right, it says so itself. Else every place is looked at; then a frame
        counts only if another one or the end follows, because what tenants wrote may look like a frame.
        """
        if at + FRAME.size <= len(self._data):
            behind = at + FRAME.size + FRAME.unpack_from(self._view, at)[0]
            if behind > at + FRAME.size and (behind == len(self._data) or frame_end(self._view, behind) >= 0):
                return int(behind)
        total = len(self._data)
        for begin in range(at + 1, total - FRAME.size, _WINDOW):
            stop = min(begin + _WINDOW, total - FRAME.size)
            lengths = np.zeros(stop - begin, np.int64)
            for place in range(4):
                lengths |= self._data[begin + place : stop + place].astype(np.int64) << (8 * place)
            kinds = self._data[begin + FRAME.size : stop + FRAME.size]
            fits = (lengths > 0) & (np.arange(begin, stop) + FRAME.size + lengths <= total)
            for place in np.flatnonzero(fits & (kinds > 0) & (kinds <= _KIND_MAX)).tolist():
                if self._is_frame(begin + place, int(lengths[place])):
                    return int(begin + place)
                if self._scan_left <= 0:
                    return -1
        return -1

    def _is_frame(self, at: int, length: int) -> bool:
        end = at + FRAME.size + length
        is_last = end in (len(self._data), self._synced)
        if not is_last and not self._may_begin(end):  # checksums take time: first what is quick to see
            return False
        self._scan_left -= length
        if crc32c(self._view[at + FRAME.size : end]) != FRAME.unpack_from(self._view, at)[1]:
            return False
        return is_last or frame_end(self._view, end) >= 0

    def _may_begin(self, at: int) -> bool:
        if at + FRAME.size >= len(self._data):
            return False
        length = FRAME.unpack_from(self._view, at)[0]
        return 0 < length <= len(self._data) - at - FRAME.size and 0 < self._view[at + FRAME.size] <= _KIND_MAX


def _read(path: Path, size: int) -> Array:
    """The bytes of a file, as many as it should have; blocks that the disk cannot read are zeros."""
    data = np.zeros(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        at = 0
        while at < size:
            try:
                count = file.readinto(data[at:].data)
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
                at = _skip_bad_block(file.fileno(), data, at)
                file.seek(at)
                continue
            if not count:
                break
            at += count
    return data


def _skip_bad_block(file: int, data: Array, at: int) -> int:
    """Reads a block at a time up to the one that cannot be read; returns the offset behind it."""
    while at < len(data):
        end = min((at // BLOCK + 1) * BLOCK, len(data))
        try:
            piece = os.pread(file, end - at, at)
        except OSError:
            return end
        if not piece:
            return len(data)
        data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return at


def _set_aside(path: Path) -> Path:
    kept = path.with_suffix(SUFFIX)
    if not kept.exists():
        os.link(path, kept)
        others = [one for one in damaged_files(path.parent) if one != kept]
        for old in others[: max(0, len(others) + 1 - DAMAGED_FILES_MAX)]:
            _log.warning("%d damaged files are kept; %s gives way", DAMAGED_FILES_MAX, old.name)
            old.unlink()
        sync_folder(path.parent)
    return kept


def _rewrite(path: Path, data: Array) -> None:
    """The segment as it should be, in place of the one that is not."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data.data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
