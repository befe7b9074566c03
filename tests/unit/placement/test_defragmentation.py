"""Defragmentation is a plan: who moves where, what it frees, what it costs; and it keeps every rule while planning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import Resources, WorkloadSpec

HOUR_S = 3600.0


def scheduler() -> Scheduler:
    made = Scheduler(tiny_fleet().hubs[0])
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    made.room.process_slots_free = 1000
    return made


def ask(name: str, gpus: int, tasks: int = 1, **fields: object) -> PlacementRequest:
    spec = WorkloadSpec(name=name, tasks=tasks, resources=Resources(gpus=gpus, gpu_model="h100-80gb"), **fields)  # type: ignore[arg-type]
    return PlacementRequest.of(name, spec)


def run(made: Scheduler, request: PlacementRequest, now_s: float = 0.0) -> None:
    made.submit(request, now_s=now_s)
    made.plan(now_s=now_s, placed_max=1)


@pytest.fixture
def scattered() -> Scheduler:
    """Four nodes of eight, one GPU of each in use: 28 free, and no whole node among them."""
    made = scheduler()
    for number in range(4):
        filler = [ask(f"filler-{number}-{part}", 7) for part in range(1)]
        run(made, ask(f"small-{number}", 1), now_s=number)
        for item in filler:
            run(made, item)
    for number in range(4):
        made.ended(f"filler-{number}-0", now_s=10)
    return made


def test_one_move_frees_a_whole_node_and_the_least_work_is_lost(scattered: Scheduler) -> None:
    plan = scattered.plan_defragmentation(ask("large", 8), now_s=HOUR_S)
    assert plan is not None
    (move,) = plan.moves
    assert move.running.request.id == "small-3"  # the youngest loses least
    assert move.to[0].row != plan.slots[0].row
    assert plan.pays
    assert "small-3" in plan.describe()


def test_nothing_changes_by_planning(scattered: Scheduler) -> None:
    before = scattered.room.arrays.gpu_milli_free.copy()
    scattered.plan_defragmentation(ask("large", 8), now_s=HOUR_S)
    assert (scattered.room.arrays.gpu_milli_free == before).all()


def test_what_fits_already_needs_no_plan(scattered: Scheduler) -> None:
    assert scattered.plan_defragmentation(ask("small", 4), now_s=HOUR_S) is None


def test_what_must_not_be_moved_stays(scattered: Scheduler) -> None:
    for item in list(scattered.running.values()):
        scattered.ended(item.request.id, now_s=0)
    for number in range(4):
        run(scattered, ask(f"pinned-{number}", 7, preemptible=False))
        run(scattered, ask(f"pinned-one-{number}", 1, preemptible=False))
        scattered.ended(f"pinned-{number}", now_s=0)
    assert scattered.plan_defragmentation(ask("large", 8), now_s=HOUR_S) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=24), st.integers(1, 3))
def test_a_plan_can_always_be_carried_out(jobs: list[tuple[int, bool]], tasks: int) -> None:
    made = scheduler()
    for number, (gpus, _) in enumerate(jobs):
        run(made, ask(f"job-{number}", gpus), now_s=number)
    for number, (_, ends) in enumerate(jobs):
        if ends and f"job-{number}" in made.running:
            made.ended(f"job-{number}", now_s=50)
    plan = made.plan_defragmentation(ask("gang", 8, tasks=tasks), now_s=100)
    if plan is None:
        return
    for move in plan.moves:
        made.ended(move.running.request.id, now_s=100)
    room = made.room
    for slot in plan.slots:
        room.take(plan.request.needs, slot)  # raises if a GPU would be given twice
    for move in plan.moves:
        for slot in move.to:
            room.take(move.running.request.needs, slot)
