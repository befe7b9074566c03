"""Does a pass see those who could use what came free, and cost nothing for the thousands who could not?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import Rank, TenantFlow, WaitingRequest
from harch.placement.queueing.reservations import Reservation
from harch.placement.queueing.settings import QueueSettings
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scheduler import Scheduler
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import Level, Resources, SchedulingClass
from unit.turns.turn_fixtures import ask, room_of, whole_node

REQUESTS = st.lists(
    st.builds(
        ask,
        st.uuids(version=4).map(str),
        st.sampled_from(SchedulingClass),
        gpus=st.sampled_from([0, 1, 2, 8, 9]),
        tasks=st.sampled_from([1, 2, 5]),
        duration_s_max=st.sampled_from([None, 10.0, 900.0, 1e6]),
        preemptible=st.booleans(),
        runs_process=st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda request: request.id,
)


def reservation(
    room: Room, request: PlacementRequest, rows: tuple[int, ...], start_s: float, room_made: bool
) -> Reservation:
    racks, zones = np.zeros(len(room.rack_row)), np.zeros(len(room.zone_heat_w))
    return Reservation(request, request.tasks, rows, start_s, 1.0, room_made, False, racks, zones, racks, zones)


@given(
    requests=REQUESTS,
    freed=st.sets(st.integers(0, 3)),
    taken=st.sets(st.integers(0, 7)),
    processes=st.tuples(st.integers(0, 3), st.integers(0, 6)),
    start_s=st.sampled_from([100.0, 1000.0, 5000.0]),
    room_made=st.booleans(),
    is_own=st.booleans(),
    keeper_runs=st.booleans(),
    moved=st.booleans(),
)
def test_all_at_once_are_judged_as_each_alone(
    requests: list[PlacementRequest],
    freed: set[int],
    taken: set[int],
    processes: tuple[int, int],
    start_s: float,
    room_made: bool,
    is_own: bool,
    keeper_runs: bool,
    moved: bool,
) -> None:
    room = room_of()
    for device in taken:
        room.take(Resources(gpus=1), TaskSlot(0, (device,)))
    room.take(Resources(gpus=8), *whole_node(1))
    keeper = requests[0] if is_own else ask("keeper", SchedulingClass.INTERACTIVE, gpus=8, runs_process=keeper_runs)
    kept = dict.fromkeys((0, 2), reservation(room, keeper, (0, 2), start_s, room_made))
    vacancies = Vacancies(room)
    room.process_slots_free = processes[0]
    vacancies.clear()
    room.process_slots_free = processes[1]
    vacancies.add(freed)
    if moved:
        vacancies.add_processes()
    blocked = Blocked(room)
    groups = []
    for number, request in enumerate(requests):
        flow = TenantFlow(request.turn_class, "t", 1.0, number)
        groups.append(flow.add(WaitingRequest(Rank(0, 0.0, number), request)))
        blocked.add(flow, groups[-1])
    together = vacancies.may_serve_of(blocked, kept, 0.0)
    assert [bool(together[group.index]) for group in groups] == [
        vacancies.may_serve(request, kept, 0.0) for request in requests
    ]


def full_hub(kinds: int) -> tuple[Scheduler, list[str]]:
    """Four nodes full of small work, and so many kinds of work that wait; answers what holds the GPUs."""
    scheduler = Scheduler(room_of().hub, QueueSettings(reservations_max=0))
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    for number in range(32):
        scheduler.submit(ask(f"runs-{number}"), now_s=0.0)
    running = [started.request.id for started in scheduler.plan(now_s=0.0, placed_max=100).assignments]
    assert len(running) == 32
    for number in range(kinds):
        request = ask(f"waits-{number}", tenant=f"tenant-{number % 7}", gpus=1 + number % 2)
        needs = msgspec.structs.replace(request.needs, memory_gb=1.0 + number / 1000)
        scheduler.submit(msgspec.structs.replace(request, needs=needs), now_s=1.0)
    assert not scheduler.plan(now_s=1.0, placed_max=100).assignments
    return scheduler, running


def calls_of(function: Callable[[], object]) -> int:
    """How many functions it calls, Python's and others'."""
    count = 0

    def tell(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tell)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def test_the_cost_of_a_round_does_not_grow_with_what_waits() -> None:
    def cost(kinds: int) -> int:
        scheduler, running = full_hub(kinds)

        def replace_five() -> None:
            for number, name in enumerate(running[:5]):
                scheduler.ended(name, now_s=2.0 + number)
                assert len(scheduler.plan(now_s=2.0 + number, placed_max=100).assignments) == 1

        replace_five()  # what is made once is made
        running = running[5:]
        return calls_of(replace_five)

    assert cost(1600) < 1.2 * cost(200)


def test_who_was_passed_over_gets_the_nodes_that_another_no_longer_needs() -> None:
    """Nodes are kept for the gang, but it starts elsewhere: those who were asked before it are asked once more."""
    scheduler = Scheduler(room_of().hub, QueueSettings(reservations_max=1))
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    for number in range(4):
        scheduler.submit(ask(f"gpus-{number}", gpus=8, duration_s_max=100.0 + number), now_s=0.0)
        scheduler.submit(with_cpus(ask(f"cpus-{number}", gpus=0), 40), now_s=0.0)
    started = scheduler.plan(now_s=0.0, placed_max=10).assignments
    on_row = {(assignment.slots[0].row, assignment.request.needs.gpus): assignment.request.id for assignment in started}
    assert len(on_row) == 8
    scheduler.submit(ask("gang", gpus=8, tasks=2, required=Level.RACK), now_s=1.0)
    scheduler.plan(now_s=1.0, placed_max=10)
    (kept,) = scheduler.reservations
    scheduler.submit(with_cpus(ask("alone", tenant="other", gpus=8), 60), now_s=2.0)
    scheduler.plan(now_s=2.0, placed_max=10)
    for gpus in (0, 8):
        scheduler.ended(on_row[kept.rows[0], gpus], now_s=3.0)
    assert not scheduler.plan(now_s=3.0, placed_max=10).assignments, "that node is kept for the gang"
    for row in {0, 1, 2, 3}.difference(kept.rows):
        scheduler.ended(on_row[row, 8], now_s=4.0)
    plan = scheduler.plan(now_s=4.0, placed_max=10)
    assert [assignment.request.id for assignment in plan.assignments] == ["gang", "alone"]
    assert not plan.reservations


def with_cpus(request: PlacementRequest, cpus: int) -> PlacementRequest:
    return msgspec.structs.replace(request, needs=msgspec.structs.replace(request.needs, cpus=cpus))


@pytest.mark.parametrize("tenants", [1, 3])
def test_processes_that_end_serve_who_waits_for_processes(tenants: int) -> None:
    scheduler = Scheduler(room_of().hub, QueueSettings(reservations_max=0))
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    scheduler.room.process_slots_free = 2
    for number in range(4):
        scheduler.submit(ask(f"job-{number}", tenant=f"t{number % tenants}", runs_process=True), now_s=0.0)
    first = scheduler.plan(now_s=0.0, placed_max=10).assignments
    assert len(first) == 2
    assert not scheduler.plan(now_s=1.0, placed_max=10).assignments
    scheduler.room.process_slots_free += 1  # an agent allows more; no node has changed
    assert len(scheduler.plan(now_s=2.0, placed_max=10).assignments) == 1
    scheduler.ended(first[0].request.id, now_s=3.0)
    assert len(scheduler.plan(now_s=3.0, placed_max=10).assignments) == 1


def test_a_group_is_known_by_its_head_and_keeps_its_index_during_a_pass() -> None:
    blocked, flow = Blocked(room_of()), TenantFlow(SchedulingClass.TRAINING, "t", 1.0, 1)
    first, second, other = ask("first", duration_s_max=20.0), ask("second", duration_s_max=30.0), ask("other", gpus=2)
    for number, request in enumerate((first, second)):
        group = flow.add(WaitingRequest(Rank(0, float(number), number), request))
    blocked.add(flow, group)
    assert blocked.index_of("first") == group.index
    assert blocked.has_since(0.0)
    flow.remove(first)
    blocked.follow_head(flow, group)
    assert (blocked.index_of("first"), blocked.index_of("second")) == (None, group.index)
    assert blocked.duration_s_max[group.index] == 30.0
    assert not blocked.has_since(0.0)

    before = group.index
    flow.remove(second)
    blocked.follow_head(flow, group)
    assert blocked.group_at(before) is None
    later = flow.add(WaitingRequest(Rank(0, 2.0, 2), other))
    blocked.add(flow, later)
    assert later.index != before, "whoever still has the old index must not find another group there"
    blocked.remove(later)
    blocked.begin_pass()
    blocked.add(flow, later)
    assert later.index in (before, before + 1)


def scheduler_with_a_gang_that_counts_on_all_processes() -> Scheduler:
    """Two processes may start, and both are for a gang that waits for its rack; one node elsewhere is free."""
    scheduler = Scheduler(room_of().hub, QueueSettings(reservations_max=1))
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    scheduler.room.process_slots_free = 2
    for number, duration_s_max in enumerate((100.0, 100.0, None)):
        request = ask(f"gpus-{number}", gpus=8, duration_s_max=duration_s_max)
        node = scheduler.hub.nodes[number]
        task = TaskPlacement(rank=0, node_id=node.id, gpu_ids=tuple(gpu.id for gpu in node.gpus))
        scheduler.resume(request, (task,), started_s=0.0, now_s=0.0)
    scheduler.submit(ask("gang", gpus=8, tasks=2, required=Level.RACK, runs_process=True), now_s=1.0)
    assert not scheduler.plan(now_s=1.0, placed_max=10).assignments
    assert [kept.rows for kept in scheduler.reservations] == [(0, 1)]
    scheduler.submit(ask("alone", tenant="other", runs_process=True), now_s=2.0)
    assert not scheduler.plan(now_s=2.0, placed_max=10).assignments, "the gang counts on both processes"
    assert not scheduler.plan(now_s=3.0, placed_max=10).assignments
    return scheduler


def test_processes_that_a_reservation_no_longer_counts_on_serve_others() -> None:
    scheduler = scheduler_with_a_gang_that_counts_on_all_processes()
    scheduler.withdraw("gang")
    assert [started.request.id for started in scheduler.plan(now_s=4.0, placed_max=10).assignments] == ["alone"]


def test_processes_beyond_those_that_a_reservation_counts_on_serve_others() -> None:
    scheduler = scheduler_with_a_gang_that_counts_on_all_processes()
    scheduler.room.process_slots_free += 1
    assert [started.request.id for started in scheduler.plan(now_s=4.0, placed_max=10).assignments] == ["alone"]


def test_who_loses_what_came_free_may_have_nodes_kept_in_the_same_round() -> None:
    scheduler = Scheduler(room_of().hub, QueueSettings(reservations_max=1, starvation_s=100.0))
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    for number in range(4):
        scheduler.submit(ask(f"gpus-{number}", gpus=8, duration_s_max=1000.0, preemptible=False), now_s=0.0)
    running = [started.request.id for started in scheduler.plan(now_s=0.0, placed_max=10).assignments]
    scheduler.submit(ask("old"), now_s=0.0)
    scheduler.plan(now_s=95.0, placed_max=10)
    assert not scheduler.reservations, "one GPU comes free soon enough, until it has waited long"
    scheduler.ended(running[0], now_s=101.0)
    scheduler.submit(ask("urgent", SchedulingClass.INFERENCE, priority=9, gpus=8), now_s=101.0)
    plan = scheduler.plan(now_s=101.0, placed_max=10)
    assert [started.request.id for started in plan.assignments] == ["urgent"]
    assert [kept.request.id for kept in plan.reservations] == ["old"]
