"""What an agent concludes from the files of a task that it did not see."""

from __future__ import annotations

import fcntl
from datetime import UTC, datetime

import pytest

from harch.execution.protocol import KnownTask, TaskEnded, TaskKey
from harch.execution.taskdir import (
    EndRecord,
    RunningRecord,
    TaskDir,
    TaskFacts,
    folder_name,
    is_safe_id,
    key_of,
    standing,
)
from harch.workloads.lifecycle import ExitReason

KEY = TaskKey("wl_1", 2, 3)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = RunningRecord(pid=10, pgid=10, start_ticks=5, started_at=1.0, sandbox="plain")
ENDED = EndRecord(reason=ExitReason.EXITED, ended_at=2.0, exit_code=4)


def test_a_recorded_end_wins_over_everything():
    for lock_held in (True, False):
        found = standing(KEY, TaskFacts(True, RUNNING, ENDED), lock_held=lock_held, now=NOW)
        assert isinstance(found, TaskEnded)
        assert (found.reason, found.exit_code, found.at.timestamp()) == (ExitReason.EXITED, 4, 2.0)


@pytest.mark.parametrize("running", [RUNNING, None])
def test_a_held_lock_means_that_it_runs(running):
    found = standing(KEY, TaskFacts(True, running, None), lock_held=True, now=NOW)
    assert isinstance(found, KnownTask)
    assert found.running
    assert (found.started_at is None) == (running is None)


@pytest.mark.parametrize("running", [RUNNING, None])
def test_started_without_supervisor_or_end_is_lost(running):
    found = standing(KEY, TaskFacts(True, running, None), lock_held=False, now=NOW)
    assert isinstance(found, TaskEnded)
    assert (found.reason, found.at) == (ExitReason.LOST, NOW)


def test_what_never_started_is_nothing():
    assert standing(KEY, TaskFacts(False, None, None), lock_held=False, now=NOW) is None


def test_a_voided_folder_can_never_start(tmp_path):
    task_dir = TaskDir(tmp_path)
    assert task_dir.void()
    assert task_dir.facts().started
    assert not task_dir.void()


def test_a_folder_whose_lock_is_held_is_not_voided(tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert TaskDir(tmp_path).lock_held()
        assert not TaskDir(tmp_path).void()
    assert not (tmp_path / "started").exists()
    assert not TaskDir(tmp_path).lock_held()


def test_a_torn_record_counts_as_missing(tmp_path):
    (tmp_path / "ended.json").write_text('{"reason": "exi')
    assert TaskDir(tmp_path).facts() == TaskFacts(False, None, None)


@pytest.mark.parametrize("place", range(0, 120, 7))
def test_a_flipped_bit_in_how_a_task_ended_changes_nothing(tmp_path, caplog, place):
    end = TaskEnded(key=KEY, reason=ExitReason.EXITED, at=NOW, exit_code=1, detail="x")
    TaskDir(tmp_path).write_end(end)
    before, path = TaskDir(tmp_path).facts(), tmp_path / "ended.json"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(data)
    assert TaskDir(tmp_path).facts() == before
    assert "E1030" in caplog.text
    assert (tmp_path / "ended.json.damaged").read_bytes() == data


def test_a_record_that_is_damaged_beyond_repair_is_kept_and_not_believed(tmp_path, caplog):
    TaskDir(tmp_path).write_end(TaskEnded(key=KEY, reason=ExitReason.EXITED, at=NOW, exit_code=1))
    path = tmp_path / "ended.json"
    path.write_bytes(path.read_bytes().replace(b'"exit_code":1', b'"exit_code":0,"signal":3'))
    assert TaskDir(tmp_path).facts() == TaskFacts(False, None, None)
    assert (tmp_path / "ended.json.damaged").exists()
    assert "E1030" in caplog.text


def test_names_of_folders_lead_back_to_keys():
    assert key_of(folder_name(KEY)) == KEY
    assert [key_of(name) for name in ("x", "a.b.c", "a.1", "..1.2")] == [None] * 4
    assert not any(is_safe_id(text) for text in ("", ".", "a/b", "a.b", "x" * 101, "a\n"))
