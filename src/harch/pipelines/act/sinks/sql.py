"""How does a database hear of a command? The statement and the key in one transaction: both are there, or neither.

This is the one sink where exactly once needs nobody's good will: the key is unique, so a second transaction fails
before it changes anything, and what became of a lost answer is one SELECT.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harch.base.egress import EgressGuard, NotPermitted, reason
from harch.base.errors import HarchError
from harch.pipelines.act.settings import SqlSink as Settings
from harch.pipelines.act.sinks.addresses import SQLITE, PostgresTarget, load_psycopg, postgres_target
from harch.pipelines.act.sinks.base import (
    Effect,
    PreparedRequest,
    SendGate,
    SinkOutcome,
    SinkRequest,
    at_home,
    closed,
    from_environment,
)

# libpq reads addresses from these where the given ones leave something open.
STRAY_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE")
_PARAMETER = re.compile(r"(?<![:\w]):([a-zA-Z_]\w*)")


class SqlSinkAdapter:
    """SQLite or PostgreSQL through their DB-API modules, in a thread of its own, one transaction at a time."""

    def __init__(
        self, settings: Settings, *, guard: EgressGuard | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._guard = guard or at_home()
        url = from_environment(settings.url, environment)
        self._open: Callable[[], Any]
        if url.startswith(SQLITE):
            path = Path(url.removeprefix(SQLITE))
            self._error: type[Exception] = sqlite3.Error
            self._unique: type[Exception] = sqlite3.IntegrityError
            self._style = "named"
            self._open = lambda: sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=settings.timeout_s
            )
        else:
            psycopg, target = load_psycopg(), _target(url)
            self._error, self._unique, self._style = psycopg.Error, psycopg.errors.UniqueViolation, "pyformat"
            self._open = lambda: psycopg.connect(
                **checked_addresses(target, self._guard),
                **{**target.rest, "connect_timeout": max(1, int(settings.timeout_s))},
                autocommit=True,
            )
        self._connection: Any = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="act-sql")

    @property
    def keeps_keys(self) -> bool:
        return True

    @property
    def reads_back(self) -> bool:
        return True

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_s

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        try:
            await self._in_thread(self._connect, order.timeout_s)
        except (self._error, OSError) as error:
            return PreparedRequest(f"the database cannot be reached ({reason(error)})")
        return PreparedRequest()

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        try:
            outcome: SinkOutcome = await self._in_thread(lambda: self._transact(order, gate), order.timeout_s)
        except TimeoutError:
            return SinkOutcome(Effect.MAYBE, f"the database did not respond in {order.timeout_s:g} s")
        return outcome

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        try:
            found = await self._in_thread(lambda: self._has(order.key), order.timeout_s)
        except (self._error, OSError) as error:
            return SinkOutcome(Effect.MAYBE, f"cannot query the database ({reason(error)})")
        return SinkOutcome(Effect.YES if found else Effect.NO, "the key is " + ("there" if found else "not there"))

    async def close(self) -> None:
        def shut() -> None:
            if self._connection is not None:
                self._connection.close()

        await asyncio.get_running_loop().run_in_executor(self._thread, shut)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], Any], timeout_s: float) -> Any:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # In the thread

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = self._open()
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._settings.outbox}"
                " (key TEXT PRIMARY KEY, cmd_id TEXT NOT NULL, device TEXT NOT NULL, action TEXT NOT NULL)"
            )
        return self._connection

    def _transact(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        committing = False
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE" if self._style == "named" else "BEGIN")
            try:
                self._run(
                    f"INSERT INTO {self._settings.outbox} VALUES (:key, :cmd_id, :device, :action)",  # noqa: S608
                    {"key": order.key, "cmd_id": order.cmd_id, "device": order.device, "action": order.action},
                )
            except self._unique:
                connection.execute("ROLLBACK")
                return SinkOutcome(Effect.YES, "already present", verified=True)
            statement = self._settings.undo_statement if order.undo else self._settings.statement
            fixed = {"key": order.key, "cmd_id": order.cmd_id, "device": order.device}
            self._run(statement, {**order.args, **fixed})
            if shut := gate():
                connection.execute("ROLLBACK")
                return closed(shut)
            committing = True
            connection.execute("COMMIT")
        except (self._error, NotPermitted) as error:
            self._give_back()
            # Before COMMIT nothing counts; a COMMIT that failed may have reached the far side.
            return SinkOutcome(Effect.MAYBE if committing else Effect.NO, f"{type(error).__name__}: {str(error)[:200]}")
        return SinkOutcome(Effect.YES, "committed", verified=True)

    def _give_back(self) -> None:
        """A connection in doubt is not used again; closing it rolls back what is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self._error:
                return

    def _has(self, key: str) -> bool:
        self._connect()
        return bool(self._run(f"SELECT 1 FROM {self._settings.outbox} WHERE key = :key", {"key": key}).fetchone())  # noqa: S608

    def _run(self, statement: str, values: dict[str, Any]) -> Any:
        used = set(_PARAMETER.findall(statement))
        if missing := sorted(used - set(values)):
            raise self._error(f"the statement needs `{missing[0]}`, which the command lacks")
        if self._style == "pyformat":
            statement = _PARAMETER.sub(r"%(\1)s", statement.replace("%", "%%"))
        return self._connection.execute(statement, {name: values[name] for name in used})


def checked_addresses(target: PostgresTarget, guard: EgressGuard) -> dict[str, str]:
    """Where libpq shall connect to, as addresses that were judged a moment ago, so that it looks up no name itself.
    Raises NotPermitted."""
    if stray := [name for name in STRAY_VARIABLES if name in os.environ]:
        raise NotPermitted(f"the variable {stray[0]} is set, which could redirect it")
    hosts, addresses, ports = [], [], []
    for one in target.hosts:
        for address in [""] if one.is_socket else guard.addresses(one.connected, one.port):
            hosts.append(one.host or address)
            addresses.append(address)
            ports.append(str(one.port))
    found = {"host": ",".join(hosts), "hostaddr": ",".join(addresses), "port": ",".join(ports)}
    return {name: value for name, value in found.items() if value.strip(",")}


def _target(url: str) -> PostgresTarget:
    try:
        return postgres_target(url)
    except ValueError as error:
        hint = "write postgresql://user@host:port/database"
        raise HarchError("E0776", f"the address of the database {error}", hint=hint) from None
