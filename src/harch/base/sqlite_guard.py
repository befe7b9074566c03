"""Is a database what SQLite wrote? Digests of its pages and the position of its log, in a file beside it.

SQLite notices neither a changed byte in a page nor a log whose end is gone. `NAME-sums` does: before pages go from the
log to the database their digests are written and synced; after each commit it says how far the log is written. At the
next start both are compared, before SQLite looks:

- a page or a log in which one bit is flipped is put right (what it was stays as `.damaged`);
- other damage is refused with E1030, unless the file was written since: a database that another program has changed is
  checked by SQLite and adopted, and that is said;
- a log that lacks its end is said, and kept as `.damaged`; `lost_frames` tells the owner, who decides.

Whoever opens a guarded database calls `attach`, `committed` and `close`; SQLite moves no pages by itself then. Several
processes may have it open; the first one compares.

A checkpoint of a full log keeps commits waiting for 50 ms. An owner that gives the guard an executor has most pages
moved there, beside its commits; the checkpoint that ends the log then finds few left.

A process that closes a file loses all its locks on it, whoever took them: SQLite's as well. So while a connection is
open, the three files of the database are opened here once, and closed after the connection.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from concurrent.futures import Executor, Future
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.sqlite_pages import (
    UNKNOWN,
    SumsFile,
    Wal,
    WalPosition,
    beside,
    digest_of,
    frame_offset,
    frame_pages,
    page_count,
    read_position,
    read_wal,
)
from harch.base.state_files import SUFFIX

CHECKPOINT_PAGES = 8000  # in the log before they are moved to the database: most of them are the same pages again
REPAIRED_PAGES_MAX = 8  # looking for one bit takes a tenth of a second a page
_LOG_GROWTH_MAX = 2  # times that many pages while they are being moved beside commits; then commits wait
_CHUNK_PAGES = 256
_CHUNK_FRAMES = 1000  # 4 MB of memory at a time
_SHARED_BYTES = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("harch.damage")


class SqliteGuard:
    """One open database. `committed` may be called from another thread than the others, but not beside them.

    `synced`: whether each commit waits for the disk. Without that, a power cut may take the end of the log with it.
    `beside`: runs what need not keep commits waiting; it belongs to the owner and outlives the guard.
    """

    def __init__(self, path: Path, *, synced: bool = True, beside: Executor | None = None) -> None:
        """Compares what is there, unless another process has it open. Raises E1030 for what must not be used."""
        self._path, self._synced, self._beside = path, synced, beside
        self._ahead: Future[None] | None = None  # the move that was begun last and is not used yet
        self._mover: sqlite3.Connection | None = None
        self._snapshot: sqlite3.Connection | None = None
        self._moving = threading.Lock()  # around digests and checkpoints
        self._database = self._wal = self._shared = -1  # files
        self._noted = WalPosition()  # up to where pages of the log have their digests written
        self._is_foreign = False
        self._pages_max = CHECKPOINT_PAGES
        self._had_content = path.exists() and path.stat().st_size > 0
        self._trouble = ""
        self.lost_frames = 0  # of the log: acknowledged, and gone
        self._sums = SumsFile(path, _boot_id())
        try:
            if self._sums.is_damaged:
                _log.error("E1030: %s is damaged: SQLite checks the database instead", self._sums.path)
                self._is_foreign = True
            elif self._sums.is_only_user and self._sums.is_covering:
                self._compare()
        except BaseException:
            self._sums.close()
            raise
        self._sums.share()

    def require_whole(self) -> None:
        """For owners who cannot go on without what was acknowledged. Raises E1030 until somebody has decided."""
        if self.lost_frames:
            self.release()
            raise _damaged(self._path, f"its log lacks {self.lost_frames} pages that were acknowledged")

    def attach(self, connection: sqlite3.Connection) -> None:
        """Called once the database is open in WAL mode and has its tables. Raises E1030, sqlite3.Error, OSError."""
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("BEGIN IMMEDIATE")  # makes SQLite read the log, and the shared memory say how far it goes
        connection.execute("COMMIT")
        self._database, self._wal, self._shared = (
            os.open(beside(self._path, suffix), os.O_RDONLY | os.O_CLOEXEC) for suffix in ("", "-wal", "-shm")
        )
        if self._is_foreign or not self._sums.is_covering:
            self._adopt(connection)
        if self._beside is not None:
            self._mover, self._snapshot = (
                sqlite3.connect(self._path, isolation_level=None, check_same_thread=False) for _ in range(2)
            )
        self.committed(connection)

    def committed(self, connection: sqlite3.Connection) -> None:
        """Notes how far the log is written, and empties it now and then. A disk that is full stops neither."""
        found = self._found_position()
        if found is None:
            return
        position, backfilled = found
        try:
            self._sums.write_position(position, backfilled)
            if self._is_checkpoint_due(position.frames - backfilled):
                self._empty_log(connection, "PASSIVE")
                self._trouble = ""
        except (OSError, sqlite3.Error) as problem:
            if self._trouble != str(problem):  # once: it is tried again with each commit
                _log.warning("%s: cannot checkpoint the log now: %s", self._path, problem)
            self._trouble = str(problem)

    def _is_checkpoint_due(self, pages: int) -> bool:
        """Whether commits have to wait for it now. A move that failed leaves it all, and what to say, to them."""
        if self._beside is None or self._pages_max < CHECKPOINT_PAGES:
            return pages >= self._pages_max
        if self._ahead is not None and self._ahead.done():
            self._ahead = None
            return True
        if self._ahead is None and pages >= self._pages_max:
            self._ahead = self._beside.submit(self._move_ahead)
        return pages >= _LOG_GROWTH_MAX * self._pages_max

    def _move_ahead(self) -> None:
        """Moves what the log holds now, while others add to it.

        The snapshot is what makes that safe. No page behind it is moved, so each page that is has its digest; and
        SQLite does not begin the log anew, which would take away the pages that came since and have none yet.
        """
        if self._mover is None or self._snapshot is None:
            return
        with self._moving:
            self._snapshot.execute("BEGIN")
            self._snapshot.execute("SELECT 1 FROM sqlite_schema").fetchone()  # only a read takes the snapshot
            try:
                found = self._found_position()
                if found is not None:
                    self._note_pages(found[0])
                    self._mover.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    self._note_state()
            finally:
                self._snapshot.execute("COMMIT")

    def empty_log_every(self, connection: sqlite3.Connection, pages: int | None) -> None:
        """The log begins anew, and again whenever it holds so many pages, to save space; None: as usual."""
        self._pages_max = CHECKPOINT_PAGES if pages is None else pages
        if pages is None:
            return
        try:
            self._empty_log(connection, "RESTART")
        except (OSError, sqlite3.Error) as problem:
            _log.warning("%s: cannot checkpoint the log now: %s", self._path, problem)

    def _empty_log(self, connection: sqlite3.Connection, mode: str) -> None:
        with self._moving:
            found = self._found_position()
            if found is None:
                return
            self._note_pages(found[0])
            connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            if (found := self._found_position()) is not None:
                self._note_pages(found[0])  # what another process committed meanwhile
                self._sums.write_position(*found)
            self._note_state()

    def close(self, connection: sqlite3.Connection) -> None:
        """Closes the last connection of this process, after which SQLite has nothing left to move by itself."""
        self._stop_moving()
        try:
            found = self._found_position()
            if found is not None and self._sums.is_last_user():
                self._note_pages(found[0])
                pages = page_count(self._shared_bytes())
                # Before the log goes: a position that expects it would tell of a loss.
                self._sums.write_position(WalPosition(), 0, synced=True)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._sums.write_state(pages, self._path.stat().st_mtime_ns)
        except (OSError, sqlite3.Error) as problem:
            _log.warning("%s was not closed cleanly: %s", self._path, problem)
        finally:
            connection.close()
            self.release()

    def release(self) -> None:
        """Lets go of the files, once no connection is open any more."""
        self._stop_moving()
        self._sums.close()
        for file in (self._database, self._wal, self._shared):
            if file >= 0:
                os.close(file)
        self._database = self._wal = self._shared = -1

    def _stop_moving(self) -> None:
        """Waits for a move that has begun; one that has not finds nothing to do."""
        with self._moving:
            for connection in (self._mover, self._snapshot):
                if connection is not None:
                    connection.close()
            self._mover = self._snapshot = None

    # Writing

    def _shared_bytes(self) -> bytes:
        return os.pread(self._shared, _SHARED_BYTES, 0)

    def _found_position(self) -> tuple[WalPosition, int] | None:
        return read_position(self._shared_bytes()) if self._shared >= 0 else None

    def _note_state(self) -> None:
        self._sums.write_state(page_count(self._shared_bytes()), self._path.stat().st_mtime_ns)

    def _note_pages(self, position: WalPosition) -> None:
        """Digests of all pages that are new in the log, synced."""
        first = self._noted.frames + 1 if self._noted.salts == position.salts else 1
        size = self._sums.page_size
        if position.frames < first:
            return
        digests: dict[int, bytes] = {}
        end = position.frames + 1
        while end > first:  # from the end, because only the last content of a page counts
            begin = max(first, end - _CHUNK_FRAMES)
            at = frame_offset(size, begin)
            pages = frame_pages(os.pread(self._wal, frame_offset(size, end) - at, at), size, position.salts)
            if pages is None:
                raise OSError(errno.EAGAIN, "another process has begun the log anew")
            for page, content in pages.items():
                if page not in digests:
                    digests[page] = digest_of(content)
            end = begin
        self._sums.append(digests)
        self._noted = position

    def _adopt(self, connection: sqlite3.Connection) -> None:
        """Takes the database as it is: it has no digests yet, or others than its own."""
        if self._had_content:
            check = "integrity_check" if self._is_foreign else "quick_check"
            (answer,) = connection.execute(f"PRAGMA {check}(1)").fetchone()
            if answer != "ok" and self._is_foreign:
                raise _damaged(self._path, f"SQLite finds: {answer}")
            if answer != "ok":
                _log.error("E1030: %s is damaged; SQLite finds: %s", self._path, answer)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        page_size = int(connection.execute("PRAGMA page_size").fetchone()[0])
        digests: dict[int, bytes] = {}
        while chunk := os.pread(self._database, _CHUNK_PAGES * page_size, len(digests) * page_size):
            for at in range(0, len(chunk), page_size):
                digests[len(digests) + 1] = digest_of(chunk[at : at + page_size])
        self._noted = WalPosition()
        self._sums.begin(page_size, digests, self._path.stat().st_mtime_ns)
        self._is_foreign = False

    # Comparing

    def _compare(self) -> None:
        in_log = self._compare_log()
        size = self._sums.page_size
        there = self._path.stat().st_size // size if self._path.exists() else 0
        missing = [page for page in range(there + 1, self._sums.pages + 1) if page not in in_log]
        wrong = self._wrong_pages(in_log) if there else {}
        if len(wrong) <= REPAIRED_PAGES_MAX and not missing:
            wrong = {page: content for page, content in wrong.items() if not self._repair_page(page, content)}
        if not missing and not wrong:
            return
        if not there or self._path.stat().st_mtime_ns == self._sums.mtime_ns:
            found = [f"{len(missing)} are missing"] if missing else []
            found += [f"{len(wrong)} are not as they were written, the first is {min(wrong)}"] if wrong else []
            raise _damaged(self._path, f"of its {self._sums.pages} pages {' and '.join(found)}")
        # Not a disk, which changes no times: a program, or somebody who put a copy back. SQLite looks at the whole.
        _log.error("E1030: %s was changed by another program: %d pages", self._path, len(missing) + len(wrong))
        self._is_foreign = True

    def _wrong_pages(self, in_log: dict[int, int]) -> dict[int, bytes]:
        """Pages that are not as they were written. Those that the log holds are read from there, and do not count."""
        wrong: dict[int, bytes] = {}
        size, page = self._sums.page_size, 0
        with self._path.open("rb") as file:
            while page < self._sums.pages and (chunk := file.read(_CHUNK_PAGES * size)):
                for at in range(0, len(chunk), size):
                    page += 1
                    expected = self._sums.digest(page)
                    if page > self._sums.pages or page in in_log or expected == UNKNOWN:
                        continue
                    if digest_of(chunk[at : at + size]) != expected:
                        wrong[page] = chunk[at : at + size]
        return wrong

    def _repair_page(self, page: int, content: bytes) -> bool:
        """Finds one flipped bit, by trying all of them: no other page has this digest."""
        raw, expected = bytearray(content), self._sums.digest(page)
        for bit in range(8 * len(raw)):
            raw[bit >> 3] ^= 1 << (bit & 7)
            if digest_of(raw) == expected:
                break
            raw[bit >> 3] ^= 1 << (bit & 7)
        else:
            return False
        beside(self._path, f".page-{page}{SUFFIX}").write_bytes(content)
        before = self._path.stat()
        _overwrite(self._path, [((page - 1) * self._sums.page_size, bytes(raw))])
        os.utime(self._path, ns=(before.st_atime_ns, before.st_mtime_ns))
        _log.error("E1030: repaired a flipped bit in page %d of %s", page, self._path)
        return True

    def _compare_log(self) -> dict[int, int]:
        """Which pages the log holds."""
        path = beside(self._path, "-wal")
        data = path.read_bytes() if path.exists() else b""
        expected, backfilled = self._sums.position, self._sums.backfilled
        wal = read_wal(data, expected)
        found = wal.committed.frames if wal and wal.salts == expected.salts else 0
        if expected.frames > max(found, backfilled) and not _is_later(wal, expected):
            if not data and self._path.exists() and self._path.stat().st_mtime_ns != self._sums.mtime_ns:
                _log.error("E1030: another program has checkpointed %s", path)
                self._is_foreign = True
            else:
                self._lose(path, expected.frames - max(found, backfilled), data)
        elif wal and wal.repairs:
            beside(path, SUFFIX).write_bytes(data)
            _overwrite(path, wal.repairs)
            _log.error("E1030: repaired a flipped bit in %s", path)
        elif wal and wal.damaged_frame and not expected.frames:
            _log.warning("%s does not end as SQLite wrote it: a power cut, or damage", path)
        return wal.pages if wal else {}

    def _lose(self, path: Path, frames: int, data: bytes) -> None:
        if not self._synced and self._sums.boot != _boot_id():
            _log.warning("%s lacks its last %d pages: they were not synced when the power failed", path, frames)
            return
        self.lost_frames = frames
        kept = beside(path, SUFFIX)
        kept.write_bytes(data)
        _log.error("E1030: %s lacks %d pages that were acknowledged; what was there is kept as %s", path, frames, kept)


def _overwrite(path: Path, pieces: list[tuple[int, bytes]]) -> None:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for place, content in pieces:
            os.pwrite(file, content, place)
        os.fsync(file)
    finally:
        os.close(file)


def _is_later(wal: Wal | None, expected: WalPosition) -> bool:
    """Whether the log was begun anew after what was expected had all gone to the database."""
    if wal is None or wal.salts == expected.salts:
        return False
    before, after = (int.from_bytes(salts[:4], "big") for salts in (expected.salts, wal.salts))
    return after == (before + 1) & 0xFFFFFFFF


def _damaged(path: Path, why: str) -> HarchError:
    return HarchError(
        "E1030",
        f"{path} is damaged: {why}",
        hint=f"restore it from a backup, with its -wal and without its -sums; or remove {beside(path, '-sums')} to go "
        "on with what can be read",
    )


def _boot_id() -> bytes:
    try:
        return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))[:16].ljust(16, b"\x00")
    except (OSError, ValueError):
        return bytes(16)
