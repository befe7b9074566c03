"""Where does a task's output go? Into a capped, rotating log whose offsets count every byte ever written.

Standard library only: the supervisor imports this at each task's start.
"""

from __future__ import annotations

import os

TAIL_BYTES = 2048


class Spool:
    """Segments are named by the offset of their first byte; the oldest is removed when there are too many.

    What a full disk refuses is dropped and counted, and the name of the next segment keeps the offsets true.
    """

    def __init__(self, folder: str, segment_bytes: int, segments_max: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.offset = self.dropped_bytes = 0
        self.tail = b""  # the last words, which often say why a start failed
        self._folder, self._segment_bytes, self._segments_max = folder, segment_bytes, segments_max
        self._segments: list[str] = []
        self._fd = -1
        self._left_bytes = 0

    def write(self, data: bytes) -> None:
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        view = memoryview(data)
        while view:
            try:
                if self._left_bytes <= 0:
                    self._rotate()
                count = os.write(self._fd, view[: self._left_bytes])
            except OSError:
                self.dropped_bytes += len(view)
                self.offset += len(view)
                self._left_bytes = 0  # the rest goes to a new segment, named by the offset after the gap
                return
            self.offset += count
            self._left_bytes -= count
            view = view[count:]

    def _rotate(self) -> None:
        while len(self._segments) >= self._segments_max:
            os.unlink(self._segments[0])
            del self._segments[0]
        name = f"{self._folder}/{self.offset:020d}"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._left_bytes = fd, self._segment_bytes
        self._segments.append(name)


def read_spool(folder: str, offset: int, bytes_max: int) -> tuple[int, bytes, int]:
    """Up to `bytes_max` from `offset` (negative: from the end) as (offset of the data, data, offset of the end).

    What was rotated away or dropped is skipped: the data then starts later than asked for.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return 0, b"", 0
    segments = [(int(name), f"{folder}/{name}") for name in names]
    if not segments:
        return 0, b"", 0
    end = segments[-1][0] + _size(segments[-1][1])
    start = max(0, end + offset) if offset < 0 else min(offset, end)
    found, data = start, b""
    for first, path in segments:
        position = start if not data and first < start else first
        if data and first != found + len(data):
            break  # a gap: the reader comes back for what follows it
        piece = _read(path, position - first, bytes_max - len(data))
        if piece and not data:
            found = position
        data += piece
        if len(data) >= bytes_max:
            break
    return found, data, end


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: str, position: int, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as segment:
            segment.seek(position)
            return segment.read(bytes_max)
    except FileNotFoundError:  # rotated away since it was listed
        return b""
