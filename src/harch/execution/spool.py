"""Where does a task's output go? Into a capped, rotating log whose offsets count every byte ever written.

Beside each segment stands a file of checksums, one for each write. What does not agree with them is left out when the
log is read, like output that was rotated away: the offsets stay true. A second file says when what was written, to
the second; it lives as long as its segment. Standard library only: the supervisor imports this at each task's start.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable

TAIL_BYTES = 2048
_SUMS, _TIMES = ".sums", ".times"
_SUM = struct.Struct("<IIII")  # where in the segment it begins, its length, its checksum; and one of these three
_TIME = struct.Struct("<dQI")  # Unix time of a write, the offset of its first byte, the checksum of these two
_TIMES_EVERY_S = 1.0
_REPORTED_MAX = 1000
_WRITE_BYTES_MAX = 1 << 20  # larger ones are cut, so that no reader has to look far for the end of one


class TaskLogSpool:
    """Segments are named by the offset of their first byte; the oldest is removed when there are too many.

    What a full disk refuses is dropped and counted, and the name of the next segment keeps the offsets true.
    """

    def __init__(
        self,
        folder: str,
        segment_bytes: int,
        segments_max: int,
        now_s: Callable[[], float] = time.time,  # noqa: TID251 - a process of its own without harch.base
    ) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.offset = self.dropped_bytes = 0
        self.tail = b""  # the last words, which often say why a start failed
        self._folder, self._segment_bytes, self._segments_max = folder, segment_bytes, segments_max
        self._segments: list[str] = []
        self._fd = self._sums_fd = self._times_fd = -1
        self._left_bytes = 0
        self._now_s, self._timed_s, self._is_timed = now_s, 0.0, False

    def write(self, data: bytes) -> None:
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        view = memoryview(data)
        while view:
            try:
                if self._left_bytes <= 0:
                    self._rotate()
                self._write_time()
                count = os.write(self._fd, view[: min(self._left_bytes, _WRITE_BYTES_MAX)])
            except OSError:
                self.dropped_bytes += len(view)
                self.offset += len(view)
                self._left_bytes = 0  # the rest goes to a new segment, named by the offset after the gap
                return
            with contextlib.suppress(OSError):  # output without a checksum is better than none
                begin = self._segment_bytes - self._left_bytes
                os.write(self._sums_fd, _entry(begin, count, zlib.crc32(view[:count])))
            self.offset += count
            self._left_bytes -= count
            view = view[count:]

    def close(self) -> None:
        """Not needed where the process ends with its spool."""
        for fd in (self._fd, self._sums_fd, self._times_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._sums_fd = self._times_fd = -1
        self._left_bytes = 0

    def _write_time(self) -> None:
        """Once a second, and at the start of each segment. A clock that was set back stands still here meanwhile."""
        now_s = max(self._now_s(), self._timed_s)
        if self._is_timed and now_s < self._timed_s + _TIMES_EVERY_S:
            return
        with contextlib.suppress(OSError):  # output without a time is better than none
            head = struct.pack("<dQ", now_s, self.offset)
            os.write(self._times_fd, head + struct.pack("<I", zlib.crc32(head)))
            self._timed_s, self._is_timed = now_s, True

    def _rotate(self) -> None:
        while len(self._segments) >= self._segments_max:
            for beside in (_SUMS, _TIMES):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._segments[0] + beside)
            os.unlink(self._segments[0])
            del self._segments[0]
        name = f"{self._folder}/{self.offset:020d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        fd = os.open(name, flags, 0o600)
        for old in (self._fd, self._sums_fd, self._times_fd):
            if old >= 0:
                os.close(old)
        self._fd, self._sums_fd, self._times_fd, self._left_bytes = fd, -1, -1, self._segment_bytes
        self._segments.append(name)
        self._is_timed = False
        self._sums_fd = os.open(name + _SUMS, flags, 0o600)
        self._times_fd = os.open(name + _TIMES, flags, 0o600)


def read_spool(folder: str, offset: int, bytes_max: int) -> tuple[int, bytes, int]:
    """Up to `bytes_max` from `offset` (negative: from the end) as (offset of the data, data, offset of the end).

    What was rotated away or dropped, or is damaged, is skipped: the data then starts later than asked for.
    """
    segments = _segments(folder)
    if not segments:
        return 0, b"", 0
    end = _end(segments)
    start = max(0, end + offset) if offset < 0 else min(offset, end)
    found, data = start, b""
    for first, path in segments:
        position = start if not data and first < start else first
        if data and first != found + len(data):
            break  # a gap: the reader comes back for what follows it
        begin, piece, is_cut = _read(path, position - first, bytes_max - len(data))
        if data and piece and first + begin != found + len(data):
            break
        if piece and not data:
            found = first + begin
        data += piece
        if len(data) >= bytes_max or (is_cut and data):
            break
    if not data and start < end:
        found = end  # what is missing will not come
    return found, data, end


def offset_since(folder: str, since_s: float) -> int:
    """Where that begins which was written at this Unix time or later, or up to a second before it.

    Output whose times are not known counts as new as its segment.
    """
    segments = _segments(folder)
    start = _end(segments)
    for first, path in reversed(segments):
        known = _time_at(path, since_s - _TIMES_EVERY_S)
        if known is None:  # written by an earlier version
            if _changed_s(path) < since_s:
                break
            start = first
            continue
        place, offset = known
        start = start if offset is None else offset
        if place:
            break
    return start


def _time_at(path: str, since_s: float) -> tuple[int, int | None] | None:
    """The first entry that is as late, as (its place, its offset); all are earlier: (their number, None). None: there
    are no times. Found by halving: there may be very many."""
    count = _size(path + _TIMES) // _TIME.size
    low, high, offset = 0, count, None
    while low < high:
        middle = (low + high) // 2
        known = _time_before(path, middle + 1, low)
        if known is not None and known[1] >= since_s:
            high, offset = known[0], known[2]
        else:
            low = middle + 1
    before = _time_before(path, low, 0)
    if before is None:
        return (0, offset) if offset is not None else None
    if before[0] < low - 1:  # what lies between is damaged: rather more than less
        return low, before[2]
    return low, offset


def _time_before(path: str, place: int, first: int) -> tuple[int, float, int] | None:
    """The last sound entry before a place, as (its place, time, offset)."""
    while place > first:
        place -= 1
        entry = _pread(path + _TIMES, place * _TIME.size, _TIME.size)
        if len(entry) == _TIME.size:
            at_s, offset, checksum = _TIME.unpack(entry)
            if zlib.crc32(entry[:-4]) == checksum:
                return place, at_s, offset
    return None


def _segments(folder: str) -> list[tuple[int, str]]:
    """(offset of its first byte, path) of each, oldest first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return []
    return [(int(name), f"{folder}/{name}") for name in names]


