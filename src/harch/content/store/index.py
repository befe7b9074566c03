"""Which chunk is where, and which are needed? One guarded SQLite database; writers share commits.

A chunk is either among those of a tree that somebody holds (`tree_chunks`), or `unreferenced`, with the time when it
was last sent, asked for, or given up. Both change in the transaction that makes it so.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard
from harch.content.store.storage import storage_error

INDEX = "index.db"
HOLDERS_LOST = "holders_lost"  # a note: nothing may be collected until somebody has said who holds what
READERS = 4  # that read at the same time
WRITES_PER_COMMIT_MAX = 64
_VALUES_PER_STATEMENT = 500
_VERSION = 1
_BUSY_MS = 5000

_SCHEMA = (
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # A tenant whose key is gone has no name any more; its packs follow. `bytes_max`: -1 no limit, NULL the usual one.
    """CREATE TABLE tenants (
        key INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, key_id BLOB NOT NULL, wrapped BLOB,
        bytes_max INTEGER, chunks INTEGER NOT NULL DEFAULT 0, bytes_raw INTEGER NOT NULL DEFAULT 0,
        bytes_stored INTEGER NOT NULL DEFAULT 0)""",
    # `is_damaged`: not one of its chunks, but what is around them; it is written anew.
    """CREATE TABLE packs (
        key INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL,
        bytes INTEGER NOT NULL, chunks_live INTEGER NOT NULL, bytes_live INTEGER NOT NULL,
        is_damaged INTEGER NOT NULL DEFAULT 0)""",
    # `bytes`: of the whole record. No key is used twice, so that one that was read earlier never means another chunk.
    """CREATE TABLE chunks (
        key INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, id BLOB NOT NULL, size INTEGER NOT NULL,
        pack INTEGER NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL, is_damaged INTEGER NOT NULL DEFAULT 0)""",
    "CREATE UNIQUE INDEX chunks_by_id ON chunks (tenant, id)",
    "CREATE INDEX chunks_by_pack ON chunks (pack)",
    "CREATE INDEX chunks_damaged ON chunks (key) WHERE is_damaged = 1",
    "CREATE TABLE unreferenced (chunk INTEGER PRIMARY KEY, seen_ms INTEGER NOT NULL, is_released INTEGER NOT NULL)",
    """CREATE TABLE trees (
        key INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, digest TEXT NOT NULL,
        UNIQUE (tenant, digest))""",
    "CREATE TABLE tree_chunks (tree INTEGER, chunk INTEGER, PRIMARY KEY (tree, chunk)) WITHOUT ROWID",
    "CREATE UNIQUE INDEX trees_of_chunk ON tree_chunks (chunk, tree)",
    """CREATE TABLE holds (
        tenant INTEGER, holder TEXT, tree INTEGER NOT NULL, until_ms INTEGER, PRIMARY KEY (tenant, holder))
        WITHOUT ROWID""",
    "CREATE INDEX holds_by_tree ON holds (tree)",
    "CREATE INDEX holds_by_end ON holds (until_ms) WHERE until_ms IS NOT NULL",
)

Result = TypeVar("Result")

_log = logging.getLogger("harch.damage")


class UnknownIndex(Exception):
    """It was made by another version."""


class ChunkRow(NamedTuple):
    """A chunk and the place of its record."""

    key: int
    id: bytes
    size: int
    pack: int
    at: int
    bytes: int
    is_damaged: bool


class _Write:
    """A change that waits for its commit."""

    def __init__(self, change: Callable[[sqlite3.Connection], object]) -> None:
        self.change = change
        self.result: object = None
        self.error: BaseException | None = None
        self.is_done = False


class Index:
    """Thread-safe. Raises E1030 for a file that is not as it was written, sqlite3.DatabaseError for one that SQLite
    cannot read, and E1110 and E1002 for what fails later."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INDEX
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="content-checkpoint")
        self._waiting: deque[_Write] = deque()
        self._writing = threading.Lock()
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._connections: list[sqlite3.Connection] = []
        try:
            self._guard = SqliteGuard(self._path, beside=self._checkpoints)
        except OSError as error:
            raise storage_error(error, str(self._path)) from error
        try:
            self._writer = self._connect()
            self._prepare()
            self.has_lost_commits = self._guard.lost_frames > 0
            if self.has_lost_commits:  # among them perhaps holds; noted before the guard is content with what is left
                set_note(self._writer, name=HOLDERS_LOST, value="1")
            self._guard.attach(self._writer)
            for _ in range(READERS):
                reader = self._connect()
                reader.execute("PRAGMA query_only = ON")
                self._readers.put(reader)
        except BaseException:
            for connection in self._connections:
                connection.close()
            self._guard.release()
            self._checkpoints.shutdown()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
        self._connections.append(connection)
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        return connection

    def _prepare(self) -> None:
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")  # a commit that was acknowledged survives a power cut
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version != 0:
            raise UnknownIndex(version)
        self._writer.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            self._writer.execute(statement)
        self._writer.execute(f"PRAGMA user_version = {_VERSION}")
        self._writer.execute("COMMIT")

    def close(self) -> None:
        with self._writing:
            for _ in range(READERS):
                self._readers.get().close()  # waits for those that read
            self._guard.close(self._writer)
        self._checkpoints.shutdown()

    # Writing

    def write(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        """Runs a change and commits it, with others that came meanwhile. Durable on return; what raises is undone."""
        entry = _Write(change)
        self._waiting.append(entry)
        with self._writing:
            while not entry.is_done:  # perhaps the thread before has done it
                self._commit_some()
        if entry.error is not None:
            raise entry.error
        return entry.result  # type: ignore[return-value]

    def _commit_some(self) -> None:
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), WRITES_PER_COMMIT_MAX))]
        try:
            self._commit(group)
        except BaseException as error:  # noqa: BLE001 - `write` raises it, for each that waits
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            is_storage = isinstance(error, (sqlite3.Error, OSError))
            failure = storage_error(error, str(self._path)) if is_storage else error
            for entry in group:
                entry.error = entry.error or failure
        for entry in group:
            entry.is_done = True

    def _commit(self, group: list[_Write]) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        for entry in group:
            self._writer.execute("SAVEPOINT one")
            try:
                entry.result = entry.change(self._writer)
            except HarchError as error:
                entry.error = error  # of this change alone
                self._writer.execute("ROLLBACK TO one")
            self._writer.execute("RELEASE one")
        self._writer.execute("COMMIT")
        try:
            self._guard.committed(self._writer)
        except (OSError, sqlite3.Error) as error:  # it is committed all the same
            _log.error("E1110: the index of the content store cannot be guarded: %s", error)

    # Reading

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees what was committed before each of its statements."""
        connection = self._readers.get()
        try:
            yield connection
        except sqlite3.Error as error:
            raise storage_error(error, str(self._path)) from error
        finally:
            self._readers.put(connection)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.reading() as connection:
            return connection.execute(sql, parameters).fetchall()


CHUNK_COLUMNS = "chunks.key, id, size, pack, at, bytes, is_damaged"  # of a `ChunkRow`


def chunk_rows(cursor: sqlite3.Cursor) -> list[ChunkRow]:
    return [ChunkRow(key, id_, size, pack, at, many, bool(bad)) for key, id_, size, pack, at, many, bad in cursor]


def find_chunks(connection: sqlite3.Connection, tenant: int, ids: Sequence[bytes]) -> dict[bytes, ChunkRow]:
    """Those that are in the index, damaged ones too."""
    found: dict[bytes, ChunkRow] = {}
    for some in slices(ids):
        rows = connection.execute(
            f"SELECT {CHUNK_COLUMNS} FROM chunks WHERE tenant = ? AND id IN ({places(some)})",  # noqa: S608
            (tenant, *some),
        )
        found.update((row.id, row) for row in chunk_rows(rows))
    return found


def slices(values: Sequence[Result]) -> Iterator[Sequence[Result]]:
    """As many as one statement takes."""
    for first in range(0, len(values), _VALUES_PER_STATEMENT):
        yield values[first : first + _VALUES_PER_STATEMENT]


def places(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def note(connection: sqlite3.Connection, name: str) -> str:
    """Empty if there is none."""
    row = connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def drop_note(connection: sqlite3.Connection, *, name: str) -> None:
    connection.execute("DELETE FROM notes WHERE name = ?", (name,))


def set_note(connection: sqlite3.Connection, *, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))
