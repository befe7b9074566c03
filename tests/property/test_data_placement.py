"""Whatever is placed satisfies the oracle: random worlds, random tags, random work, a real job machine per hub."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.execution.protocol import StartTask, TaskEnded, TaskKey
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import CatalogEntry
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Terrain
from harch.sovereignty.tags import DataKind, DataObject, Tag, meet
from harch.testing.agents import SimAgent
from harch.testing.samples import tiny_fleet
from harch.testing.sovereignty import Oracle, random_tag, random_terrain
from harch.workloads.lifecycle import ExitReason, State
from harch.workloads.spec import Resources, WorkloadSpec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLEET = tiny_fleet()
HUB = FLEET.hubs[0]


def world(rng: np.random.Generator) -> Terrain:
    """A random world in which our hub stands somewhere, among others, with links of its own."""
    terrain = random_terrain(rng, hub_count=5, country_count=4)
    ours = "hub-0"

    def named(hub: str) -> str:
        return HUB.id if hub == ours else hub

    return Terrain(
        tuple(replace(site, hub=named(site.hub)) for site in terrain.sites),
        tuple(replace(one, ends=(named(one.ends[0]), named(one.ends[1]))) for one in terrain.passages),
    )


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_placed_satisfies_the_oracle_and_so_does_what_it_produces(seed: int) -> None:
    rng = np.random.default_rng(seed)
    terrain = world(rng)
    machine = JobMachine(FLEET, HUB, rules=Rules(terrain))
    agent = SimAgent("agent", HUB.country)
    machine.apply(ev.AgentJoined(agent.hello(), 1), EventContext(now=NOW))
    hubs = [site.hub for site in terrain.sites]
    for number in range(6):
        data = DataObject(
            id=f"data_{number}",
            kind=DataKind.DATASET,
            name=f"d{number}",
            tenant="t",
            tag=None if rng.random() < 0.1 else random_tag(rng, terrain),
            hubs=tuple(str(hub) for hub in rng.choice(hubs, size=2, replace=False)),
        )
        machine.state.catalog.put(CatalogEntry(object=data, created_at=NOW, updated_at=NOW))
    admitted = 0
    for number in range(8):
        names = tuple(f"d{index}" for index in rng.choice(6, size=int(rng.integers(1, 3)), replace=False))
        outputs = ("made",) if rng.random() < 0.5 else ()
        spec = WorkloadSpec(
            name=f"job-{number}", command=("true",), resources=Resources(gpus=1), data=names, outputs=outputs
        )
        reads = [machine.state.catalog.get(name, tenant="t").object for name in names]
        oracles = [(data, Oracle(terrain, data.tag)) for data in reads if data.tag is not None]
        may = len(oracles) == len(reads) and all(
            oracle.may_process(HUB.id) and any(HUB.id in oracle.reached_from(copy) for copy in data.hubs)
            for data, oracle in oracles
        )
        if may and outputs:
            may = Oracle(terrain, meet(oracle.tag for _, oracle in oracles)).may_rest(HUB.id)
        refusal: AbstractContextManager[object] = (
            nullcontext() if may else pytest.raises(HarchError, match="may not run this")
        )
        with refusal:
            machine.apply(ev.Submitted(f"wl_{number}", "t", spec), EventContext(now=NOW))
        admitted += may
    started = [
        effect.message.task
        for effect in machine.apply(ev.PlacementDue(), EventContext(now=NOW))
        if isinstance(effect, fx.Send) and isinstance(effect.message, StartTask)
    ]
    assert len(started) == admitted
    for task in started:
        assert task.data
        for data in task.data:
            assert data.tag is not None
            assert Oracle(terrain, data.tag).may_process(HUB.id)
    # Tags change while all of it runs: what may no longer be read here is stopped, the rest is left alone.
    for number in range(6):
        entry = machine.state.catalog.entries[f"data_{number}"]
        if entry.object.tag is not None and rng.random() < 0.5:
            tighter = meet([entry.object.tag, random_tag(rng, terrain)])
            machine.apply(ev.DataRetagged(entry.object.id, tighter), EventContext(now=NOW))
    for task in started:
        workload = machine.state.registry.workloads[task.key.workload_id]
        tags = [machine.state.catalog.objects[data.id].tag for data in task.data]
        may = all(tag is not None and Oracle(terrain, tag).may_process(HUB.id) for tag in tags)
        assert (workload.stop_as is State.CANCELLED) == (not may)
        key = TaskKey(workload.id, workload.attempt, 0)
        reason = ExitReason.EXITED if may else ExitReason.STOPPED
        machine.apply(
            ev.TaskEndSeen("agent", TaskEnded(key=key, reason=reason, at=NOW, exit_code=0 if may else None)),
            EventContext(now=NOW),
        )
        assert workload.state is (State.COMPLETED if may else State.CANCELLED)
    for entry in machine.state.catalog.entries.values():
        if entry.made_by:
            made = entry.object
            assert made.tag == meet(_tag(machine, parent) for parent in made.parents)
            assert bool(made.hubs) == Oracle(terrain, made.tag).may_rest(HUB.id)


def _tag(machine: JobMachine, object_id: str) -> Tag:
    tag = machine.state.catalog.objects[object_id].tag
    assert tag is not None
    return tag
