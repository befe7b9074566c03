"""The supervisor keeps the lease by its own clock and by what it finds in the task's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.execution.lease_watch import KILL_AGAIN_S, LEAD_S, LEASE_FILE, LOOK_S, LeaseWatch
from harch.execution.taskdir import TaskDir


class BootClock:
    def __init__(self) -> None:
        self.at_s = 5000.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskDir:
    monkeypatch.chdir(tmp_path)
    return TaskDir(tmp_path)


def watch_until(until_s: float | None, clock: BootClock, grace_s: float = 10.0) -> LeaseWatch:
    return LeaseWatch(until_s, grace_s, boot_s=clock)


def test_without_a_lease_nothing_is_ever_due(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(None, clock)
    folder.extend_lease(1.0)
    clock.at_s = 1e9
    assert (watch.stop_falls_due(), watch.must_die(), watch.wait_s()) == (False, False, None)


def test_stop_falls_due_once_a_grace_before_the_deadline_and_death_comes_with_it(
    clock: BootClock, folder: TaskDir
) -> None:
    watch = watch_until(5100.0, clock)
    clock.at_s = 5089.9
    assert not watch.stop_falls_due()
    clock.at_s = 5090.0
    assert watch.stop_falls_due()
    assert not watch.stop_falls_due(), "a task is told once"
    assert watch.left_s() == pytest.approx(10.0 - LEAD_S)
    assert not watch.must_die()
    clock.at_s = 5100.0 - LEAD_S
    assert watch.must_die()
    assert watch.must_die(), "what survives is killed again"


def test_a_deadline_in_the_file_keeps_it_alive(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(5100.0, clock)
    folder.extend_lease(5300.0)
    clock.at_s = 5289.0
    assert not watch.stop_falls_due()
    clock.at_s = 5290.0
    assert watch.stop_falls_due()


def test_the_file_is_read_right_before_the_stop(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(5100.0, clock)
    clock.at_s = 5089.9
    assert not watch.stop_falls_due()
    folder.extend_lease(5300.0)
    clock.at_s = 5090.0  # sooner than the next regular look
    assert not watch.stop_falls_due()


def test_after_the_stop_no_file_revives_it(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(5100.0, clock)
    clock.at_s = 5095.0
    assert watch.stop_falls_due()
    folder.extend_lease(5300.0)
    clock.at_s = 5100.0
    assert not watch.stop_falls_due()
    assert watch.must_die()


@pytest.mark.parametrize("text", ["", "tomorrow", "nan", "inf", "-5", "5099"])
def test_a_file_without_a_later_deadline_changes_nothing(clock: BootClock, folder: TaskDir, text: str) -> None:
    (folder.path / LEASE_FILE).write_text(text)
    watch = watch_until(5100.0, clock)
    assert not watch.stop_falls_due()
    clock.at_s = 5090.0
    assert watch.stop_falls_due()


def test_after_the_machine_slept_through_the_deadline_it_stops_and_dies_at_once(
    clock: BootClock, folder: TaskDir
) -> None:
    watch = watch_until(5100.0, clock)
    clock.at_s = 99999.0
    assert watch.stop_falls_due()
    assert watch.must_die()
    assert watch.left_s() == 0.0


def test_without_a_grace_it_is_told_before_it_dies(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(5100.0, clock, grace_s=0.0)
    clock.at_s = 5100.0
    assert not watch.must_die(), "nobody told it yet"
    assert watch.stop_falls_due()
    assert watch.must_die()


def test_the_supervisor_never_sleeps_past_a_moment_that_matters(clock: BootClock, folder: TaskDir) -> None:
    watch = watch_until(5100.0, clock)
    assert watch.wait_s() == LOOK_S
    clock.at_s = 5100.0 - LEAD_S - 10.0 - 0.2
    assert watch.wait_s() == pytest.approx(0.2)
    clock.at_s = 5090.0
    assert watch.wait_s() == 0.0, "it is due and not yet done"
    assert watch.stop_falls_due()
    assert watch.wait_s() == LOOK_S
    clock.at_s = 5100.0 - LEAD_S - 0.2
    assert watch.wait_s() == pytest.approx(0.2)
    clock.at_s = 5101.0
    assert watch.wait_s() == KILL_AGAIN_S


def test_an_extension_that_was_overtaken_is_not_written(folder: TaskDir) -> None:
    for until_s in (300.5, 200.0, float("inf"), float("nan")):
        folder.extend_lease(until_s)
    assert (folder.path / LEASE_FILE).read_text() == "300.5"
    folder.extend_lease(400.0)
    assert (folder.path / LEASE_FILE).read_text() == "400.0"
    assert [entry.name for entry in folder.path.iterdir()] == [LEASE_FILE], "no scratch file stays"
