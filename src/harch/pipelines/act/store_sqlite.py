"""How does the ledger live in one file? SQLite, synchronous FULL, many writers' entries in one commit.

As in the hub (ADR 14): statements run on the event loop, only COMMIT, which waits for the disk, runs in a thread. What
arrives meanwhile shares the next commit. Another process may use the same file, e.g. to approve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard
from harch.pipelines.act.ledger import CommandState, LedgerEntry, decode_entry, dropped, encode_entry
from harch.pipelines.act.store import SCAN_MAX, LedgerConflict, StoredEntry

log = logging.getLogger(__name__)

WRITES_QUEUED_MAX = 50_000
WRITES_PER_COMMIT_MAX = 500
BUSY_TIMEOUT_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS act_ledger (
    cmd_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, state TEXT NOT NULL, closed INTEGER NOT NULL,
    letter INTEGER NOT NULL, changed_ms INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS act_ledger_open ON act_ledger (changed_ms) WHERE closed = 0 OR letter = 1;
CREATE INDEX IF NOT EXISTS act_ledger_closed ON act_ledger (changed_ms) WHERE closed = 1 AND letter = 0;
CREATE TABLE IF NOT EXISTS act_stop (id INTEGER PRIMARY KEY CHECK (id = 1), reason TEXT NOT NULL);
"""
_CREATE = "INSERT INTO act_ledger VALUES (?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_SWAP = (
    "UPDATE act_ledger SET revision = revision + 1, state = ?, closed = ?, letter = ?, changed_ms = ?, body = ?"
    " WHERE cmd_id = ? AND revision = ?"
)


@dataclass(slots=True)
class _Write:
    run: Callable[[], Any]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    result: Any = None


