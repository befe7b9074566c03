"""What came free, who could use it, and what everybody who is blocked looks like in columns."""

from __future__ import annotations

import itertools
import math
from random import Random

import msgspec
import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import Rank, RequestGroup, TenantFlow, WaitingRequest
from harch.placement.queueing.reservations import Reservation
from harch.placement.queueing.running import RunningRequest, could_fit, domains, find_slots
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, Resources, Topology
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, whole_node


def kept_for(room: Room, request: PlacementRequest, rows: tuple[int, ...], start_s: float) -> Reservation:
    racks, zones = np.zeros(len(room.rack_row)), np.zeros(len(room.zone_heat_w))
    return Reservation(request, request.tasks, rows, start_s, 1.0, False, False, racks, zones, racks, zones)


def blocked_of(room: Room, requests: list[PlacementRequest]) -> tuple[Blocked, list[RequestGroup]]:
    blocked, groups = Blocked(room), []
    for number, request in enumerate(requests):
        flow = TenantFlow(request.turn_class, request.tenant, 1.0, number)
        groups.append(flow.add(WaitingRequest(Rank(-request.priority, 0.0, number), request)))
        blocked.add(flow, groups[-1])
    return blocked, groups


def requests() -> list[PlacementRequest]:
    needs = [
        Resources(gpus=gpus, cpus=cpus, memory_gb=memory_gb)
        for gpus, cpus, memory_gb in itertools.product(
            (0, 1, 2, 3, 8, 9, 16), (1.0, 14.0, 14.001), (1.0, 112.0, 112.001)
        )
    ]
    needs += [Resources(gpus=1, gpu_fraction=fraction) for fraction in (0.3, 0.5, 0.501, 0.9)]
    needs += [Resources(gpus=1, gpu_model=model) for model in ("h100-80gb", "no-such")]
    return [
        msgspec.structs.replace(ask(f"r{number}", CLASS_ORDER[number % 3]), needs=one)
        for number, one in enumerate(needs)
    ]


def takes(room: Room, row: int, request: PlacementRequest) -> bool:
    """One task, by what is free on that node."""
    arrays, needs = room.arrays, request.needs
    if arrays.cpu_milli_free[row] < needs.cpus * 1000 or arrays.memory_mib_free[row] < needs.memory_gb * 1024:
        return False
    free = sorted(arrays.gpu_milli_free[row].tolist(), reverse=True)[: needs.gpus]
    if needs.gpus and needs.models_wanted and "h100-80gb" not in needs.models_wanted:
        return False
    return len(free) == needs.gpus and all(milli >= needs.gpu_milli for milli in free)


