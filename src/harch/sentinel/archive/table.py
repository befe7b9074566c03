"""How do rows stay safe?

Log, memory and files of one tenant, of lines or spans, and every step between them, within the memory that all
tenants share.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import msgspec

from harch.base.clock import Clock, epoch_ns
from harch.base.errors import HarchError
from harch.sentinel.archive import planning
from harch.sentinel.archive.files import DamagedFile, Files, windows_of
from harch.sentinel.archive.limits import MIB, ArchivePolicy
from harch.sentinel.archive.planning import Erasure
from harch.sentinel.archive.row_storage import ArchiveRows, R, RowStorage, TableSnapshot
from harch.sentinel.store.disk import FileSystem
from harch.sentinel.store.wal.log import Log
from harch.sentinel.store.wal.salvage import DamagedSegment, damaged_files, guard_path, note_missing, read_segment
from harch.sentinel.store.wal.segments import LogDisk, SystemDisk, segment_numbers, segment_path

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
class SegmentReport:
    """What reading the segments found out beside their records."""

    last_segment: int = 0
    torn_bytes: int = 0  # at ends of segments: what was never acknowledged
    damaged: list[DamagedSegment] = field(default_factory=list)


def read_records(folder: Path, first_segment: int, reading: SegmentReport) -> Iterator[OldRecord]:
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


# How much memory do all tenants' newest rows take together? A count that every table adds to.


class SharedMemory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    @property
    def is_full(self) -> bool:
        return self._used > self.bytes_max

    @property
    def is_crowded(self) -> bool:
        """Whether upkeep should write rows into files even if none of the tenants has many."""
        return self._used > self.bytes_max // 2

    def change(self, by: int) -> None:
        with self._lock:
            self._used += by


# How do rows stay safe? Log, memory and files of one tenant's lines or spans, and every step between them.
#
# A row is in the log until the list of files names the file that holds it; the list is replaced as a whole, so a
# crash at
# any step leaves one of the two. Which rows these are is a matter of the `Kind`.


_log = logging.getLogger(__name__)
_ANY_TIME = 1 << 62
_PIECE_BYTES = 4 * MIB  # larger pieces of memory are not joined
_JOINED = 8  # pieces of one size


class ArchiveTable(Generic[R]):
    """One tenant's rows of one kind, for any number of threads."""

    def __init__(
        self,
        folder: Path,
        kind: RowStorage[R],
        policy: ArchivePolicy,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: FileSystem | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        """Opens the folder, which the caller has locked. Reads the log, so it may take a while."""
        self._kind, self._policy, self._clock = kind, policy, clock
        self._memory = memory or SharedMemory(policy.memory_bytes_max)
        self._used = 0  # what this table has added to it
        self._log_folder = log_folder = folder / "wal"
        log_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.files = Files(folder, kind, disk or FileSystem())
        self._pieces: list[R] = []
        self._sealed = 0  # pieces that a flush has in hand: nothing is joined to them
        self._lock = threading.Lock()  # of pieces, list of files and order of records together
        self._upkeep = threading.RLock()  # one flush, merge or erasure at a time
        self._making_room = threading.Lock()
        self._reading = SegmentReport()
        segment = self.files.manifest.segment
        for record in read_records(log_folder, segment, self._reading):
            if record.kind == ROWS:
                self._add(kind.decoded(record.content))
            elif record.kind == ERASURE:
                self._erase(msgspec.msgpack.decode(record.content, type=Erasure))
        first = max(self._reading.last_segment + 1, segment)
        self._journal = RecordJournal(first)
        self._journal.newest.update((number, 0) for number in range(segment, first))
        self._log = Log(log_folder, self._journal, log_disk or SystemDisk(), clock.monotonic_s)
        self._since_s: float | None = clock.monotonic_s() if self._pieces else None  # oldest row in memory

    def check_writable(self) -> None:
        """Raises E0617 while the disk refuses, E0629 while memory is full."""
        self._log.check_writable()
        used, is_full = self.memory_bytes(), self._memory.is_full
        if used > self._policy.flush_bytes or is_full:
            self._make_room()
        if used > self._policy.memory_bytes_max or is_full:
            waiting = max(used, self._memory.used if is_full else 0)
            raise HarchError("E0629", f"{waiting // MIB} MiB are waiting to be written", retry_after_s=1)

    def append(self, rows: R, record: bytes) -> None:
        """Returning means that the rows are on disk. `record` gives them back after a crash."""
        self.commit(self.add(rows, record))

    def add(self, rows: R, record: bytes) -> int:
        """The first half of a write: rows are seen by readers. Returns the ticket to commit."""
        with self._lock:
            self._journal.put(ROWS, record)
            self._add(rows)
            if self._since_s is None:
                self._since_s = self._clock.monotonic_s()
            return self._journal.ticket

    def last_ticket(self) -> int:
        """The ticket of all that was added so far."""
        return self._journal.ticket

    def commit(self, ticket: int) -> None:
        """The second half: returning means that all up to the ticket is on disk. Those who wait share a sync."""
        self._log.commit(ticket)

    def erase(self, content: bytes) -> None:
        """Out of memory and out of every view from now on, durably; off the disk with `carry_out` and `purge`."""
        with self._upkeep:
            self._log.check_writable()
            with self._lock:
                erasure = Erasure(self.files.manifest.next_erasure, content)
                self._journal.put(ERASURE, msgspec.msgpack.encode(erasure))
                self._erase(erasure)
            self._log.commit(self._journal.ticket)

    @contextmanager
    def view(self, start_ns: int, end_ns: int) -> Iterator[TableSnapshot[R]]:
        """Files with rows in the time (the end is not included) stay until the reader is done."""
        with self._lock:
            manifest = self.files.manifest
            files = tuple(one for one in manifest.files if one.start_ns < end_ns and one.end_ns >= start_ns)
            view = TableSnapshot(files, tuple(self._pieces), manifest.erasures)
            names = [one.name for one in files]
            self.files.pins.pin(names)
        try:
            with self.minding_damage():
                yield view
        finally:
            self.files.pins.unpin(names)

    @contextmanager
    def minding_damage(self) -> Iterator[None]:
        """Whoever meets a damaged file fails; the file is set aside, so that nobody meets it again."""
        try:
            yield
        except DamagedFile as damage:
            with self._upkeep:
                self.files.set_aside(damage.name, self._lock)
            raise

    def erasures_wait(self) -> bool:
        """Whether files have rows that were erased."""
        return bool(self.files.manifest.erasures)

    def memory_bytes(self) -> int:
        return sum(piece.memory_bytes for piece in tuple(self._pieces))

    def facts(self) -> Mapping[str, object]:
        with self._lock:
            manifest, pieces = self.files.manifest, tuple(self._pieces)
        files = manifest.files
        return {
            "rows": sum(one.rows for one in files) + sum(piece.count for piece in pieces),
            "rows_in_memory": sum(piece.count for piece in pieces),
            "bytes_raw": sum(one.raw_bytes for one in files) + sum(piece.raw_bytes for piece in pieces),
            "bytes_in_memory": sum(piece.memory_bytes for piece in pieces),
            "bytes_on_disk": sum(one.disk_bytes for one in files) + self._log.size(),
            "bytes_in_files": sum(one.disk_bytes for one in files),
            "files": len(files),
            "files_start_ns": min((one.start_ns for one in files), default=None),
            "files_end_ns": max((one.end_ns for one in files), default=None),
            "erasures_to_carry_out": len(manifest.erasures),
            "log_failure": self._log.failure,
            "log_torn_bytes": self._reading.torn_bytes,
            "log_damaged_segments": [one.number for one in self._reading.damaged],
            "log_lost_bytes": sum(one.lost_bytes for one in self._reading.damaged),
            "damaged_files": len(self.damaged_files()),
        }

    def maintain(self) -> None:
        """Erasures first, then files for what waited long enough, merging, and the end of what is too old."""
        with self._upkeep, self.minding_damage():
            self.carry_out()
            waited = self._since_s is not None and (
                self._clock.monotonic_s() - self._since_s >= self._policy.flush_after_s
            )
            if waited or self.memory_bytes() > self._policy.flush_bytes or self._memory.is_crowded:
                self.flush()
            now_ns = epoch_ns(self._clock.now())
            gone = planning.expired(self.files.manifest.files, self._policy, now_ns)
            if gone:
                self.files.replace(gone, [], self._lock)
            for group in planning.merges(self.files.manifest.files, self._policy, now_ns):
                if self.files.have_room_for(group, self._policy.free_bytes_min):
                    self.files.rewrite(group, self._lock)

    def flush(self) -> None:
        """Writes all rows in memory into files and drops the log of them."""
        with self._upkeep:
            with self._lock:
                segment = self._journal.rotate()
                pieces = tuple(self._pieces)
                self._sealed = len(pieces)
            try:
                self._log.commit(self._journal.ticket)  # nothing is written to older segments after this
                rows = self._kind.joined(pieces) if pieces else None
                parts = windows_of(self._kind, rows) if rows is not None else []
                written = self.files.written(parts, now_ns=epoch_ns(self._clock.now()))
                if written or segment != self.files.manifest.segment:
                    self.files.replace([], written, self._lock, segment=segment, also=self._forget_sealed)
            finally:
                self._sealed = 0
            self._log.drop_segments(segment, _ANY_TIME)

    def carry_out(self) -> None:
        """Rewrites every file that has rows to be erased, and forgets the erasures."""
        with self._upkeep:
            self.files.carry_out(self._lock)

    def purge(self) -> None:
        """Takes erased rows off the disk now: out of the log, by writing all of it into files, and out of those.

        Raises E0616 where a reader holds an old file for long.
        """
        with self._upkeep, self.minding_damage():
            self.flush()
            self.carry_out()
        if damaged := self.damaged_files():
            hint = f"delete {damaged[0]}" + (f" and {len(damaged) - 1} more" if damaged[1:] else "")
            raise HarchError("E0616", "a damaged file may still hold erased rows", hint=hint)
        if not self.files.pins.wait():
            raise HarchError(
                "E0616", "a query is still reading a file with erased rows", hint="purge again when it has ended"
            )

    def damaged_files(self) -> list[Path]:
        """What was set aside, of the log and of files, until somebody has looked at it and deletes it."""
        aside = self.files.quarantine
        return [*damaged_files(self._log_folder), *(sorted(aside.iterdir()) if aside.exists() else ())]

    def close(self) -> None:
        try:
            self._log.commit(self._journal.ticket)
        finally:
            self._log.close()
            self._memory.change(-self._used)
            self._used = 0

    def _add(self, rows: R) -> None:
        """Pieces of about the same size are joined as soon as there are some: few pieces, and few copies of a row."""
        pieces = self._pieces
        pieces.append(rows)
        self._used += rows.memory_bytes
        self._memory.change(rows.memory_bytes)
        while True:
            tier, count = _tier(pieces[-1]), 1
            while count < len(pieces) - self._sealed and _tier(pieces[-1 - count]) == tier:
                count += 1
            if count < _JOINED or pieces[-1].memory_bytes > _PIECE_BYTES:
                return
            pieces[-count:] = [self._kind.joined(pieces[-count:])]

    def _erase(self, erasure: Erasure) -> None:
        left = [self._kind.without(piece, erasure.content) for piece in self._pieces]
        self._pieces = [piece for piece in left if piece.count]
        self._count_memory()
        self.files.remember(erasure)  # durable by its record in the log, and with the next list of files

    def _forget_sealed(self) -> None:
        self._pieces = self._pieces[self._sealed :]
        self._count_memory()
        self._since_s = self._clock.monotonic_s() if self._pieces else None

    def _count_memory(self) -> None:
        used = self.memory_bytes()
        self._memory.change(used - self._used)
        self._used = used

    def _make_room(self) -> None:
        """Flushes in a thread of its own when memory gets short, instead of waiting for the next upkeep."""
        if not self._making_room.acquire(blocking=False):
            return

        def flush() -> None:
            try:
                self.flush()
            except (HarchError, OSError) as problem:
                _log.error("could not free memory, will retry: %s", problem)
            finally:
                self._making_room.release()

        threading.Thread(target=flush, name="archive-room", daemon=True).start()


def _tier(rows: ArchiveRows) -> int:
    """Pieces of one tier differ in size by less than a factor of eight."""
    return rows.memory_bytes.bit_length() // 3
