"""Work under a lease stops by itself, whoever else is still there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from execution_fakes import alive, everywhere, task, wait_until

from harch.base.clock import SystemClock
from harch.execution import agent_process
from harch.execution.protocol import AgentHeartbeat, ExtendLease, PauseTask, StartTask, StopTask, TaskKey, TaskStarted
from harch.workloads.lifecycle import ExitReason

POLITE = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.02; done"


def in_s(seconds: float) -> float:
    return SystemClock().boot_s() + seconds


def folder_of(state: Path, spec) -> Path:
    return state / "tasks" / f"{spec.key.workload_id}.1.0"


async def test_hello_and_heartbeats_tell_the_boot_clock_also_amid_other_messages(hub, run_agent, monkeypatch):
    monkeypatch.setattr(agent_process, "HEARTBEAT_S", 0.1)
    before_s = in_s(0)
    await run_agent(sandbox="off")
    chatter = asyncio.create_task(_chat(hub))
    await hub.until(lambda: sum(isinstance(one, AgentHeartbeat) for one in hub.messages) >= 2)
    chatter.cancel()
    beats = [one.boot_s for one in hub.messages if isinstance(one, AgentHeartbeat)]
    readings = [before_s, hub.hellos[0].boot_s, *beats, in_s(0)]
    assert readings == sorted(readings)


async def test_a_task_is_told_before_the_deadline_and_may_save_its_work(hub, agent):
    until_s = in_s(11.5)
    spec = task("sh", "-c", POLITE, lease_until_s=until_s, stop_grace_s=10.0)
    await hub.start(spec)
    end = await hub.ended(spec.key)
    assert (end.reason, end.exit_code) == (ExitReason.LEASE_ENDED, 5)
    assert end.detail == "it stopped within its grace of 10 s"
    assert in_s(0) < until_s
    assert b"saved" in (await hub.log(spec.key)).data


@everywhere
async def test_at_the_deadline_a_task_that_ignores_term_is_dead_and_so_is_a_paused_one(hub, agent):
    deaf, paused = (task("sh", "-c", DEAF, lease_until_s=in_s(1.5), stop_grace_s=0.4) for _ in range(2))
    for spec in (deaf, paused):
        await hub.start(spec)
        await _logged(hub, spec, b"ready")
    await hub.say(PauseTask(paused.key))
    for spec in (deaf, paused):
        end = await hub.ended(spec.key)
        assert (end.reason, end.signal) == (ExitReason.LEASE_ENDED, 9)
        assert "killed at the deadline" in end.detail
        deadline = _deadline(spec.lease_until_s)
        assert deadline - 0.2 < end.at.timestamp() < deadline + 2, "it had its grace, and no more"


async def test_an_extension_keeps_it_alive_and_without_a_further_one_it_ends(hub, run_agent):
    await run_agent(sandbox="off")
    spec = task("sleep", "60", lease_until_s=in_s(1.5), stop_grace_s=0.1)
    await hub.start(spec)
    until_s = spec.lease_until_s + 1.0
    for later_s in (until_s - 0.5, until_s, in_s(-5.0)):  # the last was long on its way, and shortens nothing
        await hub.say(ExtendLease(((spec.key, later_s),)))
    end = await hub.ended(spec.key)
    assert end.reason is ExitReason.LEASE_ENDED
    assert end.at.timestamp() > _deadline(until_s) - 0.3


async def test_an_extension_after_term_is_in_vain(hub, run_agent):
    await run_agent(sandbox="off")
    spec = task("sh", "-c", "trap 'echo told' TERM; while :; do sleep 0.02; done", lease_until_s=in_s(2.0))
    await hub.start(spec)
    await _logged(hub, spec, b"told")
    await hub.say(ExtendLease(((spec.key, in_s(60.0)),)))
    assert (await hub.ended(spec.key)).reason is ExitReason.LEASE_ENDED


async def test_a_stop_with_a_long_grace_does_not_outlast_the_lease(hub, run_agent):
    await run_agent(sandbox="off")
    spec = task("sh", "-c", DEAF, lease_until_s=in_s(1.5), stop_grace_s=0.1)
    await hub.start(spec)
    await _logged(hub, spec, b"ready")
    await hub.say(StopTask(spec.key, 600.0))
    end = await hub.ended(spec.key)
    assert (end.reason, end.signal) == (ExitReason.STOPPED, 9), "the first reason stands"


async def test_each_rank_of_a_gang_keeps_its_own_lease(hub, run_agent):
    await run_agent(sandbox="off")
    first = task("sleep", "60", lease_until_s=in_s(1.5), stop_grace_s=0.1)
    second = task("sleep", "60", lease_until_s=in_s(60.0), key=TaskKey(first.key.workload_id, 1, 1))
    await hub.start(first)
    await hub.start(second)
    assert (await hub.ended(first.key)).reason is ExitReason.LEASE_ENDED
    assert not _ended(hub, second)


async def test_with_agent_and_hub_gone_the_supervisor_alone_stops_it(hub, agent_process, mode, state):
    agent = agent_process(sandbox=mode)
    agent.start()
    await hub.until(lambda: bool(hub.hellos))
    renewed = task("sh", "-c", DEAF, lease_until_s=in_s(2.0), stop_grace_s=0.2)
    plain = task("sleep", "60", lease_until_s=in_s(2.0), stop_grace_s=0.2)
    for spec in (renewed, plain):
        await hub.start(spec)
    until_s = renewed.lease_until_s + 0.5
    await hub.say(ExtendLease(((renewed.key, until_s),)))
    wait_until((folder_of(state, renewed) / "lease").exists)
    agent.kill()
    supervisors = [int((folder_of(state, spec) / "lock").read_text()) for spec in (renewed, plain)]
    assert all(map(alive, supervisors))
    wait_until(lambda: not any(map(alive, supervisors)))
    assert in_s(0) > until_s - 0.2, "what the former agent was told still counts"
    hub.messages.clear()
    agent.start()
    for spec in (renewed, plain):
        assert (await hub.ended(spec.key)).reason is ExitReason.LEASE_ENDED
    known = {one.key: one.running for one in hub.hellos[-1].tasks}
    assert known == {renewed.key: False, plain.key: False}


async def test_with_only_the_hub_gone_it_stops_and_the_next_hub_hears_of_it(hub, run_agent, monkeypatch):
    await run_agent(sandbox="off")
    spec = task("sleep", "60", lease_until_s=in_s(1.2), stop_grace_s=0.2)
    modelled = task(lease_until_s=in_s(1.2), stop_grace_s=0.2)
    for one in (spec, modelled):
        await hub.start(one)
    monkeypatch.setattr(agent_process, "BACKOFF_S_MIN", 2.0)
    monkeypatch.setattr(agent_process, "BACKOFF_S_MAX", 2.0)
    await hub.hang_up()
    await hub.until(lambda: len(hub.hellos) == 2)
    for one in (spec, modelled):
        assert (await hub.ended(one.key)).reason is ExitReason.LEASE_ENDED


async def test_a_modelled_task_ends_with_its_lease_and_does_not_come_back_to_a_new_agent(hub, agent_process):
    agent = agent_process(sandbox="off")
    agent.start()
    await hub.until(lambda: bool(hub.hellos))
    spec = task(modelled_duration_s=60.0, lease_until_s=in_s(1.0), stop_grace_s=0.2)
    await hub.start(spec)
    assert (await hub.ended(spec.key)).reason is ExitReason.LEASE_ENDED
    agent.kill()
    hub.messages.clear()
    agent.start()
    await hub.until(lambda: len(hub.hellos) == 2)
    await hub.say(StartTask(spec))  # what a hub does that did not hear of the end
    assert (await hub.ended(spec.key)).reason is ExitReason.LEASE_ENDED
    assert not any(isinstance(one, TaskStarted) for one in hub.messages)


@pytest.mark.parametrize("left_s", [-1.0, 0.5])
async def test_a_lease_that_is_over_starts_nothing(hub, run_agent, tmp_path, state, left_s):
    await run_agent(sandbox="off", share=(tmp_path,))
    spec = task("touch", "ran", working_dir=str(tmp_path), lease_until_s=in_s(left_s), stop_grace_s=1.0)
    assert (await hub.run(spec)).reason is ExitReason.LEASE_ENDED
    assert not (tmp_path / "ran").exists()
    assert not folder_of(state, spec).exists()


async def test_a_task_that_ends_in_time_is_not_touched(hub, run_agent):
    await run_agent(sandbox="off")
    end = await hub.run(task("sh", "-c", "sleep 0.2; exit 3", lease_until_s=in_s(60.0)))
    assert (end.reason, end.exit_code, end.detail) == (ExitReason.EXITED, 3, "")


async def _logged(hub, spec, text: bytes) -> None:
    async with asyncio.timeout(10):
        while text not in (await hub.log(spec.key)).data:
            await asyncio.sleep(0.01)


async def _chat(hub) -> None:
    while True:
        await hub.run(task(modelled_duration_s=0.001))


def _ended(hub, spec) -> bool:
    return any(type(one).__name__ == "TaskEnded" and one.key == spec.key for one in hub.messages)


def _deadline(until_s: float) -> float:
    """In wall time, as the end of a task is told."""
    clock = SystemClock()
    return clock.now().timestamp() + until_s - clock.boot_s()
