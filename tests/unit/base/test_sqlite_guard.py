"""Does a database that was changed behind SQLite's back go unnoticed? Flipped bits, lost pages, logs without an end."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from harch.base import sqlite_guard, sqlite_pages
from harch.base.errors import HarchError
from harch.base.sqlite_guard import SqliteGuard
from harch.base.sqlite_pages import read_wal


class Guarded:
    """A table behind a guard, as the stores of HarchOS use it."""

    def __init__(self, path: Path, *, synced: bool = True, beside: Executor | None = None) -> None:
        self.guard = SqliteGuard(path, synced=synced, beside=beside)
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute("CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, body BLOB)")
        self.guard.attach(self.connection)

    def add(self, number: int) -> None:
        body = random.Random(number).randbytes(700)
        self.connection.execute("INSERT INTO kept VALUES (?, ?)", (number, body))
        self.guard.committed(self.connection)

    def rows(self) -> list[tuple[int, bytes]]:
        return self.connection.execute("SELECT * FROM kept ORDER BY id").fetchall()

    def close(self) -> None:
        self.guard.close(self.connection)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """120 rows; some are in the database, the last ones in the log. It is never closed: the process was killed."""
    monkeypatch.setattr(sqlite_guard, "CHECKPOINT_PAGES", 40)
    (tmp_path / "live").mkdir()
    opened = Guarded(tmp_path / "live" / "x.db")
    for number in range(120):
        opened.add(number)
    yield opened
    opened.close()


def killed(tmp_path: Path) -> Path:
    """What a kill leaves, somewhere else."""
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    (tmp_path / "copy" / "x.db-shm").unlink()
    return tmp_path / "copy" / "x.db"


def flip(path: Path, place: int, bit: int = 0) -> None:
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that forgets tells nobody


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def test_after_a_kill_everything_is_there_and_nothing_is_said(
    made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = Guarded(killed(tmp_path))
    assert again.rows() == made.rows()
    again.close()
    once_more = Guarded(tmp_path / "copy" / "x.db")
    assert once_more.rows() == made.rows()
    once_more.close()
    assert caplog.text == ""


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_in_any_page_is_put_right_and_said(
    made: Guarded, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    in_log = read_wal(wal(path).read_bytes()).pages
    pages = [page for page in range(path.stat().st_size // 4096) if page + 1 not in in_log]
    rng = random.Random(seed)
    page = rng.choice(pages)
    before = path.read_bytes()
    flip(path, page * 4096 + rng.randrange(4096), rng.randrange(8))
    again = Guarded(path)
    assert again.rows() == made.rows()
    again.guard.release()
    assert f"a flipped bit in page {page + 1}" in caplog.text
    kept = path.with_name(f"x.db.page-{page + 1}.damaged").read_bytes()
    assert sum((a ^ b).bit_count() for a, b in zip(kept, before[page * 4096 :], strict=False)) == 1


def test_larger_damage_is_refused_until_somebody_decides(made: Guarded, tmp_path: Path) -> None:
    made.close()
    path = tmp_path / "live" / "x.db"
    whole = path.read_bytes()
    before = path.stat()
    path.write_bytes(whole[: 6 * 4096 - 100] + bytes(64) + whole[6 * 4096 - 36 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(HarchError) as refused:
            SqliteGuard(path)
        assert refused.value.code == "E1030"
    assert path.stat().st_size == before.st_size, "nothing was changed"
    path.with_name("x.db-sums").unlink()
    again = Guarded(path)
    assert again.rows()
    again.close()


def test_lost_pages_are_refused(made: Guarded, tmp_path: Path) -> None:
    made.close()
    path = tmp_path / "live" / "x.db"
    before = path.stat()
    os.truncate(path, before.st_size - 4096)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(HarchError, match=r"of its \d+ pages 1 are missing"):
        SqliteGuard(path)
    path.touch()
    with pytest.raises((HarchError, sqlite3.DatabaseError)):  # SQLite itself sees it where the time has changed
        Guarded(path)


def test_an_older_copy_that_was_put_back_is_said_checked_and_adopted(
    made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made.close()
    path = tmp_path / "live" / "x.db"
    shutil.copy2(path, tmp_path / "backup.db")
    later = Guarded(path)
    for number in range(1000, 1300):
        later.add(number)
    later.close()
    shutil.copy2(tmp_path / "backup.db", path)
    again = Guarded(path)
    assert len(again.rows()) == 120
    again.close()
    assert "was changed by another program" in caplog.text


def test_a_database_that_is_gone_is_missed(made: Guarded, tmp_path: Path) -> None:
    made.close()
    path = tmp_path / "live" / "x.db"
    path.unlink()
    with pytest.raises(HarchError, match="are missing"):
        SqliteGuard(path)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_in_the_log_is_put_right_or_the_loss_is_known(
    made: Guarded, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    data = wal(path).read_bytes()
    end = 32 + read_wal(data).committed.frames * (24 + 4096)
    rng = random.Random(seed)
    flip(wal(path), rng.randrange(end), rng.randrange(8))
    again = Guarded(path)
    assert again.rows() == made.rows() or again.guard.lost_frames
    again.guard.release()
    assert "E1030" in caplog.text
    assert wal(path).with_name("x.db-wal.damaged").exists()


@pytest.mark.parametrize("left", [0, 20, 4200, 8000])
def test_a_log_without_its_end_is_known_to_lack_it(made: Guarded, tmp_path: Path, left: int) -> None:
    path = killed(tmp_path)
    os.truncate(wal(path), left)
    guard = SqliteGuard(path)
    assert guard.lost_frames
    with pytest.raises(HarchError) as refused:
        guard.require_whole()
    assert refused.value.code == "E1030"


def test_a_log_that_is_gone_is_missed(made: Guarded, tmp_path: Path) -> None:
    path = killed(tmp_path)
    wal(path).unlink()
    again = Guarded(path)
    assert again.guard.lost_frames
    again.guard.release()


def test_a_power_cut_may_take_what_was_not_synced(
    made: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = killed(tmp_path)
    os.truncate(wal(path), 5000)
    monkeypatch.setattr(sqlite_guard, "_boot_id", lambda: b"another boot id.")
    guard = SqliteGuard(path, synced=False)
    assert guard.lost_frames == 0
    guard.release()


def test_a_torn_end_behind_what_was_committed_is_nothing_special(
    made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    data = wal(path).read_bytes()
    end = 32 + read_wal(data).committed.frames * (24 + 4096)
    wal(path).write_bytes(data[:end] + data[end - 4120 : end - 2000])
    again = Guarded(path)
    assert again.rows() == made.rows()
    again.guard.release()
    assert caplog.text == ""


def test_what_another_program_changed_is_said_checked_and_adopted(
    made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made.close()
    path = tmp_path / "live" / "x.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("UPDATE kept SET body = x'00' WHERE id < 50")
    other.close()
    again = Guarded(path)
    assert dict(again.rows())[3] == b"\x00"
    assert "was changed by another program" in caplog.text
    again.close()
    caplog.clear()
    Guarded(path).close()
    assert caplog.text == ""


def test_a_database_of_an_older_release_gets_its_guard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.db"
    old = sqlite3.connect(path, isolation_level=None)
    old.execute("PRAGMA journal_mode = WAL")
    old.execute("CREATE TABLE kept (id INTEGER PRIMARY KEY, body BLOB)")
    old.executemany("INSERT INTO kept VALUES (?, ?)", [(number, bytes(3000)) for number in range(50)])
    old.close()
    first = Guarded(path)
    first.add(1000)
    first.close()
    assert caplog.text == ""
    flip(path, 3 * 4096 + 50)
    again = Guarded(path)
    assert len(again.rows()) == 51
    again.close()
    assert "repaired" in caplog.text


@pytest.mark.parametrize("place", [5, 520, 4100])
def test_damaged_sums_cost_a_check_and_are_said(
    made: Guarded, tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    flip(path.with_name("x.db-sums"), place)
    with caplog.at_level(logging.ERROR):
        again = Guarded(path)
    assert again.rows() == made.rows()
    again.close()
    assert "x.db-sums is damaged" in caplog.text


def test_sums_that_a_crash_left_unfinished_are_begun_again(
    made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    path.with_name("x.db-sums").write_bytes(bytes(4096) + b"rubbish")
    again = Guarded(path)
    assert again.rows() == made.rows()
    again.close()
    assert caplog.text == ""


def test_two_processes_may_have_it_open(made: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second one, here in the same process, neither compares nor moves what the first one uses."""
    other = Guarded(tmp_path / "live" / "x.db")
    for number in range(200, 320):
        (other if number % 2 else made).add(number)
    assert other.rows() == made.rows()
    other.close()
    made.add(400)
    again = Guarded(killed(tmp_path))
    assert again.rows() == made.rows()
    again.close()
    assert caplog.text == ""


