"""The head of the chain beside the database: it survives half a write, and never leads what is on disk."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from harch.base.clock import SystemClock
from harch.hub.audit import table
from harch.hub.audit.files import SLOT_BYTES, HeadFile
from harch.hub.audit.table import AuditTrail
from harch.hub.store.committer import Committer, Mark
from harch.hub.store.database import Database
from harch.sovereignty.audit.chain import PLACED, ChainHead, Draft

KILLS = 40


def opened(path: Path, hub: str = "dakhla") -> HeadFile:
    return HeadFile(path, hub, lambda: 0.0)


def write(path: Path, *seqs: int) -> None:
    file = opened(path)
    for seq in seqs:
        file.note(ChainHead(seq, f"{seq:064x}"), seq * 10)
    file.close()


def test_the_newest_head_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "audit.head", 1, 2, 3)
    record = opened(tmp_path / "audit.head").found
    assert record is not None
    assert (record.head, record.events) == (ChainHead(3, f"{3:064x}"), 30)
    write(tmp_path / "audit.head", 4)
    assert (found := opened(tmp_path / "audit.head").found) is not None
    assert found.seq == 4
    assert (tmp_path / "audit.head").stat().st_mode & 0o777 == 0o600


def test_a_new_file_says_nothing_and_is_not_damaged(tmp_path: Path) -> None:
    file = opened(tmp_path / "audit.head")
    assert (file.found, file.damaged) == (None, False)


@pytest.mark.parametrize("at", [0, 10, 64, 70, 200])
@pytest.mark.parametrize("slot", [0, 1])
def test_half_a_write_leaves_the_other_slot(tmp_path: Path, slot: int, at: int) -> None:
    path = tmp_path / "audit.head"
    write(path, 6, 7)
    text = bytearray(path.read_bytes())
    text[slot * SLOT_BYTES + at] ^= 1
    path.write_bytes(text)
    file = opened(path)
    assert file.found is not None
    assert file.found.seq in (6, 7)


def test_a_file_of_another_hub_or_of_rubbish_is_damaged_and_is_written_anew(tmp_path: Path) -> None:
    for number, text in enumerate((b"rubbish", os.urandom(2 * SLOT_BYTES), b" " * 2 * SLOT_BYTES)):
        path = tmp_path / str(number)
        path.write_bytes(text)
        file = opened(path)
        assert (file.found, file.damaged) == (None, True)
        file.note(ChainHead(5, "5" * 64), 0)
        file.close()
        assert (found := opened(path).found) is not None
        assert found.seq == 5
    write(tmp_path / "other", 3)
    assert opened(tmp_path / "other", "dakar").damaged


def test_what_was_expected_is_not_forgotten_until_it_is_settled(tmp_path: Path) -> None:
    file = opened(tmp_path / "audit.head")
    file.note(ChainHead(5, "5" * 64), 0)
    file.expect(ChainHead(9, "9" * 64), 0, "dakar")
    file.note(ChainHead(6, "6" * 64), 0)  # a commit that was under way
    file.close()
    file = opened(tmp_path / "audit.head")
    assert file.found is not None
    assert (file.found.seq, file.found.source) == (9, "dakar")
    file.reset(ChainHead(10, "a" * 64), 7)
    file.close()
    assert (found := opened(tmp_path / "audit.head").found) is not None
    assert (found.seq, found.source) == (10, "audit.head")


def test_a_disk_that_takes_no_writes_is_said_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = opened(tmp_path / "audit.head")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for seq in range(1, 4):
        file.note(ChainHead(seq, f"{seq:064x}"), 0)
    assert [record.message for record in caplog.records if "lost tail" in record.message] == [
        f"{tmp_path / 'audit.head'} cannot be written: No space left on device; a lost tail would not be noticed"
    ]


async def test_a_group_is_noted_after_it_is_on_disk_and_not_before(tmp_path: Path) -> None:
    database, noted = Database(tmp_path / "hub.db"), list[tuple[int, int]]()

    def note(mark: Mark) -> None:
        noted.append((mark.events, database.last_event()))

    committer = Committer(database, on_failure=lambda error: None, on_committed=note)
    insert = "INSERT INTO events (seq, at, kind, subject, tenant, message, data) VALUES (?, '', '', '', '', '', '')"
    batches = [committer.submit([(insert, (seq,))], Mark(ChainHead(), seq)) for seq in range(1, 50)]
    await asyncio.gather(*batches)
    await committer.close()
    database.close()
    assert noted
    assert noted[-1] == (49, 49)
    assert all(said <= stored for said, stored in noted)


def _write_until_killed(folder: Path) -> None:
    async def run() -> None:
        database = Database(folder / "hub.db")
        trail = AuditTrail("dakhla", database, SystemClock())
        file = HeadFile(folder / "audit.head", "dakhla", SystemClock().monotonic_s)
        committer = Committer(
            database, on_failure=lambda error: None, on_committed=lambda mark: file.note(mark.head, mark.events)
        )
        while True:
            for _ in range(random.randint(1, 5)):
                statements = trail.link([Draft(PLACED, "wl_1", "allowed")])
                done = committer.submit(statements, Mark(trail.head, 0))
            await done

    asyncio.run(run())


def test_forty_kills_never_leave_a_head_that_leads_the_database(tmp_path: Path) -> None:
    before = 0
    for _ in range(KILLS):
        victim = multiprocessing.get_context("fork").Process(target=_write_until_killed, args=(tmp_path,))
        victim.start()
        assert victim.pid is not None
        deadline = time.monotonic() + 20
        while _seq(tmp_path) <= before and time.monotonic() < deadline:  # it has written something
            time.sleep(random.uniform(0.0, 0.01))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        database, file = Database(tmp_path / "hub.db"), opened(tmp_path / "audit.head")
        stored, record = table.head(database), file.found
        assert record is not None
        assert before < record.seq <= stored.seq
        assert table.hash_at(database, record.seq) == record.hash
        assert stored.seq - record.seq <= 5  # it lags by one group at most
        before = record.seq
        database.close()
        file.close()


def _seq(folder: Path) -> int:
    if not (folder / "audit.head").exists():
        return 0
    file = opened(folder / "audit.head")
    try:
        return file.found.seq if file.found is not None else 0
    finally:
        os.close(file._descriptor)
