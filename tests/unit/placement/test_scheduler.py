"""The scheduler of a hub: both scorers keep every rule, fractions share a GPU, lost hardware is not given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import (
    Gang,
    Level,
    Resources,
    SchedulingClass,
    Strategy,
    Topology,
    WorkloadSpec,
)

MODELS = ("h100-80gb", "a100-80gb", "inference-card")


def best_fit() -> Scheduler:
    made = Scheduler(tiny_fleet().hubs[0])
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    made.room.process_slots_free = 1000
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


def ask(name: str, *, now_s: float = 0.0, tenant: str = "t", **fields: object) -> PlacementRequest:
    return PlacementRequest.of(name, WorkloadSpec(name=name, **fields), tenant=tenant, submitted_s=now_s)  # type: ignore[arg-type]


def place(scheduler: Scheduler, request: PlacementRequest, now_s: float = 0.0) -> list[str]:
    """The nodes it was given, in rank order; empty if it waits."""
    scheduler.submit(request, now_s=now_s)
    plan = scheduler.plan(now_s=now_s, placed_max=100)
    return [task.node_id for item in plan.assignments if item.request.id == request.id for task in item.tasks]


def model_of(scheduler: Scheduler, node_id: str) -> str:
    return scheduler.hub.nodes[scheduler.room.row_of[node_id]].gpu_model.name


@pytest.mark.parametrize("model", MODELS[:2])
def test_only_gpus_of_the_wanted_model_are_given(scheduler: Scheduler, model: str) -> None:
    for number in range(6):
        for node in place(scheduler, ask(f"{model}-{number}", resources=Resources(gpus=1, gpu_model=model))):
            assert model_of(scheduler, node) == model


def test_the_first_wanted_model_is_preferred_and_the_second_will_do(scheduler: Scheduler) -> None:
    wish = Resources(gpus=4, gpu_models=("a100-80gb", "h100-80gb"))
    given = [model_of(scheduler, node) for n in range(4) for node in place(scheduler, ask(f"n{n}", resources=wish))]
    assert given[:2] == ["a100-80gb", "a100-80gb"]
    assert set(given[2:]) == {"h100-80gb"}


def test_gpus_of_one_task_stand_in_one_island_while_there_is_one_with_room(scheduler: Scheduler) -> None:
    four = Resources(gpus=4)  # the A100 nodes have exactly four, but in islands of two
    given = [model_of(scheduler, node) for n in range(10) for node in place(scheduler, ask(f"n{n}", resources=four))]
    assert given == ["h100-80gb"] * 8 + ["a100-80gb"] * 2


def test_fractions_share_one_gpu_up_to_all_of_it(scheduler: Scheduler) -> None:
    half = Resources(gpus=1, gpu_fraction=0.5)
    devices = []
    for number in range(4):
        scheduler.submit(ask(f"half-{number}", resources=half), now_s=0)
        (assignment,) = scheduler.plan(now_s=0, placed_max=10).assignments
        devices += assignment.tasks[0].gpu_ids
    assert len(set(devices)) == 2
    assert (scheduler.room.arrays.gpu_milli_free >= 0).all()


def test_a_lost_gpu_is_not_given_and_comes_back(scheduler: Scheduler) -> None:
    node = scheduler.hub.nodes[0]
    for gpu in node.gpus:
        scheduler.set_health(node.id, gpu.index, False)
    whole = Resources(gpus=8, gpu_model="h100-80gb")
    assert node.id not in [n for k in range(4) for n in place(scheduler, ask(f"w{k}", resources=whole))]
    for gpu in node.gpus:
        scheduler.set_health(node.id, gpu.index, True)
    assert [task.node_id for a in scheduler.plan(now_s=1, placed_max=10).assignments for task in a.tasks] == [node.id]


def test_a_gpu_that_is_lost_in_use_stays_lost_when_its_work_ends(scheduler: Scheduler) -> None:
    (node_id,) = place(scheduler, ask("user", resources=Resources(gpus=8, gpu_model="h100-80gb")))
    scheduler.set_health(node_id, 0, False)
    scheduler.ended("user", now_s=1)
    row = scheduler.room.row_of[node_id]
    assert int(scheduler.room.arrays.gpu_milli_free_sum[row]) == 7 * GPU_MILLI
    place(scheduler, ask("next", resources=Resources(gpus=7, gpu_model="h100-80gb")), now_s=2)
    assert all(0 not in slot.devices for slot in scheduler.running["next"].slots if slot.row == row)


def test_a_cordoned_node_receives_nothing(scheduler: Scheduler) -> None:
    for node in scheduler.hub.nodes[1:]:
        scheduler.cordon(node.id, True)
    assert place(scheduler, ask("a", resources=Resources(gpus=1))) == [scheduler.hub.nodes[0].id]


def test_cooling_that_weakens_stops_new_work_and_evicts_nothing(scheduler: Scheduler) -> None:
    assert place(scheduler, ask("before", resources=Resources(gpus=8, gpu_model="h100-80gb")))
    for zone in range(len(scheduler.hub.cooling_zones)):
        scheduler.room.set_cooling(zone, 1.0)
    assert place(scheduler, ask("after", resources=Resources(gpus=1))) == []
    assert "before" in scheduler.running


def test_one_island_is_kept_or_it_waits(scheduler: Scheduler) -> None:
    wish = Topology(required=Level.ISLAND)
    four = Resources(gpus=4, gpu_model="a100-80gb")  # islands of two
    assert place(scheduler, ask("never", resources=four, topology=wish)) == []
    two = Resources(gpus=2, gpu_model="a100-80gb")
    place(scheduler, ask("fits", resources=two, topology=wish))
    (slot,) = scheduler.running["fits"].slots
    assert len({int(scheduler.room.island[slot.row, device]) for device in slot.devices}) == 1


def test_exclusive_work_has_its_nodes_alone(scheduler: Scheduler) -> None:
    (node,) = place(scheduler, ask("alone", resources=Resources(gpus=1), topology=Topology(exclusive=True)))
    others = [n for k in range(8) for n in place(scheduler, ask(f"o{k}", resources=Resources(gpus=1)))]
    assert node not in others
    scheduler.ended("alone", now_s=1)
    assert not scheduler.room.exclusive_on.any()


def test_spread_uses_many_nodes_and_pack_uses_few(scheduler: Scheduler) -> None:
    two = Resources(gpus=1, gpu_model="h100-80gb")
    spread = place(scheduler, ask("spread", tasks=4, resources=two, topology=Topology(strategy=Strategy.SPREAD)))
    packed = place(scheduler, ask("packed", tasks=4, resources=two))
    assert len(set(spread)) == 4
    assert len(set(packed)) == 1


def test_a_gang_takes_fewer_tasks_once_it_has_waited_long_enough(scheduler: Scheduler) -> None:
    scheduler.cordon(scheduler.hub.nodes[0].id, True)
    gang = ask(
        "gang", tasks=4, resources=Resources(gpus=8, gpu_model="h100-80gb"), gang=Gang(tasks_min=2, degrade_after_s=30)
    )
    assert place(scheduler, gang) == []
    assert scheduler.plan(now_s=29, placed_max=10).assignments == ()
    (assignment,) = scheduler.plan(now_s=30, placed_max=10).assignments
    assert len(assignment.tasks) == 3


def test_inference_takes_the_place_of_training_and_never_the_other_way(scheduler: Scheduler) -> None:
    for number in range(10):
        place(scheduler, ask(f"train-{number}", resources=Resources(gpus=4)))
    assert len(scheduler.running) >= 8
    scheduler.submit(ask("more-training", resources=Resources(gpus=4), now_s=10), now_s=10)
    assert scheduler.plan(now_s=10, placed_max=10).preemptions == ()
    urgent = ask("urgent", resources=Resources(gpus=4), scheduling_class=SchedulingClass.INFERENCE, now_s=20)
    scheduler.submit(urgent, now_s=20)
    (preemption,) = scheduler.plan(now_s=20, placed_max=10).preemptions
    assert all(victim.request.turn_class is SchedulingClass.TRAINING for victim in preemption.victims)
    for victim in preemption.victims:
        scheduler.ended(victim.request.id, now_s=30)
    served = [item.request.id for item in scheduler.plan(now_s=30, placed_max=10).assignments]
    assert served[0] == "urgent"


def test_work_for_another_country_is_never_placed(scheduler: Scheduler) -> None:
    assert place(scheduler, ask("senegal", countries_allowed=("SN",))) == []
    assert scheduler.candidates(ask("here", resources=Resources(gpus=1)), now_s=0, limit=3)


jobs = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 4, 8]),
        st.integers(1, 4),
        st.sampled_from([None, (0.25, None), (0.5, None), (0.1, 60.0), (0.1, 80.0)]),
        st.sampled_from([None, *MODELS]),
        st.sampled_from(list(SchedulingClass)),
        st.booleans(),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.randoms(use_true_random=False))
def test_whatever_happens_nothing_is_given_twice_and_everything_comes_back(
    wanted: list[tuple[int, int, tuple[float, float | None] | None, str | None, SchedulingClass, bool]], chance: object
) -> None:
    made, twin = best_fit(), best_fit()
    total = int(made.room.arrays.gpu_milli_free.sum())
    log: list[list[tuple[str, tuple[str, ...]]]] = [[], []]
    for number, (gpus, tasks, share, model, turn_class, ends) in enumerate(wanted):
        fraction, memory_gb = share or (None, None)
        needs = Resources(gpus=1 if share else gpus, gpu_fraction=fraction, gpu_memory_gb=memory_gb, gpu_model=model)
        for which, scheduler in enumerate((made, twin)):
            request = ask(f"j{number}", tasks=tasks, resources=needs, scheduling_class=turn_class, now_s=number)
            scheduler.submit(request, now_s=number)
            plan = scheduler.plan(now_s=number, placed_max=50)
            log[which] += [(a.request.id, tuple(t.node_id for t in a.tasks)) for a in plan.assignments]
            for assignment in plan.assignments:
                assert len(assignment.tasks) == assignment.request.tasks  # whole or absent
            if ends and f"j{number // 2}" in scheduler.running:
                scheduler.ended(f"j{number // 2}", now_s=number)
        arrays = made.room.arrays
        assert (arrays.gpu_milli_free >= 0).all()
        assert (arrays.cpu_milli_free >= 0).all()
        assert (made.room.watts_free() >= -1e-6).all()
    assert log[0] == log[1]  # same input, same plan
    for key in list(made.running):
        made.ended(key, now_s=1000)
    assert int(made.room.arrays.gpu_milli_free.sum()) == total
    assert not made.room.tasks_on.any()


def test_work_that_comes_back_before_its_like_does_not_block_what_is_kept_for_it() -> None:
    scheduler = best_fit()
    wide = {"tasks": 3, "resources": Resources(gpus=8)}
    whole = [place(scheduler, ask(f"whole-{n}", resources=Resources(gpus=8))) for n in range(4)]
    assert all(whole)
    assert place(scheduler, ask("kept", now_s=1, **wide), now_s=1) == []
    assert [kept.request.id for kept in scheduler.reservations] == ["kept"]
    scheduler.submit(ask("returned", now_s=0, **wide), now_s=2)
    for n in range(4):
        scheduler.ended(f"whole-{n}", now_s=3)
    started = [item.request.id for item in scheduler.plan(now_s=3, placed_max=100).assignments]
    assert started == ["kept"]
