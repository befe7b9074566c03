"""A hub that dies at any store boundary loses nothing, runs nothing twice and frees every GPU exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.hub.audit import table
from harch.hub.audit.table import AuditQuery
from harch.sovereignty.audit.chain import ADMITTED, ENDED, NO_HASH, PLACED
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import State
from sim.world import World

CRASH_POINTS = 200
STEPS = 60


def scratch(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize("block", range(10))
def test_every_acknowledged_workload_survives_a_crash_at_any_store_boundary(block: int, tmp_path: Path) -> None:
    for number in range(block * CRASH_POINTS // 10, (block + 1) * CRASH_POINTS // 10):
        world = World(tiny_fleet(), scratch(tmp_path, str(number)), seed=number, crash_at=5 + number)
        try:
            for _ in range(STEPS):
                world.survive(world.random.choice(World.STEPS))
            while world.crashes == 0:  # a short story: go on until the plug is pulled
                world.survive(world.random.choice(World.STEPS))
            world.drain()
            stored = {w.id: w for w in world.database.workloads_to_restore(world.now.replace(year=2000))}
            assert world.acknowledged <= set(stored), "an acknowledged workload is gone"
            assert all(workload.state.is_final for workload in stored.values())
            assert not world.machine.state.scheduler.running
            for agent in world.agents.values():
                assert all(count == 1 for count in agent.starts.values())
            records = table.records(world.database, AuditQuery(limit=100_000))
            audited, hashes = [one.entry for one in records], [one.hash for one in records]
            assert [entry.seq for entry in audited] == list(range(1, len(audited) + 1))
            assert [entry.prev for entry in audited] == [NO_HASH, *hashes[:-1]], "the audit chain is broken"
            assert sorted(e.subject for e in audited if e.kind == ADMITTED) == sorted(stored)
            assert sorted(e.subject for e in audited if e.kind == ENDED) == sorted(stored)
            placed = sum(workload.attempt for workload in stored.values())
            assert sum(e.kind == PLACED for e in audited) == placed, "a placement is missing from the audit chain"
            completed = [w for w in stored.values() if w.state is State.COMPLETED]
            assert all(w.attempt >= 1 and len(w.task_ends) == w.spec.tasks for w in completed)
        except AssertionError as error:
            raise AssertionError(f"crash point {number}: {error}\nstory: {world.story}") from error
        finally:
            world.database.close()
