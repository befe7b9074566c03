"""The ledger in a file: compare-and-set, what a crash leaves, and two processes at one file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.act import ledger
from harch.pipelines.act.ledger import CommandState, LedgerEntry
from harch.pipelines.act.store import LedgerConflict
from harch.pipelines.act.store_sqlite import SqliteLedger
from unit.pipelines.act.act_builders import command


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    opened = SqliteLedger(tmp_path / "act.db")
    yield opened
    await opened.close()


def entry(number: int = 0) -> LedgerEntry:
    return ledger.authorised(ledger.proposed(command(number), now_ms=number), now_ms=number)


def dead(number: int, *, letter: bool = True) -> LedgerEntry:
    return ledger.given_up(entry(number), "broken", now_ms=number, letter=letter, maybe_sent=False)


async def test_an_entry_comes_back_as_it_was(store: SqliteLedger) -> None:
    stored = await store.put(entry(), revision=0)
    assert await store.get(entry().cmd_id) == stored
    assert await store.get("unknown") is None


async def test_of_writers_with_the_same_revision_one_wins(store: SqliteLedger, tmp_path: Path) -> None:
    other = SqliteLedger(tmp_path / "act.db")
    stored = await store.put(entry(), revision=0)
    results = await asyncio.gather(
        *(
            place.put(structs.replace(entry(), worker=f"w{number}"), revision=stored.revision)
            for number, place in enumerate([store, other] * 10)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, LedgerConflict) for result in results) == 19
    with pytest.raises(LedgerConflict):
        await other.put(entry(), revision=0)
    await other.close()


async def test_a_durable_write_is_there_for_everybody_when_it_returns(store: SqliteLedger, tmp_path: Path) -> None:
    await store.put(entry(), revision=0)
    reader = sqlite3.connect(tmp_path / "act.db")
    assert reader.execute("SELECT count(*) FROM act_ledger").fetchone() == (1,)
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader.close()
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"


async def test_many_writers_share_commits(store: SqliteLedger) -> None:
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement.startswith("COMMIT")

    store._writer.set_trace_callback(count)
    await asyncio.gather(*(store.put(entry(number), revision=0) for number in range(200)))
    assert commits <= 3


async def test_what_is_written_behind_counts_at_once_and_reaches_the_disk(store: SqliteLedger, tmp_path: Path) -> None:
    first = await store.put(entry(), revision=0, durable=False)
    assert await store.get(entry().cmd_id) == first
    with pytest.raises(LedgerConflict):
        await store.put(entry(), revision=0, durable=False)
    second = await store.put(structs.replace(entry(), worker="w"), revision=first.revision, durable=False)
    third = await store.put(structs.replace(entry(), worker="x"), revision=second.revision)
    other = SqliteLedger(tmp_path / "act.db")
    assert await other.get(entry().cmd_id) == third
    await other.close()


async def test_a_write_behind_that_lost_a_race_does_not_overwrite_the_winner(
    store: SqliteLedger, tmp_path: Path
) -> None:
    first = await store.put(entry(), revision=0)
    other = SqliteLedger(tmp_path / "act.db")
    behind = await store.put(structs.replace(entry(), worker="slow"), revision=first.revision, durable=False)
    # The other process writes before the loop of the first has a turn.
    assert other._swap(structs.replace(entry(), worker="fast"), first.revision)
    with pytest.raises(LedgerConflict):
        await store.put(structs.replace(entry(), worker="slow again"), revision=behind.revision)
    found = await store.get(entry().cmd_id)
    assert found is not None
    assert found.entry.worker == "fast"
    await other.close()


async def test_a_scan_gives_what_is_open_or_a_letter_oldest_first(store: SqliteLedger) -> None:
    for number in (3, 1, 2):
        await store.put(entry(number), revision=0)
    await store.put(dead(4), revision=0)
    await store.put(dead(5, letter=False), revision=0)
    assert [row.entry.changed_ms for row in await store.scan([CommandState.AUTHORISED])] == [1, 2, 3]
    assert [row.entry.changed_ms for row in await store.scan([CommandState.AUTHORISED], limit=2)] == [1, 2]
    assert [row.entry.changed_ms for row in await store.scan([CommandState.DEAD, CommandState.FAILED])] == [4]


async def test_letters_above_the_limit_lose_the_oldest_and_old_ends_are_forgotten(store: SqliteLedger) -> None:
    for number in range(5):
        await store.put(dead(number), revision=0)
    await store.put(entry(9), revision=0)
    assert await store.prune(closed_before_ms=0, letters_max=2) == 3
    assert [row.entry.changed_ms for row in await store.scan([CommandState.DEAD])] == [3, 4]
    assert await store.prune(closed_before_ms=100, letters_max=2) == 0
    assert await store.get(entry(0).cmd_id) is None
    assert await store.get(entry(3).cmd_id) is not None, "a letter stays"
    assert await store.get(entry(9).cmd_id) is not None, "what is open stays"


async def test_a_stop_is_seen_by_other_processes_at_once(store: SqliteLedger, tmp_path: Path) -> None:
    other = SqliteLedger(tmp_path / "act.db")
    assert store.stopped() == ""
    await other.set_stop("fire")
    assert store.stopped() == "fire"
    await other.set_stop("")
    assert store.stopped() == ""
    await other.close()


async def test_a_file_that_is_no_ledger_is_an_error_for_people(tmp_path: Path) -> None:
    path = tmp_path / "act.db"
    path.write_bytes(b"x" * 4096)
    with pytest.raises(HarchError) as caught:
        SqliteLedger(path)
    assert caught.value.code == "E0775"


async def test_a_disk_that_fails_fails_the_write_and_the_next_one_is_tried_anew(store: SqliteLedger) -> None:
    store._writer.execute("PRAGMA max_page_count = 1")
    with pytest.raises(HarchError) as caught:
        await asyncio.gather(*(store.put(entry(number), revision=0) for number in range(100)))
    assert caught.value.code == "E0775"
    store._writer.execute("PRAGMA max_page_count = 100000")
    await store.put(entry(7), revision=0)


async def test_a_ledger_that_forgot_its_end_sends_nothing(store: SqliteLedger, tmp_path: Path) -> None:
    """What was sent might be sent again: nobody goes on before somebody has looked."""
    for number in range(20):
        await store.put(entry(number), revision=0)
    copy = tmp_path / "copy"
    copy.mkdir()
    for suffix in ("", "-wal", "-sums"):
        (copy / f"act.db{suffix}").write_bytes((tmp_path / f"act.db{suffix}").read_bytes())
    with (copy / "act.db-wal").open("r+b") as file:
        file.truncate(20_000)
    for _ in range(2):
        with pytest.raises(HarchError) as refused:
            SqliteLedger(copy / "act.db")
        assert refused.value.code == "E1030"
    assert (copy / "act.db-wal.damaged").stat().st_size == 20_000
