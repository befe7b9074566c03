"""Is nobody forgotten who was passed over? After every round, whoever still waits does not fit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.gangs import place_gang
from harch.placement.queueing.settings import QueueSettings
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scheduler import Scheduler
from harch.testing.fleet_generator import generate_fleet
from harch.workloads.spec import Resources, SchedulingClass, Topology

HUB = generate_fleet(hub_count=1, gpu_count=32).hubs[0]


def request(name: str, needs: Resources, tasks: int = 1, tenant: str = "t") -> PlacementRequest:
    return PlacementRequest(
        id=name,
        tenant=tenant,
        turn_class=SchedulingClass.TRAINING,
        priority=1,
        needs=needs,
        tasks=tasks,
        topology=Topology(),
        countries_allowed=(),
        runs_process=False,
        submitted_s=0.0,
        tasks_min=tasks,
        degrade_after_s=30.0,
        duration_s_max=None,
        preemptible=True,
    )


NEEDS = st.one_of(
    st.builds(Resources, gpus=st.sampled_from([1, 2, 4, 8]), cpus=st.sampled_from([1.0, 20.0]), gpu_model=st.none()),
    st.builds(Resources, gpus=st.just(1), gpu_fraction=st.sampled_from([0.3, 0.5, 0.8]), cpus=st.just(2.0)),
    st.builds(Resources, gpus=st.just(1), gpu_fraction=st.just(0.1), gpu_memory_gb=st.sampled_from([20.0, 60.0, 80.0])),
    st.builds(Resources, gpus=st.just(0), cpus=st.sampled_from([8.0, 60.0])),
)
STEPS = st.lists(
    st.tuples(st.booleans(), NEEDS, st.sampled_from([1, 1, 1, 3]), st.sampled_from("ab"), st.integers(0, 1000)),
    min_size=10,
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_round_leaves_nobody_waiting_who_fits(steps: list[tuple[bool, Resources, int, str, int]]) -> None:
    scheduler = Scheduler(HUB, QueueSettings(reservations_max=0))
    scheduler.serve(tuple(node.id for node in HUB.nodes), True)
    waiting: dict[str, PlacementRequest] = {}
    for now, (ends, needs, tasks, tenant, pick) in enumerate(steps):
        if ends and scheduler.running:
            scheduler.ended(sorted(scheduler.running)[pick % len(scheduler.running)], now_s=now)
        else:
            asked = request(f"r{now}", needs, tasks, tenant)
            waiting[asked.id] = asked
            scheduler.submit(asked, now_s=now)
        for assignment in scheduler.plan(now_s=now, placed_max=100).assignments:
            del waiting[assignment.request.id]
        for left in waiting.values():
            assert place_gang(scheduler.room, left, left.tasks, rank_nodes=scheduler.scorer.node_scores) is None


def test_what_came_free_serves_whoever_fits_there_and_nobody_else() -> None:
    room = Room(HUB)
    room.serve((node.id for node in HUB.nodes), True)
    vacancies = Vacancies(room)
    vacancies.clear()
    one, eight = request("one", Resources(gpus=1)), request("eight", Resources(gpus=8))
    assert not vacancies.may_serve(one)
    room.take(one.needs, TaskSlot(0, (0,)))
    vacancies.add([0])
    assert vacancies.may_serve(one)
    assert not vacancies.may_serve(eight)
    other = next(name for name in ("h100-80gb", "a100-80gb", "no-such") if name != HUB.nodes[0].gpu_model.name)
    assert not vacancies.may_serve(request("other", Resources(gpus=1, gpu_model=other)))
    for device in range(1, 8):
        room.take(one.needs, TaskSlot(0, (device,)))
    vacancies.changed([0])
    assert not vacancies.may_serve(one)
    vacancies.add_everything()
    assert vacancies.may_serve(eight)
