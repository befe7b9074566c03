"""What of a segment can be read, and was everything read that was acknowledged?

A torn end is distinguished from damage, damage from the rest, with a small file beside each segment.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harch.base.state_files import SUFFIX
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.disk import crc32c
from harch.sentinel.store.wal.segments import FRAME, MAGIC, frame_end, segment_numbers, segment_path, sync_folder

# Was everything read that was acknowledged, and what stood where bytes are damaged? A small file beside each segment.
#
# It says how many bytes of the segment are synced, and has their parity: of every MiB, block n of 4 KiB is folded into
# lane n % 4 by exclusive or. So up to four blocks in a row can be computed from the others: a flipped bit, a bad sector
# or a lost end costs nothing. It is written after the segment was synced, and not synced itself: after a power cut it
# may
# say less than is true, never more, and what is computed from it counts only if its checksum is right.


BLOCK = 4096
LANES = 4
STRIPE_BLOCKS = 256
_STRIPE = BLOCK * STRIPE_BLOCKS
_SUFFIX = ".guard"
_MAGIC = b"HSGRD\x00\x00\x01"
_HEAD = struct.Struct("<8sQQ")  # magic, number of the segment, bytes that are synced; a CRC-32C of all three follows
_CHECK = struct.Struct("<I")
_PARITY_AT = BLOCK


def guard_path(segment: Path) -> Path:
    return segment.with_suffix(_SUFFIX)


def guarded_numbers(folder: Path) -> list[int]:
    names = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(int(name) for name in names if name.isdigit())


class GuardWriter:
    """Follows one segment while it grows. Raises OSError where the disk refuses; the segment is sound without it."""

    def __init__(self, segment: Path) -> None:
        self._number = _number(segment)
        self._stripe = 0
        self._parity = np.zeros((LANES, BLOCK), np.uint8)
        self._touched: set[int] = set()
        self._file = os.open(guard_path(segment), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._write_head(0)

    def cover(self, parts: Sequence[memoryview | bytes], offset: int) -> None:
        """These bytes of the segment, which begin where the last ones ended, are synced."""
        for part in parts:
            data = np.frombuffer(part, np.uint8)
            at = 0
            while at < len(data):
                stripe, within = divmod(offset, _STRIPE)
                if stripe != self._stripe:
                    self._write_parity()
                    self._stripe = stripe
                    self._parity[:] = 0
                block, place = divmod(within, BLOCK)
                length = min(BLOCK - place, len(data) - at)
                self._parity[block % LANES, place : place + length] ^= data[at : at + length]
                self._touched.add(block % LANES)
                at += length
                offset += length
        self._write_parity()
        self._write_head(offset)

    def close(self) -> None:
        os.close(self._file)

    def _write_head(self, synced: int) -> None:
        head = _HEAD.pack(_MAGIC, self._number, synced)
        os.pwrite(self._file, head + _CHECK.pack(crc32c(head)), 0)

    def _write_parity(self) -> None:
        for lane in self._touched:
            os.pwrite(self._file, self._parity[lane].data, _PARITY_AT + (self._stripe * LANES + lane) * BLOCK)
        self._touched.clear()


@dataclass(frozen=True, slots=True)
class SegmentGuard:
    """What is known of a segment beside itself."""

    synced_bytes: int
    parity: Array  # u8, by stripe, lane and place

    def restore(self, data: Array, at: int, end: int, is_sound: Callable[[], bool]) -> bool:
        """Puts damaged blocks right, in `data` itself, so that what begins `at` is sound; False if that cannot be.

        Looks for the damage between `at` and `end`. `data` has at least all bytes that are synced.
        """
        first, last = at // BLOCK, min(end, self.synced_bytes) // BLOCK
        wrong = self._wrong_lanes(data, first // STRIPE_BLOCKS, (last + LANES) // STRIPE_BLOCKS)
        for length in range(1, LANES + 1):  # the fewest first: a run beyond the damage would spoil what is sound
            for begin in range(first, last + 1):
                run = range(begin, begin + length)
                if not all(_lane_of(block) in wrong for block in run):
                    continue
                self._fold(data, run, wrong)
                if is_sound():
                    return True
                self._fold(data, run, wrong)
        return False

    def _wrong_lanes(self, data: Array, first: int, last: int) -> dict[tuple[int, int], Array]:
        """By stripe and lane: how its blocks together differ from its parity."""
        found: dict[tuple[int, int], Array] = {}
        for stripe in range(first, min(last + 1, len(self.parity))):
            blocks = np.zeros(_STRIPE, np.uint8)
            piece = data[stripe * _STRIPE : min((stripe + 1) * _STRIPE, self.synced_bytes)]
            blocks[: len(piece)] = piece
            folded = np.bitwise_xor.reduce(blocks.reshape(-1, LANES, BLOCK), axis=0) ^ self.parity[stripe]
            found.update({(stripe, lane): folded[lane] for lane in range(LANES) if folded[lane].any()})
        return found

    def _fold(self, data: Array, run: range, wrong: dict[tuple[int, int], Array]) -> None:
        """Changes the blocks so that their lanes are right. Doing it twice changes nothing."""
        for block in run:
            difference = wrong[_lane_of(block)]
            piece = data[block * BLOCK : min((block + 1) * BLOCK, self.synced_bytes)]
            piece ^= difference[: len(piece)]


def _lane_of(block: int) -> tuple[int, int]:
    """Its stripe, and the lane there."""
    return block // STRIPE_BLOCKS, block % LANES


def _number(segment: Path) -> int:
    """So that the guard of another segment is not taken for this one's."""
    return int(segment.stem) if segment.stem.isdigit() else crc32c(segment.stem.encode())


