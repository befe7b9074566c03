"""The simulated agent keeps leases by its own clock, which is nobody else's."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from harch.execution.protocol import ExtendLease, Forget, StartTask, TaskEnded, TaskKey, TaskSpec, TaskStarted
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.workloads.lifecycle import ExitReason

KEY = TaskKey("wl_1", 1, 0)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def leased(until_s: float | None, key: TaskKey = KEY, grace_s: float = 10.0) -> StartTask:
    return StartTask(
        TaskSpec(
            key=key,
            name="n",
            tenant="t",
            node_id="n1",
            gpu_ids=(),
            gpu_indexes=(),
            gpus_modelled=True,
            command=("true",),
            country="MA",
            stop_grace_s=grace_s,
            lease_until_s=until_s,
        )
    )


@pytest.fixture
def agent() -> SimAgent:
    return SimAgent("a", "MA", boot_offset_s=5000.0)


def test_its_boot_clock_has_its_own_zero_and_speed() -> None:
    fast = SimAgent("a", "MA", boot_offset_s=50.0, boot_rate=1.5)
    assert fast.hello().boot_s == 50.0
    assert fast.hello(now=at(10)).boot_s == 65.0
    assert fast.heartbeat(at(20)).boot_s == 80.0
    assert fast.hello(now=at(15)).boot_s == 80.0, "a boot clock never goes back"


def test_a_task_runs_to_its_deadline_and_not_beyond(agent: SimAgent) -> None:
    agent.receive(leased(5100.0), now=at(1))
    agent.tick(at(99.9))
    assert KEY in agent.running
    agent.tick(at(100))
    assert KEY not in agent.running
    started, ended = agent.take_outbox()
    assert isinstance(started, TaskStarted)
    assert isinstance(ended, TaskEnded)
    assert ended.reason is ExitReason.LEASE_ENDED
    agent.receive(Forget(KEY), now=at(101))
    assert agent.ended == {}


def test_an_extension_in_time_keeps_it_alive(agent: SimAgent) -> None:
    agent.receive(leased(5100.0), now=at(1))
    agent.receive(ExtendLease(((KEY, 5300.0), (TaskKey("unknown", 1, 0), 9.0))), now=at(80))
    agent.tick(at(280))
    assert KEY in agent.running


def test_an_extension_after_term_is_in_vain(agent: SimAgent) -> None:
    agent.receive(leased(5100.0), now=at(1))
    agent.receive(ExtendLease(((KEY, 5300.0),)), now=at(95))
    agent.tick(at(100))
    assert KEY not in agent.running


def test_a_lease_that_is_over_starts_nothing(agent: SimAgent) -> None:
    agent.receive(leased(5100.0), now=at(95))
    assert (agent.starts[KEY], agent.running) == (0, {})
    (ended,) = agent.take_outbox()
    assert isinstance(ended, TaskEnded)
    assert ended.reason is ExitReason.LEASE_ENDED


def test_without_a_lease_nothing_changes(agent: SimAgent) -> None:
    agent.receive(leased(None), now=at(0))
    agent.receive(ExtendLease(((KEY, 1.0),)), now=at(1))
    agent.tick(at(10**6))
    assert KEY in agent.running


def test_a_task_that_ended_by_itself_leaves_no_lease(agent: SimAgent) -> None:
    agent.receive(leased(5100.0), now=at(0))
    agent.end(KEY, ExitReason.EXITED, now=at(1), exit_code=0)
    agent.tick(at(10**6))
    assert agent.leases == {}
