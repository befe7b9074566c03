"""The agent keeps in touch with its hub, obeys only what it may, and leaves in good order."""

from __future__ import annotations

import asyncio
import time

import pytest
from execution_fakes import API_KEY, FakeHub, alive, task, wait_until

from harch.base.errors import HarchError
from harch.execution import agent_process
from harch.execution.admission import AgentConfig
from harch.execution.agent_process import BACKOFF_S_MAX, serve
from harch.execution.protocol import AgentHeartbeat, AgentRefused, StartTask, StopTask, TaskEnded
from harch.workloads.lifecycle import ExitReason


async def test_hello_says_what_the_agent_is_and_can(hub, run_agent):
    await run_agent(node_ids=("n1", "n2"), process_slots=5, address="10.1.2.3", gang_ports=(9000, 9009), sandbox="off")
    hello = hub.hellos[0]
    assert (hello.agent_id, hello.country, hello.node_ids) == ("agent-1", "MA", ("n1", "n2"))
    assert (hello.process_slots, hello.address, hello.gang_ports) == (5, "10.1.2.3", (9000, 9009))
    assert (hello.features["sandbox"], hello.features["sandbox_detail"]) == ("plain", "switched off")
    assert {"memory_limit", "cpu_limit", "pids_limit", "pause", "cgroup"} <= hello.features.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"country": "SN"},
        {"country": ""},
        {"country": "MA", "countries_allowed": ("SN", "CI")},
        {"country": "SN", "countries_allowed": ("SN",)},
    ],
)
async def test_residency_is_checked_again_and_a_task_that_must_not_run_here_never_does(
    hub, run_agent, tmp_path, changes
):
    await run_agent(sandbox="off")
    end = await hub.run(task("touch", str(tmp_path / "ran"), **changes))
    assert end.reason is ExitReason.NOT_STARTED
    assert "E0902" in end.detail
    assert "residency" in end.detail
    modelled = await hub.run(task(modelled_duration_s=0.01, **changes))
    assert modelled.reason is ExitReason.NOT_STARTED
    assert not (tmp_path / "ran").exists()


async def test_an_agent_that_must_confine_tasks_and_cannot_does_not_serve(hub, state):
    config = AgentConfig(
        hub_url=hub.url, api_key=API_KEY, agent_id="a", state_dir=state, country="MA", sandbox="required"
    )
    with pytest.raises(HarchError) as refused:  # this file's tests find no bubblewrap
        await serve(config, stop=asyncio.Event())
    assert refused.value.code == "E0312"
    assert hub.hellos == []


async def test_tasks_for_other_nodes_or_beyond_the_slots_are_refused(hub, run_agent):
    await run_agent(node_ids=("n1",), process_slots=1, sandbox="off")
    assert "n7" in (await hub.run(task("true", node_id="n7"))).detail
    first = task("sleep", "30")
    await hub.start(first)
    assert "slots" in (await hub.run(task("true"))).detail
    await hub.say(StopTask(first.key, 0.1))
    await hub.ended(first.key)
    assert (await hub.run(task("true"))).exit_code == 0


async def test_ids_and_names_that_could_leave_their_folder_are_refused(hub, run_agent, state):
    await run_agent(sandbox="off")
    from harch.execution.protocol import TaskKey

    end = await hub.run(task("true", key=TaskKey("../../evil", 1, 0)))
    assert end.reason is ExitReason.NOT_STARTED
    end = await hub.run(task("true", secrets={"../x": "y"}))
    assert end.reason is ExitReason.NOT_STARTED
    assert list((state / "tasks").iterdir()) == []


async def test_stopping_an_unknown_task_answers_lost(hub, run_agent):
    await run_agent(sandbox="off")
    spec = task()
    await hub.say(StopTask(spec.key, 1.0))
    assert (await hub.ended(spec.key)).reason is ExitReason.LOST


async def test_the_agent_comes_back_within_a_second_and_a_half_of_the_hub(hub, run_agent):
    await run_agent(sandbox="off")
    spec = task("sleep", "60")
    await hub.start(spec)
    for number in (2, 3):
        await hub.hang_up()
        lost_s = time.monotonic()
        await hub.until(lambda number=number: len(hub.hellos) == number)
        assert time.monotonic() - lost_s < BACKOFF_S_MAX + 0.5
        assert [(one.key, one.running) for one in hub.hellos[-1].tasks] == [(spec.key, True)]


