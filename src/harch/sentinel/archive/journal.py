"""What will the log of lines or spans write next? Records as bytes, one behind the other, in numbered segments."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harch.sentinel.store.wal.guard import guard_path
from harch.sentinel.store.wal.salvage import DamagedSegment, note_missing, read_segment
from harch.sentinel.store.wal.segments import segment_numbers, segment_path

ROWS, ERASURE = 1, 2
SEGMENT_BYTES = 64 << 20
_HEAD = struct.Struct("<BI")  # kind of the record, bytes that follow


@dataclass(slots=True)
class RecordBatch:
    """Records for one segment that are not on disk yet."""

    segment: int
    parts: list[bytes] = field(default_factory=list)

    def payload(self) -> memoryview:
        return memoryview(b"".join(self.parts))


class RecordJournal:
    """Collects records for `Log`, which writes and syncs them."""

    def __init__(self, first_segment: int, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.segment = first_segment
        self.newest: dict[int, int] = {}  # segments that may exist; times are not looked at here
        self.ticket = 0
        self._segment_bytes = segment_bytes
        self._segment_used = 0
        self._batches: list[RecordBatch] = []
        self._lock = threading.Lock()

    def put(self, kind: int, record: bytes) -> int:
        """Returns the segment that the record goes to."""
        with self._lock:
            if self._segment_used > self._segment_bytes:
                self._next_segment()
            if not self._batches or self._batches[-1].segment != self.segment:
                self._batches.append(RecordBatch(self.segment))
                self.newest[self.segment] = 0
            self._batches[-1].parts += [_HEAD.pack(kind, len(record)), record]
            self._segment_used += _HEAD.size + len(record)
            self.ticket += 1
            return self.segment

    def rotate(self) -> int:
        """What comes from now on goes into another segment; returns the number of that one."""
        with self._lock:
            if self._segment_used:
                self._next_segment()
            return self.segment

    def take(self) -> tuple[list[RecordBatch], int]:
        with self._lock:
            batches, self._batches = self._batches, []
            return batches, self.ticket

    def give_back(self, batches: Sequence[RecordBatch]) -> None:
        """Nothing is used twice here."""

    def _next_segment(self) -> None:
        self.segment += 1
        self._segment_used = 0


@dataclass(frozen=True, slots=True)
class OldRecord:
    segment: int
    kind: int
    content: bytes


@dataclass(slots=True)
class Reading:
    """What reading the segments found out beside their records."""

    last_segment: int = 0
    torn_bytes: int = 0  # at ends of segments: what was never acknowledged
    damaged: list[DamagedSegment] = field(default_factory=list)


def read_records(folder: Path, first_segment: int, reading: Reading) -> Iterator[OldRecord]:
    """Records of all segments from this one on, in order. Segments before it are done with and removed.

    Records do not depend on each other, so all that are whole are read, whatever is damaged between them.
    """
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        reading.last_segment = number
        if number < first_segment:
            guard_path(path).unlink(missing_ok=True)
            path.unlink()
            continue
        segment = read_segment(path, reading.damaged)
        reading.torn_bytes += segment.torn_bytes
        data = memoryview(segment.data)
        for start, end in segment.frames:
            at = start
            while at < end:
                kind, size = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                yield OldRecord(number, kind, bytes(data[at : at + size]))
                at += size
    note_missing(folder, first_segment, reading.damaged)
