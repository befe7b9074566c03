"""A hub that starts takes over the SENTINEL that outlived it, replaces one that is set up differently, and a hub that
is told to stop leaves nothing running. Small programs stand in for SENTINEL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harch.api import sentinel_process
from harch.api.sentinel_process import FINGERPRINT, SentinelChild, record_of, stop_left_over, write_own_record
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, found_running, write_record
from harch.testing.clock import SimClock

PATIENCE_S = 30.0
STAND_IN = """
import os, signal, sys, time
heard = sys.argv[1]
signal.signal(signal.SIGHUP, lambda *_: open(heard + ".hup", "w").close())
open(heard, "w").close()
while True:
    time.sleep(60)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a stand-in that a hub with this state folder would find, set up as the fingerprint says."""
    made: list[subprocess.Popen[bytes]] = []

    def start(fingerprint: str) -> subprocess.Popen[bytes]:
        heard = tmp_path / f"heard-{len(made)}"
        process = subprocess.Popen([sys.executable, "-c", STAND_IN, str(heard)])
        made.append(process)
        until(heard.exists)
        write_record(record_of(tmp_path), ProcessRecord(process.pid, start_ticks(process.pid), fingerprint))
        return process

    yield start
    for process in made:
        process.kill()
        process.wait()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def child(folder: Path, *, is_wanted_no_more: bool = True) -> SentinelChild:
    made = SentinelChild(
        folder, "dakhla", "Dakhla", "http://127.0.0.1:1", ("127.0.0.1", 2), SimClock(), lambda: is_wanted_no_more
    )
    made.key_file.write_text("hsk_own")
    return made


def fingerprint(one: SentinelChild) -> str:
    return one._fingerprint(one._arguments())


async def test_a_sentinel_that_ran_on_is_taken_over_and_reads_its_files_again(tmp_path: Path, running) -> None:
    hub = child(tmp_path)
    process = running(fingerprint(hub))
    found = await hub._taken_over(fingerprint(hub))
    assert found is not None
    assert found.record.pid == process.pid
    until((tmp_path / "heard-0.hup").exists)
    assert process.poll() is None


@pytest.mark.parametrize("changed", ["sentinel.toml", "sentinel.key"])
async def test_one_that_was_set_up_differently_is_stopped(tmp_path: Path, running, changed: str) -> None:
    hub = child(tmp_path)
    process = running(fingerprint(hub))
    (tmp_path / changed).write_text("other")
    assert await hub._taken_over(fingerprint(hub)) is None
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


async def test_a_number_that_somebody_else_has_by_now_is_left_alone(tmp_path: Path, running) -> None:
    hub = child(tmp_path)
    process = running(fingerprint(hub))
    write_record(record_of(tmp_path), ProcessRecord(process.pid, start_ticks(process.pid) + 1, "x"))
    assert await hub._taken_over(fingerprint(hub)) is None
    await stop_left_over(tmp_path)
    assert process.poll() is None


def test_one_that_has_ended_is_not_taken_for_running_where_nobody_waited_for_it(tmp_path: Path, running) -> None:
    process = running("x")
    process.kill()
    until(lambda: found_running(record_of(tmp_path)) is None)
    assert process.returncode is None  # its entry in the table of processes is still there


@pytest.mark.parametrize("told", [True, False])
async def test_a_hub_that_is_told_to_stop_stops_it_and_one_that_dies_does_not(
    tmp_path: Path, running, told: bool
) -> None:
    hub = child(tmp_path, is_wanted_no_more=told)
    process = running(fingerprint(hub))
    found = found_running(record_of(tmp_path))
    assert found is not None
    watching = asyncio.create_task(hub._watched(found))
    await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert (process.poll() is None) is not told


async def test_what_a_dead_hub_left_is_stopped_by_who_stops_the_federation(tmp_path: Path, running) -> None:
    process = running("whatever")
    await stop_left_over(tmp_path)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    await stop_left_over(tmp_path)  # nothing is there any more


def test_sentinel_writes_its_own_record_only_beside_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not write_own_record(tmp_path / "sentinel" / "data")
    monkeypatch.setenv(FINGERPRINT, "f")
    assert write_own_record(tmp_path / "sentinel" / "data")
    found = found_running(record_of(tmp_path))
    assert found is not None
    assert found.record == ProcessRecord(os.getpid(), start_ticks(os.getpid()), "f")
    assert record_of(tmp_path).stat().st_mode & 0o777 == 0o600


def test_the_environment_of_the_hub_does_not_tell_sentinel_who_its_parent_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARCH_PARENT_PID", "1")
    monkeypatch.setenv("HARCH_API_KEY", "secret")
    assert not {"HARCH_PARENT_PID", "HARCH_API_KEY"} & set(sentinel_process._environment())
