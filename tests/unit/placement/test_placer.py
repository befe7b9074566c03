"""Where one request goes, step by step: hard rules, preferences, worn hardware; and the words for it."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from harch.placement.placer import allowed_nodes, by_topology, candidates, find_place, may_run_here, sizes
from harch.placement.plan import ALONE, placements_of, reason, slot_of
from harch.placement.queueing.reservations import Reservation
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.placement.state import PlacementState
from harch.placement.topology import Prediction
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import (
    Gang,
    Level,
    Priority,
    Resources,
    SchedulingClass,
    Strategy,
    Topology,
    WorkloadSpec,
)
from unit.placement.mixed_hub import mixed_hub, request_of

ONE, TWO = Resources(gpus=1), Resources(gpus=2)
ALL = tuple(range(8))


def made(settings: QueueSettings | None = None, **limits: tuple[float, ...]) -> PlacementState:
    state = PlacementState(mixed_hub(**limits), settings or QueueSettings())  # type: ignore[arg-type]
    state.serve(tuple(state.room.row_of), True)
    state.room.process_slots_free = 20
    return state


def place(state: PlacementState, request: PlacementRequest, now_s: float = 0.0) -> list[TaskSlot] | None:
    found = find_place(state, request, (), now_s=now_s, lay_out=by_topology)
    return None if found is None else list(found.slots)


def hold(state: PlacementState, key: str, *slots: TaskSlot, **fields: Any) -> None:
    request = request_of(Resources(gpus=len(slots[0].devices)), len(slots), key=key, **fields)
    state.book(request, slots, started_s=0.0, now_s=0.0)


# How many tasks, and where at all


@pytest.mark.parametrize(
    ("tasks_min", "now_s", "expected"),
    [(None, 1000.0, [4]), (2, 129.9, [4]), (2, 130.0, [4, 3, 2]), (4, 1000.0, [4]), (1, 130.0, [4, 3, 2, 1])],
)
def test_a_gang_takes_fewer_tasks_once_that_is_due_and_never_fewer_than_its_minimum(
    tasks_min: int | None, now_s: float, expected: list[int]
) -> None:
    request = request_of(ONE, 4, submitted_s=100.0, gang=Gang(tasks_min=tasks_min, degrade_after_s=30.0))
    assert list(sizes(request, now_s)) == expected


def test_residency_is_kept_before_all_else() -> None:
    hub = mixed_hub()
    assert may_run_here(hub, request_of(ONE))
    assert may_run_here(hub, request_of(ONE, countries_allowed=("SN", "MA")))
    assert not may_run_here(hub, request_of(ONE, countries_allowed=("SN",)))
    assert place(made(), request_of(ONE, countries_allowed=("SN",))) is None


def test_nodes_are_allowed_by_who_is_there_and_what_is_left_of_storage() -> None:
    state = made()
    room = state.room
    room.take(ONE, TaskSlot(0, (0,)), exclusive=True)
    room.take(Resources(gpus=1, storage_gb=71), TaskSlot(1, (0,)))

    def rows(request: PlacementRequest) -> list[int]:
        return np.flatnonzero(allowed_nodes(room, request, (), 0.0)).tolist()

    assert rows(request_of(ONE)) == [1, 2, 3, 4, 5]
    assert rows(request_of(ONE, exclusive=True)) == [2, 3, 4, 5]
    assert rows(request_of(Resources(gpus=1, storage_gb=9))) == [1, 2, 3, 4, 5]
    assert rows(request_of(Resources(gpus=1, storage_gb=10))) == [2, 3, 4, 5]
    assert rows(request_of(Resources(gpus=1, storage_gb=21))) == [2, 3, 5]


@pytest.mark.parametrize(
    ("needs", "rows"),
    [
        (Resources(gpus=8), [4, 5]),
        (Resources(gpus=2), [1, 2, 3, 4, 5]),
        (Resources(gpus=3), [2, 3, 4, 5]),
        (Resources(cpus=1), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_nodes_are_allowed_where_feed_and_plant_carry_one_more_task(needs: Resources, rows: list[int]) -> None:
    state = made(rack_kw=(2.4, 2.5, 6.6))
    if needs.gpus == 2:
        state.room.rack_power_w_free[0] = 1400.0  # exactly what two draw on node 1, and on node 0
        rows = [0, *rows]
    assert np.flatnonzero(allowed_nodes(state.room, request_of(needs), (), 0.0)).tolist() == rows


def test_what_is_kept_for_others_is_not_allowed_and_what_is_kept_for_it_is() -> None:
    state = made()
    zeros = {"rack_w": np.zeros(3), "zone_w": np.zeros(2), "rack_w_ending": np.zeros(3), "zone_w_ending": np.zeros(2)}
    first = Reservation(request_of(Resources(gpus=8), key="first"), 1, (0, 1), 1000.0, 60.0, False, False, **zeros)
    other = request_of(ONE, key="other")
    assert np.flatnonzero(allowed_nodes(state.room, other, (first,), 0.0)).tolist() == [2, 3, 4, 5]
    assert allowed_nodes(state.room, first.request, (first,), 0.0).all()
    brief = replace(other, duration_s_max=900.0, stop_grace_s=10.0)
    assert allowed_nodes(state.room, brief, (first,), 0.0).all()
    assert not allowed_nodes(state.room, brief, (first,), 60.0)[0]


def test_a_quota_and_missing_processes_leave_room_for_fewer_tasks() -> None:
    elastic = request_of(ONE, 4, gang=Gang(tasks_min=1, degrade_after_s=0.0), command=("x",))
    state = made(QueueSettings(tenant_quotas={"t": Quota(gpus_held_max=3)}))
    assert len(place(state, elastic) or ()) == 3
    state.room.process_slots_free = 2
    assert len(place(state, elastic) or ()) == 2
    state.room.process_slots_free = 0
    assert place(state, elastic) is None
    assert len(place(state, replace(elastic, runs_process=False)) or ()) == 3


# Preferences


def test_the_first_wanted_model_with_room_is_taken() -> None:
    state = made()
    either = request_of(Resources(gpus=2, gpu_models=("small", "card")))
    assert place(state, either) == [TaskSlot(2, (0, 1))]
    for row in (2, 3):
        hold(state, f"h{row}", TaskSlot(row, (0, 1, 2, 3)))
    assert place(state, either) == [TaskSlot(4, (0, 1))]
    share = Resources(gpus=1, gpu_fraction=0.5, gpu_memory_gb=15, gpu_models=("big", "card"))
    assert place(state, request_of(share)) == [TaskSlot(0, (0,))]
    listed = candidates(state, request_of(share), np.ones(6, np.bool_), 9)
    assert [choice.row for choice in listed] == [0, 1, 5, 4]
    assert [choice.row for choice in candidates(state, request_of(share), np.ones(6, np.bool_), 2)] == [0, 1]


def test_several_gpus_go_where_an_island_holds_them_all() -> None:
    state = made()
    three = request_of(Resources(gpus=3))
    assert place(state, three) == [TaskSlot(0, (0, 1, 2))], "the small nodes are fuller, with islands of two"
    assert place(state, request_of(Resources(gpus=3), preferred=Level.NODE)) == [TaskSlot(2, (0, 1, 2))]
    hold(state, "h", TaskSlot(0, (0,)))
    hold(state, "i", TaskSlot(0, (4,)))
    assert place(state, request_of(Resources(gpus=4))) == [TaskSlot(1, (0, 1, 2, 3))]
    assert place(state, three) == [TaskSlot(0, (1, 2, 3))]
    eight = request_of(Resources(gpus=8), required=Level.ISLAND)
    assert place(state, eight) == [TaskSlot(5, ALL)]
    hold(state, "j", TaskSlot(5, (7,)))
    assert place(state, eight) is None
    assert place(state, request_of(Resources(gpus=1), required=Level.ISLAND)) is not None


def test_what_stays_goes_beside_its_like() -> None:
    state = made()
    stays = request_of(ONE, scheduling_class=SchedulingClass.INFERENCE)
    moves = request_of(ONE, preemptible=True)
    hold(state, "inference", TaskSlot(1, (0,)), scheduling_class=SchedulingClass.INFERENCE)
    assert place(state, stays) == [TaskSlot(1, (1,))]
    assert place(state, moves) == [TaskSlot(4, (0,))], "best fit: the smallest node"
    state.cordon("n1", True)
    assert place(state, stays) == [TaskSlot(4, (0,))]
    cpu_only = request_of(Resources(cpus=1), scheduling_class=SchedulingClass.INFERENCE)
    state.cordon("n1", False)
    assert place(state, cpu_only) == [TaskSlot(4, ())]


def test_beside_its_like_comes_after_an_island_and_both_before_either() -> None:
    state = made()
    for row in (1, 2):
        hold(state, f"i{row}", TaskSlot(row, (0,)), scheduling_class=SchedulingClass.INFERENCE)
    four = Resources(gpus=4)
    stays = request_of(four, scheduling_class=SchedulingClass.INFERENCE)
    assert place(state, stays) == [TaskSlot(1, (4, 5, 6, 7))], "an island beside its like"
    hold(state, "x", TaskSlot(1, (4,)))
    assert place(state, stays) == [TaskSlot(0, (0, 1, 2, 3))], "an island elsewhere"
    for row in (0, 5):
        hold(state, f"y{row}", TaskSlot(row, (0,)))
        hold(state, f"z{row}", TaskSlot(row, (4, 5)) if row == 0 else TaskSlot(row, (1, 2, 3, 4)))
    assert place(state, stays) == [TaskSlot(1, (1, 2, 3, 5))], "no island: beside its like"


def test_crippled_links_are_asked_last_whatever_is_preferred() -> None:
    state = made()
    for node in ("n2", "n3"):
        state.set_nvlink(node, 0.1)
    either = request_of(Resources(gpus=2, gpu_models=("small", "card")))
    assert place(state, either) == [TaskSlot(4, (0, 1))]
    state.cordon("n4", True)
    assert place(state, either) == [TaskSlot(2, (0, 1))]
    state.cordon("n4", False)
    rows = [choice.row for choice in candidates(state, either, np.ones(6, np.bool_), 9)]
    assert rows == [4, 2, 3]
    state.set_nvlink("n2", 0.9)
    state.set_nvlink("n3", 0.9)
    assert place(state, either) == [TaskSlot(2, (0, 1))]


# Gangs on worn hardware


def test_of_what_whole_and_worn_nodes_offer_the_faster_is_taken() -> None:
    state = made()
    gang = request_of(Resources(gpus=4, gpu_model="big"), 2)
    assert place(state, gang) == [TaskSlot(5, (0, 1, 2, 3)), TaskSlot(5, (4, 5, 6, 7))]
    state.set_nvlink("n5", 0.5)  # 180 GB/s, and still faster than two islands of another node
    assert place(state, gang) == [TaskSlot(5, (0, 1, 2, 3)), TaskSlot(5, (4, 5, 6, 7))]
    state.set_nvlink("n5", 0.0)  # 51 GB/s over PCIe, and 32 between the islands of another node
    assert place(state, gang) == [TaskSlot(5, (0, 1, 2, 3)), TaskSlot(5, (4, 5, 6, 7))]
    state.set_health("n5", 0, False)
    slots = place(state, gang)
    assert slots is not None
    assert {slot.row for slot in slots} == {0}
    state.cordon("n0", True)
    state.cordon("n1", True)
    assert place(state, gang) is None


def test_of_two_equal_nodes_a_gang_takes_the_less_worn() -> None:
    state = made()
    state.cordon("n5", True)
    for node, device in (("n0", 3), ("n0", 7), ("n1", 3)):
        state.set_health(node, device, False)
    hold(state, "h", TaskSlot(1, (7,)))
    gang = request_of(Resources(gpus=3, gpu_model="big"), 2)
    assert place(state, gang) == [TaskSlot(1, (0, 1, 2)), TaskSlot(1, (4, 5, 6))]


def test_a_gang_scores_nothing_and_one_task_says_why() -> None:
    state = made()
    found = find_place(state, request_of(ONE, 2), (), now_s=0.0, lay_out=by_topology)
    assert found is not None
    assert (found.choice.row, found.choice.device, found.choice.score, found.choice.parts) == (2, None, 0.0, {})
    found = find_place(state, request_of(ONE), (), now_s=0.0, lay_out=by_topology)
    assert found is not None
    assert found.choice.parts == {"best_fit": found.choice.score}
    shrunk = request_of(ONE, 2, gang=Gang(tasks_min=1, degrade_after_s=0.0))
    state.room.process_slots_free = 1
    found = find_place(state, replace(shrunk, runs_process=True), (), now_s=0.0, lay_out=by_topology)
    assert found is not None
    assert (len(found.slots), found.choice.parts) == (1, {}), "one task of a gang is laid out as one"


# In words


def test_places_are_named_and_found_again_by_their_names() -> None:
    room = made().room
    slots = (TaskSlot(2, (1, 3)), TaskSlot(4, ()))
    named = placements_of(room, slots)
    assert named == (
        TaskPlacement(rank=0, node_id="n2", gpu_ids=("n2-g1", "n2-g3")),
        TaskPlacement(rank=1, node_id="n4", gpu_ids=()),
    )
    assert tuple(slot_of(room, task) for task in named) == slots


@pytest.mark.parametrize(
    ("tasks", "slots", "prediction", "words"),
    [
        (1, (TaskSlot(0, (0,)),), ALONE, "best-fit: leaves 7.5 GPUs free on n0"),
        (
            1,
            (TaskSlot(0, (0, 1)),),
            Prediction(Level.ISLAND, 360.0, 360.0, 1.0),
            "best-fit: leaves 7.5 GPUs free on n0; in one island, 360 GB/s all-reduce, 1.0x the best (modelled)",
        ),
        (2, (TaskSlot(0, (0,)), TaskSlot(0, (1,))), ALONE, "gang of 2 on one node"),
        (2, (TaskSlot(0, (0,)), TaskSlot(1, (1,))), ALONE, "gang of 2 on 2 nodes in one rack"),
        (3, (TaskSlot(0, (0,)), TaskSlot(2, (1,))), ALONE, "gang of 2 (of 3 wanted) on 2 nodes in 2 racks"),
        (
            3,
            (TaskSlot(0, (0,)), TaskSlot(2, (1,)), TaskSlot(5, (1,))),
            Prediction(Level.HUB, 23.0, 46.0, 2.0),
            "gang of 3 on 3 nodes in 3 racks; in one hub, 23 GB/s all-reduce, 2.0x the best (modelled)",
        ),
    ],
)
def test_a_reason_is_one_line(tasks: int, slots: tuple[TaskSlot, ...], prediction: Prediction, words: str) -> None:
    room = made().room
    room.take(Resources(gpus=1, gpu_fraction=0.5), TaskSlot(0, (7,)))
    assert reason(room, "best-fit", request_of(ONE, tasks), slots, prediction) == words


def test_one_gpu_alone_has_no_slowdown() -> None:
    assert (ALONE.level, ALONE.gb_per_s, ALONE.best_gb_per_s, ALONE.slowdown) == (Level.ISLAND, inf, inf, 1.0)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (request_of(Resources(cpus=2.5, memory_gb=3)), "no GPU, 2.5 CPUs, 3 GB"),
        (request_of(ONE), "1 x any GPU, 1 CPU, 1 GB"),
        (request_of(Resources(gpus=2, gpu_models=("a", "b"))), "2 x a or b, 1 CPU, 1 GB"),
        (request_of(Resources(gpus=1, gpu_fraction=0.25)), "0.25 of one any GPU, 1 CPU, 1 GB"),
        (
            request_of(Resources(gpus=1, gpu_fraction=0.25, gpu_memory_gb=20.5, gpu_model="a", storage_gb=7)),
            "0.25 of one a with 20.5 GB of its memory, 1 CPU, 1 GB, 7 GB of storage",
        ),
        (request_of(ONE, 2), "2 tasks of 1 x any GPU, 1 CPU, 1 GB"),
        (
            request_of(ONE, 3, required=Level.ROW, strategy=Strategy.SPREAD, exclusive=True),
            "3 tasks of 1 x any GPU, 1 CPU, 1 GB, all in one row, spread, exclusive nodes",
        ),
        (request_of(ONE, exclusive=True), "1 x any GPU, 1 CPU, 1 GB, exclusive nodes"),
    ],
)
def test_a_request_is_described_by_its_shape(request_: PlacementRequest, words: str) -> None:
    assert request_.describe() == words


def test_a_request_is_what_the_specification_says() -> None:
    spec = WorkloadSpec(
        name="w",
        tasks=4,
        resources=Resources(gpus=2),
        topology=Topology(required=Level.RACK),
        countries_allowed=("MA",),
        command=("x",),
        max_duration_s=50.0,
        gang=Gang(tasks_min=3, degrade_after_s=12.0),
        preemptible=False,
        priority=Priority.HIGH,
        scheduling_class=SchedulingClass.INTERACTIVE,
        stop_grace_s=33.0,
    )
    request = PlacementRequest.of("id", spec, tenant="t", submitted_s=5.0, hubs_allowed=("hub",))
    assert (request.id, request.tenant, request.submitted_s, request.hubs_allowed) == ("id", "t", 5.0, ("hub",))
    assert (request.turn_class, request.priority) == (SchedulingClass.INTERACTIVE, Priority.HIGH.rank)
    assert (request.needs, request.tasks, request.topology) == (spec.resources, 4, spec.topology)
    assert (request.countries_allowed, request.runs_process, request.preemptible) == (("MA",), True, False)
    assert (request.tasks_min, request.degrade_after_s, request.stop_grace_s) == (3, 12.0, 33.0)
    assert request.duration_s_max == 50.0
    assert request.gpu_milli_total == 8000
    share = request_of(Resources(gpus=1, gpu_fraction=0.3), 3)
    assert (share.gpu_milli_total, share.tasks_min, share.duration_s_max) == (900, 3, None)


def test_only_requests_of_one_shape_fit_or_fail_alike() -> None:
    one = request_of(ONE, 2)
    alike = [
        replace(one, id="other"),
        replace(one, priority=9),
        replace(one, submitted_s=7.0),
        replace(one, tenant="u"),
    ]
    assert {request.shape for request in alike} == {one.shape}
    different = [
        replace(one, needs=TWO),
        replace(one, tasks=3),
        replace(one, tasks_min=1),
        replace(one, topology=Topology(exclusive=True)),
        replace(one, countries_allowed=("MA",)),
        replace(one, hubs_allowed=("hub",)),
        replace(one, runs_process=not one.runs_process),
    ]
    assert len({request.shape for request in [one, *different]}) == 8
