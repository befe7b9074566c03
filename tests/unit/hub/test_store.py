"""The store: acknowledged means on disk, groups share a commit, a failed one acknowledges nobody."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.hub.store import rows
from harch.hub.store.committer import Committer
from harch.hub.store.database import Database
from harch.hub.views import WorkloadQuery
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec, WorkloadType

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def workload(number: int, **fields: object) -> Workload:
    spec = WorkloadSpec(name=f"job-{number}", labels={"team": "a" if number % 2 else "b"})
    return Workload(
        id=f"wl_{number:04d}",
        tenant="t",
        owner_hub="dakhla",
        spec=spec,
        created_at=NOW + timedelta(seconds=number),
        updated_at=NOW,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "hub.db")


def test_what_is_written_is_read_back_equal(database: Database) -> None:
    written = workload(1, state=State.RUNNING, attempt=2, ranks_running=frozenset({0}))
    database.write([rows.save_workload(written)])
    assert database.workload("wl_0001", tenant=None) == written


def test_a_name_means_the_newest_workload_of_that_name(database: Database) -> None:
    for number in (1, 2):
        one = workload(number)
        one.spec = WorkloadSpec(name="same")
        database.write([rows.save_workload(one)])
    found = database.workload("same", tenant="t")
    assert found is not None
    assert found.id == "wl_0002"
    assert database.workload("same", tenant="other") is None


def test_lists_are_filtered_paged_and_newest_first(database: Database) -> None:
    for number in range(30):
        one = workload(number, state=State.COMPLETED if number < 10 else State.PENDING)
        database.write([rows.save_workload(one), *rows.save_labels(one)])
    page = database.workloads(WorkloadQuery(tenant="t", page=2, per_page=4, active=True, labels={"team": "a"}))
    assert page.total == 10
    assert [w.id for w in page.items] == ["wl_0021", "wl_0019", "wl_0017", "wl_0015"]
    assert database.workloads(WorkloadQuery(tenant="t", type=WorkloadType.TRAINING.value)).total == 0
    assert database.workloads(WorkloadQuery(tenant="nobody")).total == 0


def test_a_tenant_sees_its_own_events_and_the_hubs(database: Database) -> None:
    for seq, tenant in enumerate(("t", "u", ""), start=1):
        event = EventRecord(
            seq=seq, at=NOW, kind="workload.running", subject="s", tenant=tenant, message="m", data={"a": 1}
        )
        database.write([rows.save_event(event)])
    seen = database.events(after=0, limit=10, tenant="t", subject=None, kind="workload")
    assert [event.seq for event in seen] == [1, 3]


def test_the_last_event_of_a_kind_is_found_among_the_newest(database: Database) -> None:
    kinds = ("audit.contradicted", "policy.fault", "workload.running", "policy.fault", "workload.running")
    for seq, kind in enumerate(kinds, start=1):
        at = NOW + timedelta(seconds=seq)
        event = EventRecord(seq=seq, at=at, kind=kind, subject="s", tenant="", message="m", data={})
        database.write([rows.save_event(event)])
    wanted = ("policy.fault", "audit.contradicted", "policy.disagreement")
    assert database.last_events(wanted, 100) == {
        "audit.contradicted": NOW + timedelta(seconds=1),
        "policy.fault": NOW + timedelta(seconds=4),
    }
    assert set(database.last_events(wanted, 3)) == {"policy.fault"}


def test_a_database_from_the_future_is_refused(tmp_path: Path) -> None:
    Database(tmp_path / "hub.db").close()
    connection = sqlite3.connect(tmp_path / "hub.db")
    connection.execute("INSERT INTO schema_version VALUES (99)")
    connection.commit()
    connection.close()
    with pytest.raises(HarchError) as refused:
        Database(tmp_path / "hub.db")
    assert refused.value.code == "E1006"


def test_a_broken_file_is_refused_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "hub.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(HarchError) as refused:
        Database(tmp_path / "hub.db")
    assert refused.value.code == "E1003"


def filled(path: Path) -> tuple[list[str], list[int]]:
    database = Database(path)
    for number in range(60):
        one = workload(number)
        event = EventRecord(seq=number + 1, at=NOW, kind="k", subject=one.id, tenant="t", message="m" * 50, data={})
        database.write([rows.save_workload(one), *rows.save_labels(one), rows.save_event(event)])
    found = content(database)
    database.close()
    return found


def content(database: Database) -> tuple[list[str], list[int]]:
    page = database.workloads(WorkloadQuery(tenant="t", per_page=100))
    events = database.events(after=0, limit=1000, tenant=None, subject=None, kind=None)
    return [repr(one) for one in page.items], [event.seq for event in events]


def test_a_flipped_bit_in_the_database_changes_nothing_that_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hub.db"
    before = filled(path)
    data = bytearray(path.read_bytes())
    place = data.index(b'"wl_0033"') + 4
    data[place] ^= 1  # the name of a workload: SQLite would read it without a word
    path.write_bytes(data)
    database = Database(path)
    assert content(database) == before
    database.close()
    assert "a flipped bit in page" in caplog.text
    assert len(list(tmp_path.glob("hub.db.page-*.damaged"))) == 1


def test_a_database_that_lost_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    filled(path)
    before = path.stat()
    os.truncate(path, before.st_size // 2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that forgets changes no times
    with pytest.raises(HarchError) as refused:
        Database(path)
    assert refused.value.code == "E1030"
    path.touch()
    with pytest.raises(HarchError) as refused:
        Database(path)
    assert refused.value.code in ("E1003", "E1030"), "SQLite sees that, too"


class SlowDisk(Database):
    """Counts commits; may be told to be full."""

    commits = 0
    full = False

    def commit(self) -> None:
        type(self).commits += 1
        if self.full:
            self.rollback()
            raise sqlite3.OperationalError("database or disk is full")
        super().commit()


async def test_callers_of_one_moment_share_a_commit_and_all_of_it_is_on_disk(tmp_path: Path) -> None:
    SlowDisk.commits = 0
    database = SlowDisk(tmp_path / "hub.db")
    committer = Committer(database, on_failure=lambda error: None)
    await asyncio.gather(*(committer.submit([rows.save_workload(workload(n))]) for n in range(200)))
    assert database.workloads(WorkloadQuery(tenant="t")).total == 200
    assert SlowDisk.commits < 10
    await committer.close()


async def test_after_a_failed_commit_nobody_is_acknowledged_until_it_was_reset(tmp_path: Path) -> None:
    failures: list[HarchError] = []
    database = SlowDisk(tmp_path / "hub.db")
    committer = Committer(database, on_failure=failures.append)
    await committer.submit([rows.save_workload(workload(1))])
    database.full = True
    outcomes = await asyncio.gather(
        *(committer.submit([rows.save_workload(workload(n))]) for n in range(2, 5)), return_exceptions=True
    )
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["E1002"] * 3
    assert len(failures) == 1
    with pytest.raises(HarchError):
        await committer.submit([rows.save_workload(workload(9))])
    database.full = False
    committer.reset()
    await committer.submit([rows.save_workload(workload(10))])
    assert {w.id for w in database.workloads(WorkloadQuery(tenant="t")).items} == {"wl_0001", "wl_0010"}
    await committer.close()


async def test_a_value_that_sqlite_does_not_take_fails_its_writer_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    failures: list[HarchError] = []
    committer = Committer(Database(tmp_path / "hub.db"), on_failure=failures.append)
    for value in (2**70, "\ud800", object()):
        with pytest.raises(HarchError) as refused:
            await committer.submit([("UPDATE schema_version SET version = ?", (value,))])
        assert refused.value.code == "E1003"
        committer.reset()
    await committer.submit([rows.save_workload(workload(1))])
    assert len(failures) == 3
    await committer.close()


async def test_a_drained_committer_has_nothing_on_its_way_to_the_disk(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    committer = Committer(database, on_failure=lambda error: None)
    first = committer.submit([rows.save_workload(workload(1))])
    first.add_done_callback(lambda _done: committer.submit([rows.save_workload(workload(2))]))
    await committer.drain()
    assert database.workloads(WorkloadQuery(tenant="t")).total == 2
    await committer.close()


texts = st.text(st.characters(codec="utf-8"), max_size=40)  # with NUL, quotes and control characters
numbers = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(numbers, texts, texts, texts, texts, texts, st.binary(max_size=60)), max_size=12))
def test_values_are_stored_verbatim_and_with_their_type(tmp_path: Path, many: list[tuple[object, ...]]) -> None:
    events = {row[0]: row for row in many}
    database = Database(tmp_path / "hub.db")
    database.write([("DELETE FROM events", ())])
    database.write([(rows.SAVE_EVENT, row) for row in events.values()])
    assert {row[0]: row for row in database.query("SELECT * FROM events")} == events
    types = database.query("SELECT DISTINCT typeof(seq), typeof(at), typeof(message), typeof(data) FROM events")
    assert types == ([("integer", "text", "text", "blob")] if events else [])
    database.close()


@pytest.mark.parametrize("value", [2**70, "\ud800", object(), None], ids=["large", "surrogate", "object", "null"])
async def test_a_row_that_cannot_be_stored_fails_its_whole_group(tmp_path: Path, value: object) -> None:
    failures: list[HarchError] = []
    database = Database(tmp_path / "hub.db")
    committer = Committer(database, on_failure=failures.append)
    outcomes = await asyncio.gather(
        committer.submit([rows.save_workload(workload(1)), *rows.save_labels(workload(1))]),
        committer.submit([(rows.SAVE_EVENT, (1, "at", "kind", "subject", value, "message", b"{}"))]),
        committer.submit([rows.save_workload(workload(2))]),
        return_exceptions=True,
    )
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["E1003"] * 3
    assert len(failures) == 1
    assert content(database) == ([], [])
    assert database.query("SELECT * FROM workload_labels") == []
    committer.reset()
    await committer.submit([rows.save_workload(workload(1))])
    await committer.close()


async def test_of_a_group_the_last_state_of_a_workload_is_stored(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    committer = Committer(database, on_failure=lambda error: None)
    states = (State.PENDING, State.RUNNING, State.COMPLETED)
    await asyncio.gather(*(committer.submit([rows.save_workload(workload(1, state=state))]) for state in states))
    assert database.query("SELECT state, active FROM workloads") == [("completed", 0)]
    await committer.close()


def test_closing_waits_for_readers_in_other_threads(tmp_path: Path) -> None:
    """A hub that stops may have a slow read under way; closing the connection under it would end the process."""
    for round_ in range(20):
        database = Database(tmp_path / f"{round_}.db")
        reading = threading.Event()
        ends: list[str] = []

        def read(database: Database = database, reading: threading.Event = reading, ends: list[str] = ends) -> None:
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
            reading.set()
            try:
                while True:
                    database.query(f"{numbers} SELECT count(*) FROM n")
            except sqlite3.ProgrammingError as closed:
                ends.append(str(closed))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        reading.wait()
        database.close()
        for thread in threads:
            thread.join()
        assert ends == ["Cannot operate on a closed database."] * 2


def test_statements_of_a_group_keep_their_order_however_many_run_at_once(database: Database) -> None:
    put = "INSERT INTO workload_labels (workload_id, label, value) VALUES (?, ?, ?)"
    drop = "DELETE FROM workload_labels WHERE workload_id = ?"
    database.write(
        [
            (put, ("wl_1", "a", "1")),
            (put, ("wl_1", "b", "2")),
            (drop, ("wl_1",)),
            (put, ("wl_1", "a", "3")),
            (put, ("wl_2", "a", "4")),
            (drop, ("wl_2",)),
        ]
    )
    assert database.query("SELECT workload_id, label, value FROM workload_labels") == [("wl_1", "a", "3")]
