"""Every way in which a task can end is told as what it was."""

from __future__ import annotations

import asyncio
import sys

import pytest
from execution_fakes import alive, everywhere, task, wait_until

from harch.execution.protocol import PauseTask, ResumeTask, StartTask, StopTask
from harch.workloads.lifecycle import ExitReason


async def test_an_exit_code_is_reported(hub, agent):
    end = await hub.run(task("sh", "-c", "exit 7"))
    assert (end.reason, end.exit_code, end.signal) == (ExitReason.EXITED, 7, None)


async def test_success_is_exit_code_zero_and_the_start_is_told_first(hub, agent):
    spec = task("true")
    end = await hub.run(spec)
    assert (end.reason, end.exit_code) == (ExitReason.EXITED, 0)
    kinds = [type(one).__name__ for one in hub.messages if getattr(one, "key", None) == spec.key]
    assert kinds == ["TaskStarted", "TaskEnded"]


@everywhere
async def test_a_signal_of_its_own_is_reported(hub, agent):
    end = await hub.run(task("sh", "-c", "kill -SEGV $$"))
    assert (end.reason, end.signal, end.exit_code) == (ExitReason.SIGNALLED, 11, 139)


@pytest.mark.parametrize(
    ("command", "code"), [(("no-such-program",), 127), (("/etc/passwd",), 126), (("./nothing-here", "x"), 127)]
)
async def test_a_command_that_cannot_run_is_not_started(hub, agent, command, code):
    spec = task(*command)
    end = await hub.run(spec)
    assert (end.reason, end.exit_code) == (ExitReason.NOT_STARTED, code)
    assert "b'" not in end.detail
    assert "execvp" not in end.detail  # nobody asked for the sandbox's own words
    assert command[0] in end.detail
    assert "No such file" in end.detail or "ermission denied" in end.detail
    assert not [one for one in hub.messages if type(one).__name__ == "TaskStarted" and one.key == spec.key]


async def test_a_task_that_outlives_its_time_is_ended_as_timeout(hub, agent):
    end = await hub.run(task("sleep", "60", max_duration_s=0.2))
    assert (end.reason, end.signal) == (ExitReason.TIMEOUT, 15)


@pytest.mark.needs("memory-cgroup")
async def test_a_task_beyond_its_memory_is_ended_as_out_of_memory(hub, agent):
    end = await hub.run(task(sys.executable, "-c", "x = bytearray(300 * 10**6); print(len(x))", memory_gb=0.06))
    assert end.reason is ExitReason.OUT_OF_MEMORY
    assert "memory limit" in end.detail


async def test_a_stop_is_polite_first(hub, agent):
    spec = task("sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    await hub.start(spec)
    await _logged(hub, spec, b"ready")
    await hub.say(StopTask(spec.key, 10.0))
    end = await hub.ended(spec.key)
    assert (end.reason, end.exit_code) == (ExitReason.STOPPED, 5)
    assert b"bye" in (await hub.log(spec.key)).data


@everywhere
async def test_a_stop_then_kills_what_does_not_listen_and_all_its_descendants(hub, agent, tmp_path):
    marker = f"harch-{tmp_path.name}"
    # A grandchild in a session of its own, orphaned at once, deaf to TERM: what a daemon does.
    script = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(0.1)
    os._exit(0)
os.wait()
print("ready {marker}", flush=True)
while True: time.sleep(0.1)
"""
    spec = task(sys.executable, "-c", script)
    await hub.start(spec)
    await _logged(hub, spec, b"ready")
    pids = _pids_with(marker)
    assert len(pids) >= 2
    await hub.say(StopTask(spec.key, 0.2))
    end = await hub.ended(spec.key)
    assert (end.reason, end.signal) == (ExitReason.STOPPED, 9)
    assert not any(alive(pid) for pid in pids)


@everywhere
async def test_background_processes_do_not_outlive_their_task(hub, agent, tmp_path):
    marker = f"harch-{tmp_path.name}"
    spec = task("sh", "-c", f"setsid sh -c 'sleep 300; : {marker}' & sleep 0.2; echo $!")
    await hub.start(spec)
    wait_until(lambda: _pids_with(marker) != [])
    assert (await hub.ended(spec.key)).reason is ExitReason.EXITED
    assert _pids_with(marker) == []


async def test_a_stop_right_after_the_start_is_never_mistaken_for_a_loss(hub, agent):
    for delay_s in (0, 0.005, 0.02, 0.04):
        spec = task("sleep", "60")
        await hub.say(StartTask(spec))
        await asyncio.sleep(delay_s)
        await hub.say(StopTask(spec.key, 0.5))
        assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED


@everywhere
async def test_a_paused_task_stands_still_until_resumed(hub, agent):
    spec = task("sh", "-c", "while :; do echo tick; sleep 0.01; done")
    await hub.start(spec)
    await _logged(hub, spec, b"tick")
    await hub.say(PauseTask(spec.key))
    await asyncio.sleep(0.3)
    before = (await hub.log(spec.key)).data
    await asyncio.sleep(0.2)
    assert (await hub.log(spec.key)).data == before
    await hub.say(ResumeTask(spec.key))
    for _ in range(200):
        if len((await hub.log(spec.key)).data) > len(before):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("it did not go on")


async def test_a_paused_task_can_be_stopped(hub, agent):
    spec = task("sleep", "60")
    await hub.start(spec)
    await hub.say(PauseTask(spec.key))
    await asyncio.sleep(0.1)
    await hub.say(StopTask(spec.key, 5.0))
    assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED


async def test_time_in_pause_does_not_count(hub, agent):
    spec = task("sh", "-c", "sleep 0.4", max_duration_s=0.6)
    await hub.start(spec)
    await hub.say(PauseTask(spec.key))
    await asyncio.sleep(0.7)
    await hub.say(ResumeTask(spec.key))
    assert (await hub.ended(spec.key)).reason is ExitReason.EXITED


@pytest.mark.needs("cpu-cgroup")
async def test_cpu_use_is_limited(hub, agent):
    script = """
import time
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 0.8: pass
print((time.process_time() - used) / (time.monotonic() - start))
"""
    spec = task(sys.executable, "-c", script, cpus=0.2)
    await hub.run(spec)
    assert float((await hub.log(spec.key)).data) < 0.35


async def _logged(hub, spec, text: bytes) -> None:
    for _ in range(500):
        if text in (await hub.log(spec.key)).data:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{text!r} never appeared in the log")


def _pids_with(marker: str) -> list[int]:
    from pathlib import Path

    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if marker.encode() in (folder / "cmdline").read_bytes() and alive(int(folder.name)):
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
