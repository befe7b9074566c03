"""What survives a crash? Silences, acknowledgements, log, alerts and the state of rules, in one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard
from harch.base.state_files import set_aside
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.shared_state import Record, decode_record
from harch.sentinel.rules.alert_state import KeptRule

BUSY_TIMEOUT_S = 5.0
SCHEMA_VERSION = 1
ALERT, RULE = "alert", "rule"

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS kept (kind TEXT, key TEXT, body BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID"
)

Address = tuple[str, str]  # kind and key

_alerts = msgspec.json.Decoder(Alert)
_rules = msgspec.json.Decoder(KeptRule)


class LoadedState(Struct):
    """What the file held. Rows that this release cannot read are left alone and counted."""

    records: list[Record]
    alerts: list[Alert]
    rules: list[KeptRule]
    unreadable: int = 0


class AlertStore:
    """One writer at a time; calls block for a disk, so they belong into a thread. A write that returned is on disk."""

    def __init__(self, path: Path) -> None:
        """A file that is damaged beyond repair is set aside: alerts that are sent twice are better than none."""
        self.path = path
        self._lock = threading.Lock()
        try:
            try:
                self._open()
            except (sqlite3.DatabaseError, HarchError) as damage:
                if isinstance(damage, sqlite3.OperationalError) or getattr(damage, "code", "E1030") != "E1030":
                    raise
                for suffix in ("", "-wal", "-shm", "-sums"):
                    if (one := path.with_name(path.name + suffix)).exists():
                        set_aside(one, f"cannot be used: {damage}", code="E1030")
                self._open()
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error

    def _open(self) -> None:
        self._guard = SqliteGuard(self.path)
        connection = None
        try:
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
            )
            self.path.chmod(0o600)  # comments and labels are nobody else's business
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a silence that a power cut takes back is none
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise HarchError(
                    "E0652",
                    f"{self.path.name} was written by a later release",
                    hint="run that release, or move the file",
                )
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._guard.attach(connection)
        except (sqlite3.Error, OSError, HarchError):
            if connection is not None:
                connection.close()
            self._guard.release()
            raise
        self._connection = connection

    def load(self) -> LoadedState:
        kept = LoadedState(records=[], alerts=[], rules=[])
        try:
            with self._lock:
                rows = self._connection.execute("SELECT kind, body FROM kept").fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        for kind, body in rows:
            try:
                if kind == ALERT:
                    kept.alerts.append(_alerts.decode(body))
                elif kind == RULE:
                    kept.rules.append(_rules.decode(body))
                else:
                    kept.records.append(decode_record(body))
            except (msgspec.MsgspecError, ValueError):
                kept.unreadable += 1
        return kept

    def write(self, changes: Mapping[Address, bytes | None]) -> None:
        """All of them or none; None removes a row. Raises E0652."""
        gone = [address for address, body in changes.items() if body is None]
        put = [(*address, body) for address, body in changes.items() if body is not None]
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("DELETE FROM kept WHERE kind = ? AND key = ?", gone)
                self._connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", put)
                self._connection.execute("COMMIT")
                self._guard.committed(self._connection)
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise self._unusable(error) from error

    def close(self) -> None:
        with self._lock:
            self._guard.close(self._connection)

    def _unusable(self, error: BaseException) -> HarchError:
        return HarchError(
            "E0652",
            f"{self.path.name}: {error}",
            hint=f"check that {self.path.parent} is writable and has room",
            retry_after_s=5,
        )


# When is a change on disk? Callers wait for one write that takes along what others changed meanwhile.


UNWRITTEN_MAX = 200_000


class RecordWriter(Protocol):
    def write(self, changes: Mapping[Address, bytes | None], /) -> None: ...


Offload = Callable[..., Awaitable[None]]


class Saver:
    """Collects changes and writes them in a thread. What could not be written is tried again with the next change."""

    def __init__(self, store: RecordWriter, *, offload: Offload = asyncio.to_thread) -> None:
        self._store, self._offload = store, offload
        self._lock = asyncio.Lock()
        self._unwritten: dict[Address, bytes | None] = {}
        self.failures = 0

    def add(self, changes: Mapping[Address, bytes | None]) -> None:
        self._unwritten.update(changes)
        if len(self._unwritten) > UNWRITTEN_MAX:
            raise HarchError(
                "E0652", f"{UNWRITTEN_MAX} changes could not be written", hint="check the disk", retry_after_s=5
            )

    @property
    def is_clean(self) -> bool:
        return not self._unwritten and not self._lock.locked()

    async def save(self) -> None:
        """Returns when everything that was added before is on disk. Raises E0652."""
        async with self._lock:
            if not self._unwritten:
                return
            writing, self._unwritten = self._unwritten, {}
            try:
                await self._offload(self._store.write, writing)
            except BaseException:
                self._unwritten = {**writing, **self._unwritten}
                self.failures += 1
                raise
