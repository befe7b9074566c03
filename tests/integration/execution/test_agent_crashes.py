"""Killing any part at any time loses no end, invents none, and starts nothing twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from execution_fakes import alive, everywhere, task, wait_until

from harch.execution.protocol import StartTask, StopTask, TaskEnded, TaskStarted
from harch.workloads.lifecycle import ExitReason

KILLS_AT_START = 15


async def test_a_killed_agent_readopts_its_tasks_and_reports_their_true_ends(hub, agent_process, mode, tmp_path):
    agent = agent_process(sandbox=mode, share=[str(tmp_path)])
    agent.start()
    signals = tmp_path / "signals"
    signals.mkdir()
    ends_late = task("sh", "-c", "until [ -e end ]; do sleep 0.05; done; exit 9", working_dir=str(signals))
    ends_meanwhile = task("sh", "-c", "until [ -e now ]; do sleep 0.05; done; exit 8", working_dir=str(signals))
    stopped_later = task("sleep", "60")
    for spec in (ends_late, ends_meanwhile, stopped_later):
        await hub.start(spec)
    agent.kill()
    (signals / "now").touch()
    wait_until(lambda: any(tmp_path.glob(f"state/tasks/{ends_meanwhile.key.workload_id}*/ended.json")))
    hub.messages.clear()
    agent.start()
    await hub.until(lambda: len(hub.hellos) == 2)
    known = {one.key: one for one in hub.hellos[1].tasks}
    assert known.keys() == {ends_late.key, ends_meanwhile.key, stopped_later.key}
    assert not known[ends_meanwhile.key].running
    assert known[ends_late.key].started_at is not None
    (signals / "end").touch()
    assert (await hub.ended(ends_meanwhile.key)).exit_code == 8
    assert (await hub.ended(ends_late.key)).exit_code == 9
    await hub.say(StopTask(stopped_later.key, 1.0))
    assert (await hub.ended(stopped_later.key)).reason is ExitReason.STOPPED
    assert agent.terminate()[0] == 0


async def test_an_agent_killed_at_the_start_of_a_task_never_runs_it_twice(hub, agent_process, mode, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    agent = agent_process(sandbox=mode, share=[str(runs)])
    randomness = random.Random(7)
    specs = []
    agent.start()
    for _ in range(KILLS_AT_START):
        await hub.until(lambda: bool(hub.hellos))
        spec = task("sh", "-c", f"echo x >> {runs}/$HARCH_WORKLOAD_ID; sleep 0.05; exit 4", working_dir=str(runs))
        specs.append(spec)
        await hub.say(StartTask(spec))
        await asyncio.sleep(randomness.uniform(0, 0.07))
        agent.kill()
        hub.hellos.clear()
        agent.start()
        await hub.until(lambda: bool(hub.hellos))
        known = {one.key for one in hub.hellos[0].tasks}
        started = {one.key for one in hub.messages if isinstance(one, TaskStarted)}
        ended = {one.key for one in hub.messages if isinstance(one, TaskEnded)}
        assert started <= known | ended, "what has started is never unknown"
        for placed in specs:  # what a hub does: it repeats what the inventory lacks
            if placed.key not in known | ended:
                await hub.say(StartTask(placed))
    for spec in specs:
        end = await hub.ended(spec.key)
        lines = (runs / spec.key.workload_id).read_text().split() if (runs / spec.key.workload_id).exists() else []
        assert len(lines) <= 1, "it ran twice"
        assert (end.reason, end.exit_code) == (ExitReason.EXITED, 4)
        assert lines == ["x"]


@everywhere
async def test_a_killed_supervisor_means_lost_and_nothing_survives_it(hub, agent, state):
    script = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    os.wait()
print("ready", flush=True)
time.sleep(300)
"""
    spec = task(sys.executable, "-c", script, secrets={"TOKEN": "value-of-the-token"})
    await hub.start(spec)
    for _ in range(300):
        if (await hub.log(spec.key)).data.count(b"ready") == 2:
            break
        await asyncio.sleep(0.01)
    mark = f"HARCH_WORKLOAD_ID={spec.key.workload_id}".encode()
    pids = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if mark in _environ(pid)]
    assert len(pids) >= 2
    os.kill(int((state / "tasks" / f"{spec.key.workload_id}.1.0" / "lock").read_text()), signal.SIGKILL)
    end = await hub.ended(spec.key)
    assert end.reason is ExitReason.LOST
    wait_until(lambda: not any(alive(pid) for pid in pids), timeout_s=2)


async def test_agent_and_supervisor_killed_together_are_found_out_at_the_next_start(hub, agent_process, tmp_path):
    agent = agent_process(sandbox="off")
    agent.start()
    spec = task("sleep", "300")
    await hub.start(spec)
    agent.kill()
    folder = tmp_path / "state" / "tasks" / f"{spec.key.workload_id}.1.0"
    os.kill(int((folder / "lock").read_text()), signal.SIGKILL)
    agent.start()
    assert (await hub.ended(spec.key)).reason is ExitReason.LOST
    assert agent.terminate()[0] == 0


async def test_an_end_is_repeated_until_the_hub_has_it(hub, run_agent, state):
    hub.forgets = False
    await run_agent(sandbox="off")
    spec = task("sh", "-c", "exit 3")
    await hub.run(spec)
    for _ in range(2):
        hub.messages.clear()
        await hub.hang_up()
        assert (await hub.ended(spec.key)).exit_code == 3
    assert hub.hellos[-1].tasks[0].running is False
    hub.messages.clear()
    await hub.say(StartTask(spec))
    assert (await hub.ended(spec.key)).exit_code == 3, "a repeated start answers with the end"
    hub.forgets = True
    hub.messages.clear()
    await hub.hang_up()
    await hub.ended(spec.key)
    await asyncio.sleep(0.1)
    assert list((state / "tasks").iterdir()) == []
    hub.messages.clear()
    await hub.say(StartTask(spec))
    assert (await hub.ended(spec.key)).reason is ExitReason.LOST, "even a forgotten execution does not start again"


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
