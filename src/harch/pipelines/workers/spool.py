"""What has a source accepted and not yet seen in a checkpoint? A file that survives the process, and a power cut if it
is told to. It is written before a sender hears yes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    source INTEGER, partition INTEGER, seq INTEGER, message BLOB NOT NULL, PRIMARY KEY (source, partition, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS line (
    source INTEGER, partition INTEGER, last_seq INTEGER NOT NULL, PRIMARY KEY (source, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sender (source INTEGER PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
"""

LineKey = tuple[int, int]  # source, partition


class Kept(Struct, frozen=True):
    """A batch with its number in its line."""

    source: int
    partition: int
    seq: int
    message: bytes


class SavedLine(Struct, frozen=True):
    last_seq: int
    messages: tuple[bytes, ...]  # the last ones of the line, in order, without a hole


class Spool:
    """One file, one process. All methods are quick enough for an event loop: a commit of what one call brought."""

    def __init__(self, path: Path, *, synced: bool) -> None:
        """Raises E0752, and E1030 for a file that is not as it was written."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._guard = SqliteGuard(path, synced=synced)
            if synced:
                self._guard.require_whole()
        except OSError as error:
            raise _failed(path, error) from error
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            # NORMAL: what is committed survives the process, since the system has it; FULL: the machine, too.
            self._db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._db.executescript(_SCHEMA)
            self._guard.attach(self._db)
        except (sqlite3.Error, OSError) as error:
            self._guard.release()
            raise _failed(path, error) from error
        except HarchError:
            self._guard.release()
            raise
        self._path = path
        self._forgettable: dict[LineKey, int] = {}

    def senders(self) -> dict[int, int]:
        """The last number of each sender that was accepted."""
        return dict(self._db.execute("SELECT source, seq FROM sender"))

    def lines(self) -> dict[LineKey, SavedLine]:
        """What is to be sent again after a start."""
        found: dict[LineKey, list[bytes]] = {}
        last = {(source, part): seq for source, part, seq in self._db.execute("SELECT * FROM line")}
        for source, part, message in self._db.execute(
            "SELECT source, partition, message FROM kept ORDER BY source, partition, seq"
        ):
            found.setdefault((source, part), []).append(message)
        return {key: SavedLine(seq, tuple(found.get(key, ()))) for key, seq in last.items()}

    def add(self, batches: Iterable[Kept], senders: Mapping[int, int]) -> None:
        """All of it or nothing. Raises E0752."""
        try:
            with self._written():
                for one in batches:
                    self._db.execute(
                        "INSERT INTO kept VALUES (?, ?, ?, ?)", (one.source, one.partition, one.seq, one.message)
                    )
                    self._db.execute("REPLACE INTO line VALUES (?, ?, ?)", (one.source, one.partition, one.seq))
                self._db.executemany("REPLACE INTO sender VALUES (?, ?)", senders.items())
                self._forget()
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error
        self._forgettable.clear()

    def replace(self, source: int, partition: int, first_seq: int, last_seq: int, gap: bytes) -> None:
        """What was shed needs no room any more; the gap in its place is told instead. Raises E0752."""
        try:
            with self._written():
                self._db.execute(
                    "DELETE FROM kept WHERE source = ? AND partition = ? AND seq BETWEEN ? AND ?",
                    (source, partition, first_seq, last_seq),
                )
                self._db.execute("INSERT INTO kept VALUES (?, ?, ?, ?)", (source, partition, last_seq, gap))
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error

    def checkpointed(self, source: int, partition: int, seq: int) -> None:
        """No longer needed; forgotten with the next write, or by `tidy`."""
        self._forgettable[(source, partition)] = seq

    def tidy(self) -> None:
        """A disk that is full is tried again with the next write."""
        if self._forgettable:
            with contextlib.suppress(sqlite3.OperationalError):
                with self._written():
                    self._forget()
                self._forgettable.clear()

    def close(self) -> None:
        self.tidy()
        self._guard.close(self._db)

    def _forget(self) -> None:
        for (source, partition), seq in self._forgettable.items():
            self._db.execute(
                "DELETE FROM kept WHERE source = ? AND partition = ? AND seq <= ?", (source, partition, seq)
            )

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """One transaction: all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
            self._guard.committed(self._db)
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _failed(path: Path, error: sqlite3.Error | OSError) -> HarchError:
    return HarchError("E0752", f"{path}: {error}", hint="is the disk full, or the folder not writable?")