def test_sums_do_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_guard, "CHECKPOINT_PAGES", 4)
    monkeypatch.setattr("harch.base.sqlite_pages._GROWTH_MIN", 1000)
    opened = Guarded(tmp_path / "x.db")
    for number in range(400):
        opened.add(number % 7 + 1000 * number)
        opened.connection.execute("DELETE FROM kept WHERE id < ?", (1000 * (number - 7),))
        opened.guard.committed(opened.connection)
    assert (tmp_path / "x.db-sums").stat().st_size < 12_000
    rows = opened.rows()
    opened.close()
    again = Guarded(tmp_path / "x.db")
    assert again.rows() == rows
    again.close()


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_the_digest_of_a_page_is_that_of_its_last_content_however_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(sqlite_guard, "CHECKPOINT_PAGES", 30)
    monkeypatch.setattr(sqlite_guard, "_CHUNK_FRAMES", chunk)
    path = tmp_path / "x.db"
    opened = Guarded(path)
    for number in range(150):  # each changes the last page again, and that of row 0
        opened.add(number)
        opened.connection.execute("UPDATE kept SET body = ? WHERE id = 0", (bytes([number]) * 700,))
        opened.guard.committed(opened.connection)
    opened.close()
    pages = path.read_bytes()
    assert len(pages) > 20 * 4096
    sums = sqlite_pages.SumsFile(path, bytes(16))
    for page in range(1, len(pages) // 4096 + 1):
        assert sums.digest(page) == sqlite_pages.digest_of(pages[(page - 1) * 4096 : page * 4096]), page
    sums.close()


def test_a_log_that_another_process_begins_anew_while_it_is_read_gives_no_digests(
    made: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, before = sqlite_guard.read_position, made.guard._sums.path.read_bytes()[4096:]

    def of_the_log_before(shared: bytes) -> tuple[sqlite_pages.WalPosition, int] | None:
        found = read(shared)
        return found and (sqlite_pages.WalPosition(b"8 bytes.", found[0].frames, found[0].checksum), 0)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_guard, "read_position", of_the_log_before)
        made.guard.empty_log_every(made.connection, 1)
    assert "another process has begun the log anew" in caplog.text
    assert made.guard._sums.path.read_bytes()[4096:] == before
    made.guard.empty_log_every(made.connection, 1)
    assert made.guard._sums.path.read_bytes()[4096:] != before


def test_a_lock_of_sqlite_is_never_dropped(made: Guarded, tmp_path: Path) -> None:
    """Another process that closes its connection must not believe that it was the last one: it would delete the log."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('UPDATE kept SET body = NULL WHERE id = 1'); c.close()"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "live" / "x.db")], check=True)
    assert wal(tmp_path / "live" / "x.db").exists()
    assert dict(made.rows())[1] is None


def test_a_digest_is_that_of_the_whole_and_never_waits_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """hashlib lets go of the interpreter for 2,048 bytes or more: beside a busy hub each page would wait its turn."""
    longest = 0

    class Watched:
        def __init__(self, *, digest_size: int) -> None:
            self._real = blake2b(digest_size=digest_size)

        def update(self, piece: memoryview) -> None:
            nonlocal longest
            longest = max(longest, len(piece))
            self._real.update(piece)

        def digest(self) -> bytes:
            return self._real.digest()

    monkeypatch.setattr(sqlite_pages, "blake2b", Watched)
    for size in (0, 1, 2047, 2048, 4096, 65536):
        content = bytes(number % 251 for number in range(size))
        assert sqlite_pages.digest_of(content) == blake2b(content, digest_size=sqlite_pages.DIGEST_BYTES).digest()
    assert longest < 2048


class Later(Executor):
    """Runs what it was given when it is told to: between any two commits."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.errors: list[Exception] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, partial(call, *args, **kwargs)))
        return future

    @property
    def count(self) -> int:
        return len(self._waiting)

    def run(self) -> None:
        for future, call in self._waiting:
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - what an executor does
                future.set_exception(error)
                self.errors.append(error)
        self._waiting.clear()


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Later) -> Iterator[Guarded]:
    """A log that is moved beside commits once it has 40 pages."""
    monkeypatch.setattr(sqlite_guard, "CHECKPOINT_PAGES", 40)
    (tmp_path / "live").mkdir()
    opened = Guarded(tmp_path / "live" / "x.db", beside=later)
    yield opened
    opened.close()