@pytest.mark.parametrize("freed", [(), (0,), (1,), (2,), (0, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("kept_rows", [(), (0,), (0, 2)])
def test_what_came_free_serves_who_fits_there_and_is_let_in(freed: tuple[int, ...], kept_rows: tuple[int, ...]) -> None:
    room = room_of()
    room.take(Resources(gpus=1, gpu_fraction=0.5, cpus=50.0, memory_gb=400.0), TaskSlot(0, (0,)))
    for device in range(2, 8):
        room.take(Resources(gpus=1, cpus=0.0, memory_gb=0.0), TaskSlot(0, (device,)))
    room.take(Resources(gpus=8, cpus=0.0, memory_gb=0.0), *whole_node(1))
    vacancies = Vacancies(room)
    vacancies.clear()
    vacancies.add(freed)
    everyone = requests()
    holder = kept_for(room, ask("holder", INTERACTIVE, gpus=8), kept_rows, 10.0)
    kept = dict.fromkeys(kept_rows, holder)
    expected = [
        any(takes(room, row, one) and (row not in kept or one.turn_class is INFERENCE) for row in freed)
        for one in everyone
    ]
    assert [vacancies.may_serve(one, kept, 0.0) for one in everyone] == expected
    assert [vacancies.may_serve(one, dict(kept), 0.0) for one in everyone] == expected
    blocked, groups = blocked_of(room, everyone)
    together = vacancies.may_serve_of(blocked, kept, 0.0)
    assert [bool(together[group.index]) for group in groups] == expected
    assert [vacancies.may_serve(one, {}, 0.0) for one in everyone] == [
        any(takes(room, row, one) for row in freed) for one in everyone
    ], "answers for other kept rows are other answers"


def test_what_is_taken_again_or_was_offered_to_everybody_serves_nobody() -> None:
    room = room_of()
    vacancies = Vacancies(room)
    one, two = ask("one"), ask("two", gpus=2)
    assert vacancies.may_serve(one), "at first anything may have come free"
    assert vacancies.is_on([])
    vacancies.clear()
    assert (vacancies.may_serve(one), vacancies.is_on([0]), vacancies.additions) == (False, False, 0)
    vacancies.add([])
    assert vacancies.additions == 0
    vacancies.add([0, 2])
    assert (vacancies.additions, vacancies.is_on([0]), vacancies.is_on([1]), vacancies.is_on([1, 2])) == (
        1,
        True,
        False,
        True,
    )
    assert vacancies.may_serve(two)
    for row in (0, 2):
        for device in range(7):
            room.take(one.needs, TaskSlot(row, (device,)))
        vacancies.changed([row, 3])
    assert (vacancies.may_serve(one), vacancies.may_serve(two)) == (True, False)
    vacancies.add([1])
    assert vacancies.may_serve(two), "there is more than there was"
    vacancies.clear()
    assert not vacancies.may_serve(one)
    vacancies.add_everything()
    assert (vacancies.may_serve(two), vacancies.is_on([])) == (True, True)
    blocked, groups = blocked_of(room, [one, two])
    mask = vacancies.may_serve_of(blocked)
    assert mask.tolist() == [True, True]
    mask[:] = False
    assert blocked.everybody.all(), "an answer is a copy"
    blocked.remove(groups[0])
    assert vacancies.may_serve_of(blocked).tolist() == [False, True]


@pytest.mark.parametrize(("power_kw_max", "anything"), [(100.0, False), (10.5, True)])
def test_watts_that_come_free_may_help_any_node(power_kw_max: float, anything: bool) -> None:
    vacancies = Vacancies(room_of(power_kw_max=power_kw_max))
    vacancies.clear()
    assert vacancies.is_on([]) is anything


@pytest.mark.parametrize(
    ("before", "after", "moved", "shared", "served"),
    [
        # who starts so many processes, the fewest that will do -> who could start with what has come free
        (1, 1, False, False, []),
        (1, 0, False, False, []),
        (1, 2, False, False, ["2-2", "3-2"]),
        (1, 3, False, False, ["2-2", "3-2", "3-3"]),
        (0, 2, False, False, ["1-1", "2-2", "3-2"]),
        (1, 2, False, True, ["1-1", "2-2", "3-2"]),
        (2, 2, True, False, ["1-1", "2-2", "3-2"]),
        (2, 1, True, False, ["1-1"]),
    ],
)
def test_processes_that_came_free_serve_who_waited_for_them(
    before: int, after: int, moved: bool, shared: bool, served: list[str]
) -> None:
    room = room_of()
    vacancies = Vacancies(room)
    room.process_slots_free = before
    vacancies.clear()
    room.process_slots_free = after
    if moved:
        vacancies.add_processes()
    everyone = [
        msgspec.structs.replace(ask(f"{tasks}-{fewest}", tasks=tasks, runs_process=True), tasks_min=fewest)
        for tasks, fewest in ((1, 1), (2, 2), (3, 2), (3, 3))
    ]
    everyone.append(ask("none", tasks=2))
    kept = {3: kept_for(room, ask("holder", runs_process=shared), (3,), 10.0)}
    assert [one.id for one in everyone if vacancies.may_serve(one, kept)] == served
    blocked, groups = blocked_of(room, everyone)
    together = vacancies.may_serve_of(blocked, kept)
    assert [one.id for one, group in zip(everyone, groups, strict=True) if together[group.index]] == served
    vacancies.clear()
    assert not vacancies.may_serve_of(blocked, kept).any()
    assert not any(vacancies.may_serve(one, kept) for one in everyone)


# Columns


def test_every_column_shows_the_head_of_its_group() -> None:
    room = room_of()
    request = msgspec.structs.replace(
        ask("r", INTERACTIVE, tasks=3, runs_process=True, duration_s_max=50.0),
        needs=Resources(gpus=1, gpu_fraction=0.25, cpus=2.0, memory_gb=3.0),
        tasks_min=2,
        stop_grace_s=7.0,
    )
    other = msgspec.structs.replace(ask("other", TRAINING, gpus=2, preemptible=False), tasks=4)
    blocked, (first, second) = blocked_of(room, [request, other])
    assert (first.index, second.index, len(blocked)) == (0, 1, 2)
    assert blocked.task[:4].T.tolist()[0] == [2000, 3072, 1, 250]
    assert blocked.task[2:4].T.tolist()[1] == [2, 1000]
    assert blocked.class_place.tolist() == [1, 2]
    assert blocked.gpu_milli_total.tolist() == [750, 8000]
    assert blocked.preemptible.tolist() == [True, False]
    assert blocked.processes.T.tolist() == [[3, 2], [0, 0]]
    assert blocked.stop_grace_s.tolist() == [7.0, 10.0]
    assert blocked.duration_s_max.tolist() == [50.0, math.inf]
    assert blocked.since_s.tolist() == [0.0, 0.0]


def test_those_of_a_flow_are_in_the_order_of_their_ranks_and_all_by_age() -> None:
    room, random = room_of(), Random(3)
    blocked = Blocked(room)
    flows = [TenantFlow(TRAINING, tenant, 1.0, number) for number, tenant in ((7, "a"), (4, "b"))]
    ranks: dict[int, tuple[int, Rank]] = {}
    for arrival in random.sample(range(200), 200):  # more than there is room for at first
        flow = random.choice(flows)
        rank = Rank(random.choice((-2, -1)), random.choice((0.0, 5.0)), arrival)
        one = msgspec.structs.replace(ask(f"r{arrival}"), needs=Resources(gpus=1, memory_gb=1.0 + arrival))
        group = flow.add(WaitingRequest(rank, one))
        blocked.add(flow, group)
        ranks[group.index] = (flow.number, rank)
        assert blocked.index_of(f"r{arrival}") == group.index
        assert blocked.flow_at(group.index) is flow
        assert blocked.group_at(group.index) is group
    chosen = np.array([random.random() < 0.5 for _ in range(200)])
    found = [index for index in range(200) if chosen[index]]
    assert blocked.by_flow(chosen) == {
        number: sorted((index for index in found if ranks[index][0] == number), key=lambda index: ranks[index][1])
        for number in (4, 7)
    }
    assert blocked.by_age(chosen) == sorted(found, key=lambda index: ranks[index][1][1:])
    assert blocked.by_flow(np.zeros(200, np.bool_)) == {}
    assert blocked.by_age(np.zeros(200, np.bool_)) == []
    assert [blocked.has_since(since_s) for since_s in (-0.1, 0.0, 5.0)] == [False, True, True]
    assert not Blocked(room).has_since(1e9)


def test_an_index_is_given_to_one_group_at_a_time() -> None:
    room = room_of()
    everyone = [msgspec.structs.replace(ask(f"r{number}"), tenant=f"t{number}") for number in range(6)]
    blocked, groups = blocked_of(room, everyone)
    for group in groups[:3]:
        blocked.remove(group)
        assert group.index < 0
    assert (len(blocked), blocked.everybody.tolist()) == (3, [False] * 3 + [True] * 3)
    with pytest.raises(InvariantBroken, match="only blocked requests"):
        blocked.flow_at(0)
    assert (blocked.group_at(0), blocked.index_of("r0")) == (None, None)
    for _ in range(3):
        blocked.begin_pass()
    flow = TenantFlow(TRAINING, "t", 1.0, 9)
    for number in range(4):
        one = msgspec.structs.replace(ask(f"n{number}"), needs=Resources(gpus=1, memory_gb=1.0 + number))
        groups.append(flow.add(WaitingRequest(Rank(0, 0.0, 100 + number), one)))
        blocked.add(flow, groups[-1])
    assert sorted(group.index for group in groups[3:]) == list(range(7)), "the old ones first, each once"
    assert blocked.everybody.all()


# Quick looks at a room


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level.ISLAND, [0, 1, 2, 3, 4, 5, 6, 7]),
        (Level.NODE, [0, 1, 2, 3, 4, 5, 6, 7]),
        (Level.RACK, [0, 0, 1, 1, 2, 2, 3, 3]),
        (Level.ROW, [0, 0, 0, 0, 1, 1, 1, 1]),
        (Level.HUB, [0] * 8),
    ],
)
def test_nodes_stand_in_racks_rows_and_the_hub(level: Level, expected: list[int]) -> None:
    assert domains(room_of(racks=4, nodes_per_rack=2), level).tolist() == expected


