"""How do rows stay safe? Log, memory and files of one tenant's lines or spans, and every step between them.

A row is in the log until the list of files names the file that holds it; the list is replaced as a whole, so a crash at
any step leaves one of the two. Which rows these are is a matter of the `Kind`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Generic

import msgspec

from harch.base.clock import Clock, epoch_ns
from harch.base.errors import HarchError
from harch.sentinel.archive import planning
from harch.sentinel.archive.damage import DamagedFile
from harch.sentinel.archive.entries import Erasure
from harch.sentinel.archive.files import Files, windows_of
from harch.sentinel.archive.journal import ERASURE, ROWS, Reading, RecordJournal, read_records
from harch.sentinel.archive.kinds import Kind, R, Rows, View
from harch.sentinel.archive.limits import MIB, Keeping
from harch.sentinel.archive.memory import SharedMemory
from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.wal.disk import Disk as LogDisk
from harch.sentinel.store.wal.disk import SystemDisk
from harch.sentinel.store.wal.log import Log
from harch.sentinel.store.wal.salvage import damaged_files

_log = logging.getLogger(__name__)
_ANY_TIME = 1 << 62
_PIECE_BYTES = 4 * MIB  # larger pieces of memory are not joined
_JOINED = 8  # pieces of one size


class Table(Generic[R]):
    """One tenant's rows of one kind, for any number of threads."""

    def __init__(
        self,
        folder: Path,
        kind: Kind[R],
        keeping: Keeping,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: Disk | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        """Opens the folder, which the caller has locked. Reads the log, so it may take a while."""
        self._kind, self._keeping, self._clock = kind, keeping, clock
        self._memory = memory or SharedMemory(keeping.memory_bytes_max)
        self._used = 0  # what this table has added to it
        self._log_folder = log_folder = folder / "wal"
        log_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.files = Files(folder, kind, disk or Disk())
        self._pieces: list[R] = []
        self._sealed = 0  # pieces that a flush has in hand: nothing is joined to them
        self._lock = threading.Lock()  # of pieces, list of files and order of records together
        self._upkeep = threading.RLock()  # one flush, merge or erasure at a time
        self._making_room = threading.Lock()
        self._reading = Reading()
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
        if used > self._keeping.flush_bytes or is_full:
            self._make_room()
        if used > self._keeping.memory_bytes_max or is_full:
            waiting = max(used, self._memory.used if is_full else 0)
            raise HarchError("E0629", f"{waiting // MIB} MiB wait to be written into files", retry_after_s=1)

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
    def view(self, start_ns: int, end_ns: int) -> Iterator[View[R]]:
        """Files with rows in the time (the end is not included) stay until the reader is done."""
        with self._lock:
            manifest = self.files.manifest
            files = tuple(one for one in manifest.files if one.start_ns < end_ns and one.end_ns >= start_ns)
            view = View(files, tuple(self._pieces), manifest.erasures)
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
                self._clock.monotonic_s() - self._since_s >= self._keeping.flush_after_s
            )
            if waited or self.memory_bytes() > self._keeping.flush_bytes or self._memory.is_crowded:
                self.flush()
            now_ns = epoch_ns(self._clock.now())
            gone = planning.expired(self.files.manifest.files, self._keeping, now_ns)
            if gone:
                self.files.replace(gone, [], self._lock)
            for group in planning.merges(self.files.manifest.files, self._keeping, now_ns):
                if self.files.have_room_for(group, self._keeping.free_bytes_min):
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
            raise HarchError("E0616", "a query still reads a file with erased rows", hint="purge again when it is over")

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
                _log.error("no room can be made in memory, and it is tried again: %s", problem)
            finally:
                self._making_room.release()

        threading.Thread(target=flush, name="archive-room", daemon=True).start()


def _tier(rows: Rows) -> int:
    """Pieces of one tier differ in size by less than a factor of eight."""
    return rows.memory_bytes.bit_length() // 3
