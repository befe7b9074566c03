"""The SQL sink: the statement and its key are both there, or neither; however often it is asked for."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harch.pipelines.act.settings import SqlSink as Settings
from harch.pipelines.act.sinks.base import Effect, SinkRequest
from harch.pipelines.act.sinks.sql import SqlSinkAdapter

ADD = "UPDATE accounts SET amount = amount + :amount WHERE id = :device"
TAKE = "UPDATE accounts SET amount = amount - :amount WHERE id = :device"


@pytest.fixture
def bank(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "bank.db", isolation_level=None)
    connection.executescript("CREATE TABLE accounts (id TEXT PRIMARY KEY, amount INTEGER CHECK (amount < 1000));")
    connection.execute("INSERT INTO accounts VALUES ('d0', 0)")
    return connection


def sink_at(tmp_path: Path, **changes: Any) -> SqlSinkAdapter:
    fields = {"url": f"sqlite:///{tmp_path}/bank.db", "statement": ADD, "undo_statement": TAKE, "timeout_s": 20.0}
    return SqlSinkAdapter(Settings(**{**fields, **changes}))


def order(number: int = 0, *, amount: int = 10, undo: bool = False) -> SinkRequest:
    return SinkRequest(
        key=f"{number}:0" + (":undo" if undo else ""), cmd_id=str(number), device="d0", action="pay",
        args={"amount": amount}, fence=1, timeout_s=20, expires_ms=2**53, undo=undo,
    )  # fmt: skip


def now() -> str:
    return ""


def amount(bank: sqlite3.Connection) -> int:
    return int(bank.execute("SELECT amount FROM accounts").fetchone()[0])


async def test_a_thousand_deliveries_are_one_change_each(bank: sqlite3.Connection, tmp_path: Path) -> None:
    sinks = [sink_at(tmp_path), sink_at(tmp_path)]
    outcomes = await asyncio.gather(*(sinks[at % 2].execute(order(at % 10), now) for at in range(1000)))
    assert {outcome.effect for outcome in outcomes} == {Effect.YES}
    assert amount(bank) == 100
    assert (await sinks[0].probe(order(3))).effect is Effect.YES
    assert (await sinks[0].probe(order(77))).effect is Effect.NO
    for sink in sinks:
        await sink.close()


async def test_taking_back_has_a_key_of_its_own_and_happens_once(bank: sqlite3.Connection, tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    await sink.execute(order(), now)
    for _ in range(3):
        assert (await sink.execute(order(undo=True), now)).effect is Effect.YES
    assert amount(bank) == 0
    await sink.close()


async def test_a_statement_that_fails_leaves_no_key_behind(bank: sqlite3.Connection, tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    outcome = await sink.execute(order(amount=5000), now)
    assert outcome.effect is Effect.NO
    assert (await sink.probe(order())).effect is Effect.NO
    assert (await sink.execute(order(amount=5), now)).effect is Effect.YES
    assert amount(bank) == 5
    await sink.close()


async def test_a_gate_that_closes_before_the_commit_rolls_everything_back(
    bank: sqlite3.Connection, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path)
    outcome = await sink.execute(order(), lambda: "expired")
    assert (outcome.effect, outcome.detail) == (Effect.NO, "expired")
    assert amount(bank) == 0
    assert (await sink.probe(order())).effect is Effect.NO
    await sink.close()


async def test_a_statement_that_needs_more_than_the_command_carries_is_a_clear_no(
    bank: sqlite3.Connection, tmp_path: Path
) -> None:
    sink = sink_at(tmp_path, statement="UPDATE accounts SET amount = :total")
    outcome = await sink.execute(order(), now)
    assert outcome.effect is Effect.NO
    assert "`total`" in outcome.detail
    await sink.close()


async def test_a_value_cannot_become_a_statement(bank: sqlite3.Connection, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, statement="INSERT INTO accounts VALUES (:name, 1)")
    hostile = "x', 1); DROP TABLE accounts; --"
    sent = SinkRequest(
        key="k", cmd_id="c", device="d0", action="a", args={"name": hostile}, fence=1, timeout_s=20, expires_ms=1
    )
    assert (await sink.execute(sent, now)).effect is Effect.YES
    assert bank.execute("SELECT count(*) FROM accounts WHERE id = ?", (hostile,)).fetchone() == (1,)
    await sink.close()


async def test_a_locked_database_is_a_no_and_not_a_guess(bank: sqlite3.Connection, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, timeout_s=1.0)
    await sink.prepare(order())
    bank.execute("BEGIN EXCLUSIVE")
    outcome = await sink.execute(order(), now)
    bank.execute("ROLLBACK")
    assert (outcome.effect, outcome.retry) == (Effect.NO, True)
    assert amount(bank) == 0
    await sink.close()