@pytest.mark.parametrize(
    ("tasks", "level", "allowed", "fits"),
    [
        (4, Level.HUB, (1, 1, 1, 1), True),
        (5, Level.HUB, (1, 1, 1, 1), False),
        (2, Level.RACK, (1, 0, 1, 1), True),
        (2, Level.RACK, (1, 0, 1, 0), False),
        (2, Level.NODE, (1, 1, 1, 1), False),
        (1, Level.NODE, (0, 0, 0, 1), True),
        (1, Level.HUB, (0, 0, 0, 0), False),
    ],
)
def test_tasks_are_counted_in_the_domain_that_they_need(
    tasks: int, level: Level, allowed: tuple[int, ...], fits: bool
) -> None:
    room = room_of()
    request = ask("gang", gpus=8, tasks=tasks, required=level)
    mask = np.array(allowed, np.bool_)
    assert could_fit(room, request, tasks, mask) is fits
    assert (find_slots(room, request, tasks, mask) is not None) is fits


def test_who_wants_nodes_alone_gets_empty_ones() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    room.take(Resources(gpus=1), TaskSlot(0, (0,)))
    everywhere = np.ones(2, np.bool_)
    alone = msgspec.structs.replace(ask("alone", gpus=1, tasks=2), topology=Topology(exclusive=True))
    slots = find_slots(room, alone, 2, everywhere)
    assert slots is not None
    assert {slot.row for slot in slots} == {1}
    assert not could_fit(room, alone, 9, everywhere)


