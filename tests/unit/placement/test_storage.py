"""Scratch space is a resource of nodes: counted, shown, given back; and work from before that keeps its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.checks import first_rejection
from harch.placement.facts import live_facts
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.testing.samples import tiny_fleet
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import Resources, WorkloadSpec


def best_fit() -> Scheduler:
    made = Scheduler(tiny_fleet().hubs[0])  # 30,000 GB on each H100 node, 8,000 on each of the two A100 nodes
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    return made


def learned() -> Scheduler:
    from harch.placement.learned import LearnedPolicy

    made = best_fit()
    made.use(LearnedPolicy(made.room))
    return made


@pytest.fixture(params=[best_fit, learned])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    make: Callable[[], Scheduler] = request.param
    return make()


def ask(name: str, storage_gb: float, *, gpus: int = 0, tasks: int = 1) -> PlacementRequest:
    resources = Resources(gpus=gpus, storage_gb=storage_gb)
    return PlacementRequest.of(name, WorkloadSpec(name=name, tasks=tasks, modelled_duration_s=60, resources=resources))


def place(scheduler: Scheduler, request: PlacementRequest, now_s: float = 0.0) -> list[str]:
    scheduler.submit(request, now_s=now_s)
    plan = scheduler.plan(now_s=now_s, placed_max=100)
    return [task.node_id for item in plan.assignments if item.request.id == request.id for task in item.tasks]


def why_not(scheduler: Scheduler, request: PlacementRequest) -> str:
    facts = live_facts(
        country="MA",
        accepts_work=True,
        status_detail="",
        room=scheduler.room,
        process_slots_total=0,
        request=request,
        now_s=0.0,
    )
    rejection = first_rejection(request, facts)
    return "" if rejection is None else f"{rejection.rule}: {rejection.detail}"


def test_no_node_is_given_more_than_its_storage(scheduler: Scheduler) -> None:
    given = [place(scheduler, ask(f"w{n}", 20_000)) for n in range(5)]
    assert [len(nodes) for nodes in given] == [1, 1, 1, 1, 0]
    assert len({node for nodes in given for node in nodes}) == 4
    assert why_not(scheduler, ask("more", 20_000)).startswith("capacity: 1 task wanted, 0 fit now")
    scheduler.ended("w2", now_s=1)
    assert len(scheduler.plan(now_s=1, placed_max=10).assignments) == 1


def test_tasks_of_a_gang_are_counted_together(scheduler: Scheduler) -> None:
    nodes = place(scheduler, ask("gang", 12_000, gpus=1, tasks=4))
    assert len(set(nodes)) == 2, "two of them on a node of 30,000 GB"


def test_what_no_node_has_never_fits(scheduler: Scheduler) -> None:
    told = why_not(scheduler, ask("large", 30_001, gpus=1))
    assert told.startswith("node_shape")
    assert "30000 GB of storage" in told


def test_work_that_was_placed_before_storage_was_counted_keeps_its_place(scheduler: Scheduler) -> None:
    node = scheduler.hub.nodes[0]
    for number in range(3):
        tasks = (TaskPlacement(rank=0, node_id=node.id, gpu_ids=(node.gpus[number].id,)),)
        scheduler.resume(ask(f"old-{number}", 20_000, gpus=1), tasks, started_s=0, now_s=1)
    assert len(scheduler.running) == 3
    row = scheduler.room.row_of[node.id]
    assert scheduler.room.storage_mib_free[row] == 10_000 * 1024
    for number in range(3):
        scheduler.ended(f"old-{number}", now_s=2)
    assert scheduler.room.storage_mib_free[row] == 30_000 * 1024


@given(st.lists(st.tuples(st.sampled_from([0, 500, 7_900, 15_000, 30_000]), st.integers(1, 3)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_storage_is_never_exceeded_and_all_of_it_comes_back(asked: list[tuple[int, int]]) -> None:
    scheduler = best_fit()
    before = scheduler.room.storage_mib_free.copy()
    for number, (storage_gb, tasks) in enumerate(asked):
        place(scheduler, ask(f"w{number}", storage_gb, gpus=1, tasks=tasks))
        assert (scheduler.room.storage_mib_free >= 0).all()
    for name in list(scheduler.running):
        scheduler.ended(name, now_s=1)
    assert (scheduler.room.storage_mib_free == before).all()