class SqliteLedger:
    """A LedgerStore in a file. One object per event loop."""

    def __init__(self, path: Path | str) -> None:
        """Raises E0775, and E1030 for a ledger that is not as it was written."""
        self._path = Path(path)
        self._queue: deque[_Write] = deque()
        self._behind: dict[str, StoredEntry] = {}  # accepted, and not on disk yet
        self._lost: set[tuple[str, int]] = set()  # accepted, but another process had been faster
        self._committing = self._planned = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="act-commit")
        try:
            self._guard = SqliteGuard(self._path)
            self._guard.require_whole()  # a ledger that forgot what was sent would send it again
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            self._writer, self._reader = self._connect(), self._connect()
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = FULL")  # an intent that a power cut can take back is none
            self._writer.executescript(_SCHEMA)
            self._guard.attach(self._writer)
        except (sqlite3.Error, OSError) as error:
            self._guard.release()
            raise self._unreachable(error) from error
        except HarchError:
            self._guard.release()
            raise

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        """What is not durable is written behind: accepted at once if the revision is the latest that this process
        knows. A crash before the next commit forgets it."""
        stored = StoredEntry(entry, revision + 1)
        if durable:
            if not await self._write(lambda: self._swap(entry, revision)):
                raise LedgerConflict(entry.cmd_id)
            return stored
        known = await self.get(entry.cmd_id)
        if (known.revision if known else 0) != revision:
            raise LedgerConflict(entry.cmd_id)
        self._behind[entry.cmd_id] = stored
        self._write(lambda: self._swap_behind(stored)).add_done_callback(lambda done: self._landed(done, stored))
        return stored

    def _swap(self, entry: LedgerEntry, revision: int) -> bool:
        if (entry.cmd_id, revision) in self._lost:
            # The number is right by chance: it is that of the process which was faster.
            self._lost.discard((entry.cmd_id, revision))
            return False
        row = (entry.state, entry.closed, entry.letter, entry.changed_ms, encode_entry(entry))
        if revision == 0:
            return bool(self._writer.execute(_CREATE, (entry.cmd_id, *row)).rowcount)
        return bool(self._writer.execute(_SWAP, (*row, entry.cmd_id, revision)).rowcount)

    def _swap_behind(self, stored: StoredEntry) -> bool:
        written = self._swap(stored.entry, stored.revision - 1)
        if not written and len(self._lost) < WRITES_QUEUED_MAX:
            self._lost.add((stored.entry.cmd_id, stored.revision))
        return written

    def _landed(self, done: asyncio.Future[Any], stored: StoredEntry) -> None:
        if self._behind.get(stored.entry.cmd_id) is stored:
            del self._behind[stored.entry.cmd_id]
        if done.exception() is not None:
            log.warning("lost an entry of the write-behind queue: %s", stored.entry.cmd_id)

    async def get(self, cmd_id: str) -> StoredEntry | None:
        if (behind := self._behind.get(cmd_id)) is not None:
            return behind
        rows = self._read("SELECT revision, body FROM act_ledger WHERE cmd_id = ?", (cmd_id,))
        return StoredEntry(decode_entry(rows[0][1]), rows[0][0]) if rows else None

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        marks = ", ".join("?" * len(states))
        rows = self._read(
            f"SELECT revision, body FROM act_ledger WHERE (closed = 0 OR letter = 1) AND state IN ({marks})"  # noqa: S608
            " ORDER BY changed_ms, cmd_id LIMIT ?",
            (*states, min(limit, SCAN_MAX)),
        )
        return [StoredEntry(decode_entry(body), revision) for revision, body in rows]

    async def last_done(self, limit: int = 1000) -> list[StoredEntry]:
        rows = self._read(
            "SELECT revision, body FROM act_ledger WHERE closed = 1 AND letter = 0 AND state = ?"
            " ORDER BY changed_ms DESC LIMIT ?",
            (CommandState.DONE, min(limit, SCAN_MAX)),
        )
        return [StoredEntry(decode_entry(body), revision) for revision, body in rows]

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        def run() -> int:
            write = self._writer.execute
            write("DELETE FROM act_ledger WHERE closed = 1 AND letter = 0 AND changed_ms < ?", (closed_before_ms,))
            oldest = "SELECT cmd_id, body FROM act_ledger WHERE letter = 1 ORDER BY changed_ms DESC LIMIT -1 OFFSET ?"
            rows = write(oldest, (letters_max,)).fetchall()
            for cmd_id, body in rows:
                entry = decode_entry(body)
                kept = encode_entry(dropped(entry, now_ms=entry.changed_ms))
                write(
                    "UPDATE act_ledger SET letter = 0, revision = revision + 1, body = ? WHERE cmd_id = ?",
                    (kept, cmd_id),
                )
            return len(rows)

        count: int = await self._write(run)
        return count

    async def set_stop(self, reason: str) -> None:
        def run() -> None:
            self._writer.execute("INSERT OR REPLACE INTO act_stop VALUES (1, ?)", (reason,))

        await self._write(run)

    def stopped(self) -> str:
        """Read from the file each time, a few microseconds, because another process may have stopped everything."""
        rows = self._read("SELECT reason FROM act_stop")
        return str(rows[0][0]) if rows else ""

    async def close(self) -> None:
        if self._queue or self._committing:
            with contextlib.suppress(HarchError):
                await self._write(lambda: None)
        self._thread.shutdown(wait=True)
        self._reader.close()
        self._guard.close(self._writer)

    # Group commit

    def _write(self, run: Callable[[], Any]) -> asyncio.Future[Any]:
        write = _Write(run)
        if len(self._queue) >= WRITES_QUEUED_MAX:
            write.done.set_exception(
                HarchError("E0775", "the ledger's disk is too slow", hint="try again", retry_after_s=2)
            )
            return write.done
        self._queue.append(write)
        if not self._committing and not self._planned:
            self._planned = True  # not at once: what else comes in this turn of the loop shares the commit
            asyncio.get_running_loop().call_soon(self._flush)
        return write.done

    def _flush(self) -> None:
        self._planned = False
        if self._committing or not self._queue:
            return
        group = [self._queue.popleft() for _ in range(min(len(self._queue), WRITES_PER_COMMIT_MAX))]
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for write in group:
                write.result = write.run()
        except sqlite3.Error as error:
            self._failed(group, error)
            return
        self._committing = True
        commit = asyncio.get_running_loop().run_in_executor(self._thread, self._commit)
        commit.add_done_callback(lambda done: self._committed(done, group))

    def _commit(self) -> None:
        self._writer.execute("COMMIT")
        self._guard.committed(self._writer)

    def _committed(self, done: asyncio.Future[Any], group: list[_Write]) -> None:
        self._committing = False
        error = done.exception()
        if error is not None:
            self._failed(group, error)
            return
        for write in group:
            if not write.done.done():
                write.done.set_result(write.result)
        self._flush()

    def _failed(self, group: list[_Write], error: BaseException) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        for write in group:
            if not write.done.done():
                write.done.set_exception(self._unreachable(error))
        if self._queue and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)

    def _read(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> HarchError:
        return HarchError(
            "E0775", f"{self._path}: {error}", hint="check that the disk has room and the file is writable"
        )
