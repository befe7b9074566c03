"""When is a write safe? When its records are synced; requests that wait at the same time share one sync."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from harch.base.errors import HarchError
from harch.sentinel.store.wal.salvage import GuardWriter, guard_path
from harch.sentinel.store.wal.segments import MAGIC, LogDisk, frame, segment_numbers, segment_path, sync_folder

_RETRY_AFTER_S = 1.0  # how long a disk that refused is left alone

_log = logging.getLogger(__name__)


class SegmentBatch(Protocol):
    """Records for one segment that are not on disk yet."""

    segment: int

    def payload(self) -> memoryview: ...


class WalJournal(Protocol):
    """Collects what is to be written: of samples, lines or spans."""

    newest: dict[int, int]  # segment -> newest time in it

    def take(self) -> tuple[Sequence[Any], int]:
        """All batches that wait to be written, and the ticket of the last record in them."""
        ...

    def give_back(self, batches: Sequence[Any]) -> None:
        """Buffers that were written can be used again."""
        ...


class Log:
    """Writes what the journal collects. A batch is one frame: after a crash it is there as a whole or not at all."""

    def __init__(self, folder: Path, journal: WalJournal, disk: LogDisk, monotonic_s: Callable[[], float]) -> None:
        self._folder = folder
        self._journal = journal
        self._disk = disk
        self._monotonic_s = monotonic_s
        self._turn = threading.Condition()
        self._writing = False
        self._durable = 0  # ticket up to which all is on disk
        self._unwritten: list[SegmentBatch] = []  # what a disk refused; written first once it can
        self._unwritten_ticket = 0
        self._failure = ""
        self._retry_at = 0.0
        self._file: int | None = None
        self._file_segment = 0
        self._file_size = 0
        self._guard: GuardWriter | None = None
        self.synced_bytes = 0

    @property
    def failure(self) -> str:
        """Why nothing can be written at the moment; empty if it can."""
        return self._failure

    def check_writable(self) -> None:
        """Raises E0617 while the disk refuses, so that nothing new is taken that could not be kept."""
        if not self._failure:
            return
        if self._monotonic_s() < self._retry_at:
            raise self._refusal()
        self.commit(self._unwritten_ticket)

    def commit(self, ticket: int) -> None:
        """Returns when all records up to the ticket are on disk. Raises E0617 where that failed."""
        while True:
            with self._turn:
                while self._writing and self._durable < ticket:
                    self._turn.wait()
                    if self._failure and self._durable < ticket:
                        raise self._refusal()
                if self._durable >= ticket:
                    return
                self._writing = True
            try:
                self._write_all()
            except OSError as problem:
                self._failed(problem)
                raise self._refusal() from problem
            finally:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()

    def drop_segments(self, before: int, until: int) -> int:
        """Removes the oldest segments, as long as they hold no sample after `until`; returns how many went."""
        newest = self._journal.newest
        gone = 0
        for number in sorted(number for number in tuple(newest) if number < before):
            if newest[number] > until:
                break
            path = segment_path(self._folder, number)
            guard_path(path).unlink(missing_ok=True)  # first: a guard without its segment would mean a loss
            path.unlink(missing_ok=True)
            del newest[number]
            gone += 1
        if gone:
            sync_folder(self._folder)
        return gone

    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment_path(self._folder, number).stat().st_size for number in segment_numbers(self._folder))

    def close(self) -> None:
        if self._file is not None:
            self._disk.close(self._file)
            self._file = None
        self._drop_guard()

    def _write_all(self) -> None:
        """Writes what was refused before and what came since. Only one thread is here at a time."""
        batches, ticket = self._journal.take()
        self._unwritten = [*self._unwritten, *batches]
        self._unwritten_ticket = ticket
        while self._unwritten:
            segment = self._unwritten[0].segment
            share = [batch for batch in self._unwritten if batch.segment == segment]
            self._write_share(segment, share)
            self._unwritten = self._unwritten[len(share) :]
            self._journal.give_back(share)
        if self._failure:
            _log.warning("log is writable again: %s", self._folder)
        self._failure = ""
        with self._turn:
            self._durable = ticket

    def _write_share(self, segment: int, batches: Sequence[SegmentBatch]) -> None:
        parts: list[memoryview | bytes] = []
        if self._file is None or self._file_segment != segment:
            self.close()
            self._file = self._disk.open(segment_path(self._folder, segment))
            self._file_segment, self._file_size = segment, 0
            self._open_guard(segment_path(self._folder, segment))
        if self._file_size == 0:
            parts.append(MAGIC)
        for batch in batches:
            payload = batch.payload()
            parts += [frame(payload), payload]
        try:
            self._disk.write(self._file, parts, self._file_size)
        except OSError:
            self._shorten()
            raise
        self._cover(parts)
        size = sum(len(part) for part in parts)
        self._file_size += size
        self.synced_bytes += size

    def _open_guard(self, segment: Path) -> None:
        try:
            self._guard = GuardWriter(segment)
        except OSError as problem:
            _log.warning("writing %s without a guard: %s", segment, problem)

    def _cover(self, parts: Sequence[memoryview | bytes]) -> None:
        """What is synced is sound without its guard, so a guard that cannot be written refuses nothing."""
        if self._guard is None:
            return
        try:
            self._guard.cover(parts, self._file_size)
        except OSError as problem:
            _log.warning("continuing segment %d without a guard: %s", self._file_segment, problem)
            self._drop_guard()

    def _drop_guard(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _shorten(self) -> None:
        """Takes off what was written in part; where even that fails, the next attempt writes over it."""
        if self._file is not None:
            try:
                self._disk.shorten(self._file, self._file_size)
            except OSError as problem:
                _log.warning("could not remove the torn end of the log: %s", problem)

    def _failed(self, problem: OSError) -> None:
        if not self._failure:
            _log.error("cannot write the log, refusing writes: %s", problem)
        self._failure = problem.strerror or str(problem)
        self._retry_at = self._monotonic_s() + _RETRY_AFTER_S

    def _refusal(self) -> HarchError:
        return HarchError(
            "E0617",
            f"the log cannot be written: {self._failure}",
            hint="free disk space; senders retry what was not acknowledged",
            retry_after_s=max(1, round(_RETRY_AFTER_S)),
        )