def _end(segments: list[tuple[int, str]]) -> int:
    if not segments:
        return 0
    first, path = segments[-1]
    return first + max(_size(path), _written_bytes(path))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _written_bytes(path: str) -> int:
    """Where the last write that has a checksum ends."""
    count = _size(path + _SUMS) // _SUM.size
    last = _sum_before(path, count, 0)
    return last[1] + last[2] if last else 0


def _read(path: str, position: int, bytes_max: int) -> tuple[int, bytes, bool]:
    """(where the data begins, data, whether something that should follow it is missing)."""
    wanted_end = position + bytes_max
    sums = _sums(path, position, wanted_end)
    if not sums:
        return position, _pread(path, position, bytes_max), False
    first = min(position, sums[0][0])
    content = _pread(path, first, max(wanted_end, sums[-1][0] + sums[-1][1]) - first)
    bad = []
    for begin, length, checksum in sums:
        if zlib.crc32(content[begin - first : begin - first + length]) != checksum:
            bad.append((begin, begin + length))
            _say(path, begin, length)
    for begin, end in bad:
        if begin <= position < end:
            position = end
        elif begin > position:
            return position, content[position - first : min(begin, wanted_end) - first], begin < wanted_end
    return position, content[position - first : max(position, wanted_end) - first], False


def _sums(path: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Checksums of all writes that have something between these places. Found by halving: there may be very many."""
    count = _size(path + _SUMS) // _SUM.size
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        known = _sum_before(path, middle + 1, low)
        if known is None:
            break
        if known[1] + known[2] <= begin:
            low = middle + 1
        else:
            high = known[0]
    found: list[tuple[int, int, int]] = []
    while low < count:
        entries = _pread(path + _SUMS, low * _SUM.size, 256 * _SUM.size)
        for at in range(0, len(entries) - _SUM.size + 1, _SUM.size):
            entry = _sum_in(entries[at : at + _SUM.size])
            if entry is not None and entry[0] >= end:
                return found
            if entry is not None and entry[0] + entry[1] > begin:
                found.append(entry)
        low += 256
    return found


def _entry(begin: int, length: int, checksum: int) -> bytes:
    head = struct.pack("<III", begin, length, checksum)
    return head + struct.pack("<I", zlib.crc32(head))


def _sum_in(entry: bytes) -> tuple[int, int, int] | None:
    """None: the entry is damaged itself, so nothing can be said about what it stood for."""
    if len(entry) < _SUM.size:
        return None
    begin, length, checksum, own = _SUM.unpack(entry)
    return (begin, length, checksum) if zlib.crc32(entry[:12]) == own else None


def _sum_before(path: str, place: int, first: int) -> tuple[int, int, int] | None:
    """The last sound entry before a place, as (its place, begin, length)."""
    while place > first:
        place -= 1
        entry = _sum_in(_pread(path + _SUMS, place * _SUM.size, _SUM.size))
        if entry is not None:
            return place, entry[0], entry[1]
    return None


_reported: set[tuple[str, int, int]] = set()


def _say(path: str, begin: int, length: int) -> None:
    """Once for each damage; readers come again and again."""
    import logging  # not for supervisors, who never read

    known = path, _changed_ns(path), begin
    if known not in _reported and len(_reported) < _REPORTED_MAX:
        _reported.add(known)
        text = "E1030: %d bytes of output from byte %d of %s on are not as they were written, and left out"
        logging.getLogger("harch.damage").error(text, length, begin, path)


def _changed_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_ctime_ns
    except FileNotFoundError:
        return 0


def _pread(path: str, position: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read(size)
    except FileNotFoundError:  # rotated away since it was listed
        return b""
