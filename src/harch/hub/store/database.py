"""Where do the rows live? One SQLite file: a writing connection, and a reading one that never waits for it."""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from harch.base.clock import iso
from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard
from harch.hub.store import rows
from harch.hub.store.migrations import migrate
from harch.hub.store.records import AgentKey, CatalogEntry, Condition, ConditionKind, IdempotencyEntry
from harch.hub.store.rows import Statement
from harch.hub.views import KeyInfo, Role, WorkloadPage, WorkloadQuery
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec

PAGE_BYTES = 4096


class Database:
    """The repository. Writes go through `execute` + `commit` of one writer; reads may come from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises E1030 for a file that is not as it was written. A log that lost its end is said, and read as it is:
        the head of the audit chain, which is kept elsewhere, tells whether the hub may go on."""
        self.path = path
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        try:
            self._guard = SqliteGuard(path, beside=self._checkpoints)
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            self._writer = self._connect()
            self._writer.execute("PRAGMA journal_mode = WAL")
            # FULL: a commit survives power loss. NORMAL could lose the last commits and reissue an epoch.
            self._writer.execute("PRAGMA synchronous = FULL")
            migrate(self._writer)
            self._guard.attach(self._writer)
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")
        except (sqlite3.Error, OSError) as error:
            self._guard.release()
            raise storage_error(error, path) from error
        except HarchError:
            self._guard.release()
            raise
        self._reader_lock, self._writer_lock = threading.Lock(), threading.Lock()
        self._reserve = Reserve(path)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        connection.execute("PRAGMA busy_timeout = 5000")
        return connection

    # Writing

    def begin(self) -> None:
        self._writer.execute("BEGIN IMMEDIATE")

    def execute(self, statements: Iterable[Statement]) -> None:
        """Runs a group. Tables do not refer to each other, so the two frequent kinds may go last, many at a time; of
        several states of one workload only the last is written. The others go in their order, equal ones in a row
        (the entries of the audit chain) many at a time."""
        workloads: dict[object, tuple[object, ...]] = {}
        events: list[tuple[object, ...]] = []
        runs: list[tuple[str, list[tuple[object, ...]]]] = []
        last = ""
        for sql, parameters in statements:
            if sql is rows.SAVE_WORKLOAD:
                workloads[parameters[0]] = parameters
            elif sql is rows.SAVE_EVENT:
                events.append(parameters)
            elif sql is last:
                runs[-1][1].append(parameters)
            else:
                runs.append((sql, [parameters]))
                last = sql
        for sql, many in runs:
            if len(many) == 1:
                self._writer.execute(sql, many[0])
            else:
                self._writer.executemany(sql, many)
        if workloads:
            self._writer.executemany(rows.SAVE_WORKLOAD, workloads.values())
        if events:
            self._writer.executemany(rows.SAVE_EVENT, events)

    def commit(self) -> None:
        """The only slow step: it waits for the disk. Safe to call from another thread while nobody else writes."""
        with self._writer_lock:
            self._writer.execute("COMMIT")
            self._guard.committed(self._writer)

    def rollback(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def write(self, statements: Iterable[Statement]) -> None:
        """One transaction, at once: for start-up and tests."""
        self.begin()
        try:
            self.execute(statements)
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def close(self) -> None:
        """Waits for what runs in other threads: SQLite does not survive a connection that is closed under it."""
        with self._reader_lock:
            self._reader.close()
        with self._writer_lock:
            self._guard.close(self._writer)
        self._checkpoints.shutdown()
        self._reserve.close()

    # Space

    def renew_reserve(self) -> None:
        """Raises OSError if the disk is too full for it; see `reserve`."""
        (page_count,), (page_bytes,) = self._all("PRAGMA page_count")[0], self._all("PRAGMA page_size")[0]
        self._reserve.renew(int(page_count) * int(page_bytes))

    def save_space(self, on: bool) -> None:
        """While nobody writes. On: the log begins anew, and soon again, so that it hardly grows."""
        few = max(8, self._reserve.bytes_each // PAGE_BYTES // 4)
        self._guard.empty_log_every(self._writer, few if on else None)

    # Reading

    def _all(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._reader_lock:
            return self._reader.execute(sql, parameters).fetchall()

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """For tables that have a module of their own."""
        return self._all(sql, parameters)

    def workloads_to_restore(self, finished_since: datetime) -> list[Workload]:
        found = self._all("SELECT body FROM workloads WHERE active = 1 OR created_at >= ?", (iso(finished_since),))
        return [rows.load_workload(body) for (body,) in found]

    def recent_specs(self, limit: int) -> list[WorkloadSpec]:
        """What was asked for lately, newest first."""
        found = self._all("SELECT body FROM workloads ORDER BY created_at DESC LIMIT ?", (limit,))
        return [rows.load_workload(body).spec for (body,) in found]

    def workload(self, ref: str, *, tenant: str | None) -> Workload | None:
        """By id, else the newest of that name."""
        scope, parameters = ("", ()) if tenant is None else (" AND tenant = ?", (tenant,))
        found = self._all(f"SELECT body FROM workloads WHERE id = ?{scope}", (ref, *parameters))  # noqa: S608
        if not found:
            found = self._all(
                f"SELECT body FROM workloads WHERE name = ?{scope} AND hidden = 0 AND guest_of = ''"  # noqa: S608
                " ORDER BY created_at DESC, id DESC LIMIT 1",
                (ref, *parameters),
            )
        return rows.load_workload(found[0][0]) if found else None

    def workloads(self, query: WorkloadQuery) -> WorkloadPage:
        where, parameters = ["hidden = 0", "guest_of <> ''" if query.borrowed else "guest_of = ''"], list[object]()
        for column, value in (
            ("tenant", query.tenant),
            ("state", query.state),
            ("type", query.type),
            ("name", query.name),
        ):
            if value is not None:
                where.append(f"{column} = ?")
                parameters.append(str(value))
        if query.active:
            where.append("active = 1")
        for label, value in query.labels.items():
            where.append("id IN (SELECT workload_id FROM workload_labels WHERE label = ? AND value = ?)")
            parameters += [label, value]
        condition = " AND ".join(where)  # column names are ours; every value is a parameter
        total = self._all(f"SELECT COUNT(*) FROM workloads WHERE {condition}", tuple(parameters))[0][0]  # noqa: S608
        found = self._all(
            f"SELECT body FROM workloads WHERE {condition} ORDER BY created_at DESC, id DESC LIMIT ? OFFSET ?",  # noqa: S608
            (*parameters, query.per_page, (query.page - 1) * query.per_page),
        )
        return WorkloadPage(items=[rows.load_workload(body) for (body,) in found], total=total)

    def last_event(self) -> int:
        found = self._all("SELECT MAX(seq) FROM events")
        return int(found[0][0] or 0)

    def events(
        self, *, after: int, limit: int, tenant: str | None, subject: str | None, kind: str | None
    ) -> list[EventRecord]:
        """Events after `after`, oldest first. A tenant sees its own and the hub's own (which name no tenant)."""
        where, parameters = ["seq > ?"], [after]  # type: list[str], list[object]
        if tenant is not None:
            where.append("tenant IN (?, '')")
            parameters.append(tenant)
        if subject is not None:
            where.append("subject = ?")
            parameters.append(subject)
        if kind is not None:
            where.append("(kind = ? OR kind LIKE ?)")
            parameters += [kind, f"{kind}.%"]
        found = self._all(
            "SELECT seq, at, kind, subject, tenant, message, data FROM events"  # noqa: S608
            f" WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?",
            (*parameters, limit),
        )
        return [rows.load_event(row) for row in found]

    def last_events(self, kinds: Collection[str], among: int) -> dict[str, datetime]:
        """When events of these kinds happened last, as far as they are among so many newest of all."""
        places = ", ".join("?" for _ in kinds)
        found = self._all(
            "SELECT kind, MAX(at) FROM events"  # noqa: S608
            f" WHERE seq > (SELECT MAX(seq) FROM events) - ? AND kind IN ({places}) GROUP BY kind",
            (among, *kinds),
        )
        return {str(kind): datetime.fromisoformat(str(at)) for kind, at in found}

    def idempotency_keys(self, since: datetime) -> list[IdempotencyEntry]:
        found = self._all(
            "SELECT tenant, key, workload_id, digest, created_at FROM idempotency_keys WHERE created_at >= ?"
            " ORDER BY created_at",
            (iso(since),),
        )
        return [
            IdempotencyEntry(
                tenant=str(tenant),
                key=str(key),
                workload_id=str(workload_id),
                digest=str(digest),
                created_at=datetime.fromisoformat(str(created_at)),
            )
            for tenant, key, workload_id, digest, created_at in found
        ]

    def conditions(self) -> list[Condition]:
        """What is special about the hardware now."""
        found = self._all("SELECT kind, subject, value, why FROM conditions ORDER BY kind, subject")
        return [Condition(kind=ConditionKind(k), subject=s, value=v, why=w) for k, s, v, w in found]

    def data_entries(self) -> list[CatalogEntry]:
        return [rows.load_data(body) for (body,) in self._all("SELECT body FROM data_objects")]

    def authorities(self) -> dict[str, bytes]:
        """Names to raw public keys."""
        found = self._all("SELECT name, public_key FROM authorities")
        return {str(name): bytes.fromhex(str(public_key)) for name, public_key in found}

    def api_keys(self) -> list[tuple[KeyInfo, str]]:
        """Every key with the digest of its secret."""
        found = self._all(
            "SELECT id, digest, name, tenant, role, prefix, created_at, last_used_at, revoked FROM api_keys"
        )
        return [
            (
                KeyInfo(
                    id=str(key_id),
                    name=str(name),
                    tenant=str(tenant),
                    role=Role(str(role)),
                    prefix=str(prefix),
                    created_at=datetime.fromisoformat(str(created_at)),
                    last_used_at=datetime.fromisoformat(str(last_used_at)) if last_used_at else None,
                    revoked=bool(revoked),
                ),
                str(digest),
            )
            for key_id, digest, name, tenant, role, prefix, created_at, last_used_at, revoked in found
        ]

    def agent_keys(self) -> list[AgentKey]:
        found = self._all("SELECT key_id, agent_id, node_ids FROM agent_keys ORDER BY key_id, agent_id")
        return [
            AgentKey(key_id=key_id, agent_id=agent_id, node_ids=msgspec.json.decode(nodes, type=tuple[str, ...]))
            for key_id, agent_id, nodes in found
        ]

    def secrets(self) -> list[tuple[str, str, bytes]]:
        return [(str(t), str(n), bytes(s)) for t, n, s in self._all("SELECT tenant, name, sealed FROM secrets")]


def storage_error(error: BaseException, path: Path) -> HarchError:
    """Says what a failed write means for people. A full disk has its own error, because people can mend it."""
    text = str(error)
    full = "full" in text or (isinstance(error, OSError) and error.errno in FULL)
    if full:
        return HarchError(
            "E1002",
            f"no space left for {path.name}",
            hint=f"free space on the disk of {path.parent}; running work goes on, and `harch stop` works",
            retry_after_s=5,
        )
    return HarchError("E1003", f"{path.name}: {text}", hint="`harch doctor` checks the state folder", retry_after_s=5)


# What is left when the disk is full? Room behind the end of the hub's own files, so that work can still be stopped.


RESERVE_BYTES = 4 * 1024 * 1024  # of each file: hundreds of stops
DISK_SHARE_MAX = 1 / 32  # of small disks, e.g. in tests
FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_NOT_HERE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Reserve:
    """Of one database. Its files stay open: closing one would give up the locks that SQLite holds in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, int] = {}
        self._fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if self._fallocate is not None:
            self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)

    @property
    def bytes_each(self) -> int:
        disk = os.statvfs(self._path.parent)
        return min(RESERVE_BYTES, int(disk.f_blocks * disk.f_frsize * DISK_SHARE_MAX))

    def renew(self, database_bytes: int) -> None:
        """`database_bytes`: how large the database is, with what only its log holds. Raises OSError on a full disk."""
        size = self.bytes_each
        self._hold(self._path, max(0, database_bytes - self._path.stat().st_size) + size)
        for suffix in ("-wal", "-sums"):  # nothing goes from the log to the database before its digests are written
            self._hold(self._path.with_name(f"{self._path.name}{suffix}"), size)

    def close(self) -> None:
        """Only when the database has been closed."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _hold(self, path: Path, size: int) -> None:
        if self._fallocate is None:
            return
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if self._fallocate(file, _KEEP_SIZE, os.fstat(file).st_size, size) != 0:
            number = ctypes.get_errno()
            if number not in _NOT_HERE:
                raise OSError(number, os.strerror(number), str(path))
