"""One partition through crashes, stalls, lost answers and clocks that disagree: every event in exactly one window."""

from __future__ import annotations

import os

import pytest

from harch.pipelines.workers import partition
from sim.partition_world import World

_SOAK = bool(os.environ.get("HARCH_SOAK"))


def _judge(world: World) -> None:
    world.finish()
    assert world.lane.counts() == world.truth, "an event was lost, or counted twice"
    assert world.lane.contradictions == [], "one window was told in two ways"
    assert world.epochs_written == sorted(world.epochs_written), "an older holder wrote after a newer one"
    assert world.two_believed == 0, "two workers believed to hold the partition at one time"


@pytest.mark.parametrize("crash_at", range(1, 120, 1 if _SOAK else 3))
def test_a_worker_that_dies_at_any_await_loses_and_repeats_nothing(crash_at: int) -> None:
    world = World(crash_at, trouble=0.0)
    world.run(500, crash_at=crash_at)
    _judge(world)
    assert sum(world.truth.values()) > 100


@pytest.mark.parametrize("seed", range(400 if _SOAK else 40))
def test_deaths_stalls_lost_answers_and_late_writes_together(seed: int) -> None:
    world = World(seed, workers=3, trouble=0.08, lives_inherit=seed % 2 == 0)
    world.run(900, deaths=0.003, stalls=0.004)
    _judge(world)


def test_what_the_features_say_is_what_was_counted_also_where_the_order_of_arrival_decides() -> None:
    late = 0
    for seed in range(200 if _SOAK else 25):
        world = World(seed, workers=2, trouble=0.05, are_apart=True)
        world.run(700, deaths=0.004)
        world.finish()
        assert world.events_in == sum(world.truth.values())
        assert sum(world.lane.counts().values()) == world.accepted, "a window was told otherwise than it was closed"
        assert world.lane.contradictions == []
        late += world.events_in - world.accepted
    assert late > 0, "nothing was late, so this shows nothing"


def test_a_stalled_holder_is_replaced_and_what_it_does_afterwards_changes_nothing() -> None:
    world = World(3, trouble=0.0)
    world.run(300)
    holder = next(worker for worker in world.workers if worker.believes)
    epoch = world.epochs_written[-1]
    holder.asleep_until_s = world.now_s + 10.0
    world.run(600)
    assert world.epochs_written[-1] > epoch
    _judge(world)


def test_a_next_stage_that_takes_nothing_stops_the_sources_and_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "OUTBOX_BYTES_FULL", 2000)
    monkeypatch.setattr(partition, "OUTBOX_BYTES_MAX", 4000)
    world = World(11, trouble=0.02)
    world.run(200)
    world.lane.is_closed = True
    world.run(2000, deaths=0.001)
    held = [worker.partition for worker in world.workers if worker.partition is not None]
    assert held
    assert all(one.is_full for one in held)
    assert all(one.unsent < 40 for one in held), "what waits has a limit"
    assert world.sources[0].buffered_bytes > 0, "its source keeps what is not taken"
    world.lane.is_closed = False
    _judge(world)


def test_a_worker_that_was_killed_takes_its_own_leases_back_at_once() -> None:
    world = World(5, workers=1, trouble=0.0, lives_inherit=True)
    world.run(100)
    world.kill(0)
    before_s = world.now_s
    world.run(100)
    assert world.workers[0].believes
    assert world.now_s - before_s < 3.0, "it did not wait for its lease to run out"
    _judge(world)