def add_until_a_move_waits(guarded: Guarded, later: Later, first: int) -> int:
    number = first
    while not later.count:
        guarded.add(number)
        number += 1
    return number


def test_most_of_a_log_is_moved_beside_commits_and_the_next_one_ends_it(
    beside: Guarded, tmp_path: Path, later: Later
) -> None:
    path = tmp_path / "live" / "x.db"
    number = add_until_a_move_waits(beside, later, 0)
    size, log_size = path.stat().st_size, wal(path).stat().st_size
    later.run()
    assert path.stat().st_size > size + 4 * 4096
    for more in range(number, number + 20):
        beside.add(more)
    assert later.count == 0
    assert wal(path).stat().st_size <= log_size + 2 * 4120  # begun anew, in the same place
    again = Guarded(killed(tmp_path))
    assert again.rows() == beside.rows()
    again.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_at_any_moment_around_a_move_loses_nothing_and_nothing_is_said(
    beside: Guarded, tmp_path: Path, later: Later, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    for number in range(rng.randrange(60, 400)):
        beside.add(number)
        if rng.random() < 0.05:
            beside.connection.execute("UPDATE kept SET body = NULL WHERE id = ?", (rng.randrange(number + 1),))
            beside.guard.committed(beside.connection)
        if later.count and rng.random() < 0.2:
            later.run()
    again = Guarded(killed(tmp_path))
    assert again.rows() == beside.rows()
    again.close()
    assert caplog.text == ""


def test_what_is_committed_during_a_move_keeps_its_place_in_the_log_until_it_has_digests(
    beside: Guarded, tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, number, note = tmp_path / "live" / "x.db", add_until_a_move_waits(beside, later, 0), beside.guard._note_pages

    def note_while_others_commit(position: sqlite_pages.WalPosition) -> None:
        note(position)
        beside.connection.execute("UPDATE kept SET body = x'00' WHERE id = 0")
        for more in range(number, number + 4):  # the database grows
            beside.connection.execute("INSERT INTO kept VALUES (?, zeroblob(5000))", (more,))

    begun = wal(path).read_bytes()[:32]
    with monkeypatch.context() as patched:
        patched.setattr(beside.guard, "_note_pages", note_while_others_commit)
        later.run()
    beside.connection.execute("INSERT INTO kept VALUES (?, NULL)", (number + 4,))
    assert wal(path).read_bytes()[:32] == begun  # a log of which all was moved would begin anew here
    again = Guarded(killed(tmp_path))
    assert again.rows() == beside.rows()
    again.close()
    assert caplog.text == ""


def test_commits_wait_for_a_move_that_cannot_keep_up(beside: Guarded, tmp_path: Path, later: Later) -> None:
    for number in range(300):
        beside.add(number)
    assert later.count == 1
    assert wal(tmp_path / "live" / "x.db").stat().st_size < 90 * 4120


def test_a_move_that_fails_is_said_once_and_tried_again(
    beside: Guarded, tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: sqlite_pages.WalPosition) -> None:
        raise OSError(28, "No space left on device")

    number = add_until_a_move_waits(beside, later, 0)
    with monkeypatch.context() as patched:
        patched.setattr(beside.guard, "_note_pages", full)
        for more in range(number, number + 8):
            later.run()
            beside.add(more)
    assert caplog.text.count("cannot checkpoint the log now") == 1
    add_until_a_move_waits(beside, later, number + 8)
    later.run()
    beside.add(1000)
    again = Guarded(killed(tmp_path))
    assert again.rows() == beside.rows()
    again.close()


def test_a_log_that_saves_space_is_emptied_at_once(beside: Guarded, tmp_path: Path, later: Later) -> None:
    beside.guard.empty_log_every(beside.connection, 8)
    for number in range(60):
        beside.add(number)
    assert later.count == 0
    assert wal(tmp_path / "live" / "x.db").stat().st_size < 20 * 4120


def test_a_move_that_has_not_begun_when_the_database_is_closed_does_nothing(
    beside: Guarded, tmp_path: Path, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    add_until_a_move_waits(beside, later, 0)
    rows = beside.rows()
    beside.close()
    later.run()
    assert not later.errors
    again = Guarded(tmp_path / "live" / "x.db")
    assert again.rows() == rows
    again.close()
    assert caplog.text == ""