@pytest.mark.parametrize(("free", "found"), [(1, False), (2, True)])
def test_processes_are_counted_for_who_starts_them(free: int, found: bool) -> None:
    room = room_of()
    room.process_slots_free = free
    everywhere = np.ones(4, np.bool_)
    assert (find_slots(room, ask("gang", tasks=2, runs_process=True), 2, everywhere) is not None) is found
    assert find_slots(room, ask("gang", tasks=2), 2, everywhere) is not None


@pytest.mark.parametrize(
    ("bound_s", "now_s", "ends_s"),
    [(None, 0.0, math.inf), (50.0, 0.0, 167.0), (50.0, 167.0, 167.0), (50.0, 167.1, math.inf)],
)
def test_a_broken_promise_is_none(bound_s: float | None, now_s: float, ends_s: float) -> None:
    running = RunningRequest(ask("r", duration_s_max=bound_s), whole_node(0), 100.0, stop_grace_s=10.0)
    assert running.ends_s_max(now_s, 7.0) == ends_s
    assert running.ends_s_max(0.0) == (math.inf if bound_s is None else 160.0)


@pytest.mark.parametrize(("checkpoint_s", "lost"), [(None, 40.0), (5.0, 40.0), (15.0, 20.0), (25.0, 0.0)])
def test_what_was_computed_since_it_was_saved_is_lost(checkpoint_s: float | None, lost: float) -> None:
    request = ask("r", gpus=2, tasks=2)
    running = RunningRequest(request, (*whole_node(0), *whole_node(1)), 10.0, checkpoint_s=checkpoint_s)
    assert running.gpu_milli_per_task == 2000
    assert running.lost_gpu_s(20.0) == lost
    assert running.lost_gpu_s(5.0) == 0.0
    without = RunningRequest(ask("r", gpus=0), (TaskSlot(0, ()),), 10.0)
    assert (without.gpu_milli_per_task, without.lost_gpu_s(20.0)) == (1, 0.01)
