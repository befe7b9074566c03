"""Modelled tasks end when their time has come, and only then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from harch.execution import modelled_engine
from harch.execution.modelled_engine import ModelledEngine
from harch.execution.protocol import TaskKey, TaskSpec
from harch.workloads.lifecycle import ExitReason

START = datetime(2026, 1, 1, tzinfo=UTC)


class HandClock:
    def __init__(self):
        self.at_s, self.slept_s = 0.0, 0.0

    def now(self):
        return START + timedelta(seconds=self.at_s)

    def monotonic_s(self):
        return self.at_s

    def boot_s(self):
        return 1000.0 + self.at_s + self.slept_s

    async def sleep(self, delay_s): ...


class Notes:
    def __init__(self):
        self.started, self.ended = [], []

    def task_started(self, key, at):
        self.started.append(key)

    def task_ended(self, end):
        self.ended.append((end.key.workload_id, end.reason, end.exit_code))


def spec(name: str, duration_s: float | None, **changes) -> TaskSpec:
    fields = {"key": TaskKey(name, 1, 0), "name": name, "tenant": "t", "node_id": "n", "gpu_ids": (), "gpu_indexes": ()}
    return TaskSpec(**fields, gpus_modelled=True, modelled_duration_s=duration_s, **changes)


@pytest.fixture
async def world():
    clock, notes = HandClock(), Notes()
    engine = ModelledEngine(notes, clock)

    def advance(seconds: float):
        clock.at_s += seconds
        engine.end_due()
        return notes.ended

    yield engine, notes, advance
    engine.close()


async def test_tasks_end_in_the_order_of_their_time(world):
    engine, notes, advance = world
    for name, duration_s in (("slow", 3.0), ("quick", 1.0), ("middle", 2.0)):
        engine.start(spec(name, duration_s))
    assert len(notes.started) == 3
    assert [one[0] for one in advance(2.5)] == ["quick", "middle"]
    assert advance(0.5)[-1] == ("slow", ExitReason.EXITED, 0)
    assert engine.running() == []


async def test_a_reservation_lasts_until_it_is_stopped(world):
    engine, notes, advance = world
    engine.start(spec("held", None))
    assert advance(10**6) == []
    engine.stop(TaskKey("held", 1, 0), grace_s=0, reason=ExitReason.STOPPED)
    assert notes.ended == [("held", ExitReason.STOPPED, None)]


async def test_a_longer_time_than_allowed_is_a_timeout(world):
    engine, _, advance = world
    engine.start(spec("long", 5.0, max_duration_s=2.0))
    engine.start(spec("reserved", None, max_duration_s=3.0))
    assert advance(4.0) == [("long", ExitReason.TIMEOUT, None), ("reserved", ExitReason.TIMEOUT, None)]


async def test_time_stands_still_in_pause(world):
    engine, _, advance = world
    key = TaskKey("p", 1, 0)
    engine.start(spec("p", 2.0))
    assert advance(1.0) == []
    engine.pause(key)
    engine.pause(key)
    assert advance(10.0) == []
    engine.resume(key)
    engine.resume(key)
    assert advance(0.9) == []
    assert len(advance(0.2)) == 1


async def test_a_lease_that_is_not_renewed_ends_it_a_grace_before_the_deadline(world):
    engine, _, advance = world
    for name, changes in (("leased", {}), ("paused", {}), ("long", {"max_duration_s": 10**6})):
        engine.start(spec(name, None, lease_until_s=1100.0, stop_grace_s=10.0, **changes))
    engine.start(spec("free", None))
    engine.pause(TaskKey("paused", 1, 0))
    assert advance(89.0) == []
    assert {one[:2] for one in advance(1.0)} == {
        (name, ExitReason.LEASE_ENDED) for name in ("leased", "paused", "long")
    }
    assert [one.key.workload_id for one in engine.running()] == ["free"]


async def test_an_extension_in_time_keeps_a_modelled_task(world):
    engine, _, advance = world
    key = TaskKey("leased", 1, 0)
    engine.start(spec("leased", 500.0, lease_until_s=1100.0, stop_grace_s=10.0))
    advance(80.0)
    engine.extend_lease(key, 2000.0)
    engine.extend_lease(key, 1200.0)
    engine.extend_lease(TaskKey("unknown", 1, 0), 1200.0)
    assert advance(300.0) == []
    assert advance(120.0) == [("leased", ExitReason.EXITED, 0)]
    assert len(advance(10**6)) == 1, "an ended task has no lease that could end"


async def test_a_lease_runs_out_while_the_machine_sleeps(world):
    engine, _, advance = world
    engine.start(spec("leased", 500.0, lease_until_s=1100.0, stop_grace_s=10.0))
    engine._clock.slept_s = 3600.0
    assert advance(0.0) == [("leased", ExitReason.LEASE_ENDED, None)]


async def test_stopped_tasks_do_not_pile_up(world):
    engine, notes, _ = world
    for number in range(5 * modelled_engine.STALE_MAX):
        engine.start(spec(f"t{number}", 10**6))
        engine.stop(TaskKey(f"t{number}", 1, 0), grace_s=0, reason=ExitReason.STOPPED)
    assert len(engine._heap) <= modelled_engine.STALE_MAX + 2
    assert len(notes.ended) == 5 * modelled_engine.STALE_MAX


async def test_beyond_the_limit_tasks_are_refused(world, monkeypatch):
    engine, notes, _ = world
    monkeypatch.setattr(modelled_engine, "TASKS_MAX", 1)
    engine.start(spec("a", None))
    engine.start(spec("b", None))
    assert notes.ended == [("b", ExitReason.NOT_STARTED, None)]


async def test_the_timer_fires_by_itself():
    from harch.base.clock import SystemClock

    notes = Notes()
    engine = ModelledEngine(notes, SystemClock())
    engine.start(spec("late", 0.2))
    engine.start(spec("soon", 0.01))
    await asyncio.sleep(0.08)
    assert [one[0] for one in notes.ended] == ["soon"]
    engine.close()


async def test_the_timer_also_fires_for_a_lease():
    from harch.base.clock import SystemClock

    notes, clock = Notes(), SystemClock()
    engine = ModelledEngine(notes, clock)
    engine.start(spec("leased", None, lease_until_s=clock.boot_s() + 0.05, stop_grace_s=0.0))
    async with asyncio.timeout(5):
        while not notes.ended:
            await asyncio.sleep(0.01)
    assert notes.ended == [("leased", ExitReason.LEASE_ENDED, None)]
    engine.close()