def is_damaged_guard(segment: Path) -> bool:
    """Whether there is one that cannot be read. A crash may leave one that is empty, or whose head is."""
    try:
        with guard_path(segment).open("rb") as file:
            return read_guard(segment) is None and any(file.read(_HEAD.size + _CHECK.size))
    except OSError:
        return False


def read_guard(segment: Path) -> SegmentGuard | None:
    """None: there is none, or it is damaged itself."""
    try:
        raw = guard_path(segment).read_bytes()
    except OSError:
        return None
    head = raw[: _HEAD.size]
    if len(raw) < _HEAD.size + _CHECK.size or _CHECK.unpack_from(raw, _HEAD.size)[0] != crc32c(head):
        return None
    magic, number, synced = _HEAD.unpack(head)
    if magic != _MAGIC or number != _number(segment):
        return None
    parity = np.frombuffer(raw[_PARITY_AT:], np.uint8)
    stripes = -(-synced // _STRIPE)
    whole = np.zeros(stripes * LANES * BLOCK, np.uint8)
    whole[: min(len(parity), len(whole))] = parity[: len(whole)]
    return SegmentGuard(synced, whole.reshape(stripes, LANES, BLOCK))


# What of a segment can be read? All of it, mostly; else its torn end is distinguished from damage, and damage from the
# rest.
#
# A torn end is what a crash leaves of a write that was never acknowledged: it stands at the end, and is shorter than it
# says
# or empty. Everything else that is not as it was written is damage: it is put right with the segment's guard, or left
# out
# as a gap, with the file set aside for people. Reading goes on behind a gap, with the next frame that is whole.


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
class RecoveredSegment:
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


def read_segment(path: Path, damaged: list[DamagedSegment]) -> RecoveredSegment:
    """Reads what can be read, cuts a torn end off, and sets aside and notes what is damaged."""
    guard = read_guard(path)
    if is_damaged_guard(path):
        _log.error("E0619: %s is damaged; reading its segment without it", guard_path(path))
    size = path.stat().st_size
    data = _read(path, max(size, guard.synced_bytes if guard else 0))
    segment = RecoveredSegment(data)
    _Reading(segment, guard, size).read()
    number = int(path.stem)
    if segment.gaps or segment.repairs:
        lost = sum(end - start for start, end in segment.gaps)
        damaged.append(DamagedSegment(number, lost))
        kept = _set_aside(path)
        if lost:
            _log.error("E0619: %d bytes of %s are damaged and unreadable; kept as %s", lost, path, kept.name)
        else:
            _rewrite(path, data[: len(data) - segment.torn_bytes])
            _log.error("E0619: %s was damaged and has been repaired; the original is kept as %s", path, kept.name)
    elif segment.torn_bytes:
        _log.warning("truncating the unacknowledged end of %s: %d bytes", path, segment.torn_bytes)
        os.truncate(path, size - segment.torn_bytes)
    return segment


def note_unreadable(path: Path, size: int, damaged: list[DamagedSegment]) -> None:
    """A part of a segment that is as it was written, and cannot be understood."""
    damaged.append(DamagedSegment(int(path.stem), size))
    _log.error("E0619: %d bytes of %s are not readable; kept as %s", size, path, _set_aside(path).name)


def note_missing(folder: Path, first: int, damaged: list[DamagedSegment]) -> None:
    """Segments of which only the guard is left, from the number on that is needed."""
    for number in sorted(set(guarded_numbers(folder)) - set(segment_numbers(folder))):
        path = segment_path(folder, number)
        guard = read_guard(path)
        if number >= first and guard is not None and guard.synced_bytes:
            damaged.append(DamagedSegment(number, guard.synced_bytes))
            _log.error("E0619: %s is missing, and with it %d bytes", path, guard.synced_bytes)
        guard_path(path).unlink(missing_ok=True)


def damaged_files(folder: Path) -> list[Path]:
    """What was set aside and waits for somebody to look at it."""
    return sorted(folder.glob(f"*{SUFFIX}"))


class _Reading:
    """One pass over a segment, from frame to frame."""

    def __init__(self, segment: RecoveredSegment, guard: SegmentGuard | None, size: int) -> None:
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
            _log.warning("%d damaged files are kept; removing %s", DAMAGED_FILES_MAX, old.name)
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