async def test_silence_is_broken_by_heartbeats(hub, run_agent, monkeypatch):
    monkeypatch.setattr(agent_process, "HEARTBEAT_S", 0.1)
    await run_agent(sandbox="off")
    await hub.wait_for(AgentHeartbeat)


async def test_a_hub_that_refuses_ends_the_agent_with_its_reason(hub, run_agent):
    running = await run_agent(sandbox="off")
    await hub.say(AgentRefused("E0103", "protocol 1 is too old"))
    with pytest.raises(HarchError, match="too old"):
        await running


async def test_a_wrong_key_ends_the_agent(hub, run_agent):
    running = await asyncio.wait_for(_first(run_agent, hub, api_key="hsk_wrong"), 10)
    with pytest.raises(HarchError, match="key"):
        await running


async def test_two_agents_do_not_share_a_state_folder(hub, run_agent):
    await run_agent(sandbox="off")
    second = await run_agent(sandbox="off")
    with pytest.raises(HarchError) as caught:
        await second
    assert caught.value.code == "E1005"


async def test_an_orderly_end_with_stop_tasks_on_exit_stops_reports_and_leaves_nothing(hub, agent_process, tmp_path):
    agent = agent_process(stop_tasks_on_exit=True)
    agent.start()
    spec, reservation = task("sleep", "300"), task()
    await hub.start(spec)
    await hub.start(reservation)
    supervisor = int((tmp_path / "state" / "tasks" / f"{spec.key.workload_id}.1.0" / "lock").read_text())
    began_s = time.monotonic()
    code, said = await asyncio.to_thread(agent.terminate)
    assert (code, said) == (0, "")
    assert time.monotonic() - began_s < 4
    assert (await hub.ended(spec.key)).reason is ExitReason.AGENT_SHUTDOWN
    assert (await hub.ended(reservation.key)).reason is ExitReason.AGENT_SHUTDOWN
    assert not alive(supervisor)
    assert list((tmp_path / "state" / "tasks").iterdir()) == [], "the hub had it, so it is forgotten"


async def test_by_default_tasks_outlive_an_agent_that_leaves(hub, agent_process, tmp_path):
    agent = agent_process(sandbox="off")
    agent.start()
    spec = task("sleep", "300")
    await hub.start(spec)
    supervisor = int((tmp_path / "state" / "tasks" / f"{spec.key.workload_id}.1.0" / "lock").read_text())
    assert (await asyncio.to_thread(agent.terminate))[0] == 0
    assert alive(supervisor)
    agent.start()
    await hub.until(lambda: len(hub.hellos) == 2)
    await hub.say(StopTask(spec.key, 1.0))
    assert (await hub.ended(spec.key)).reason is ExitReason.STOPPED
    wait_until(lambda: not alive(supervisor))


async def test_thousands_of_modelled_tasks_start_and_end_in_few_frames(hub, run_agent):
    await run_agent(sandbox="off")
    specs = [task(modelled_duration_s=0.05) for _ in range(3000)]
    frames_before, began_s = hub.frames, time.monotonic()
    await hub.say(*(StartTask(spec) for spec in specs))
    keys = {spec.key for spec in specs}
    await hub.until(lambda: len({one.key for one in hub.messages if isinstance(one, TaskEnded)} & keys) == len(keys))
    assert time.monotonic() - began_s < 3
    assert hub.frames - frames_before < 100
    ends = [one for one in hub.messages if isinstance(one, TaskEnded)]
    assert len(ends) == len(specs)
    assert {(end.reason, end.exit_code) for end in ends} == {(ExitReason.EXITED, 0)}


async def _first(run_agent, hub: FakeHub, **settings):
    """An agent that never says Hello: returns once it has ended."""
    starting = asyncio.create_task(run_agent(**settings))
    while not starting.done():
        await asyncio.sleep(0.05)
        async with hub._news:
            hub._news.notify_all()
    return await starting
