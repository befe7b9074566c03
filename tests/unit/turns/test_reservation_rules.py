"""Who may use kept nodes, when does a request fit, and does a plan stay? Every rule against the sentence that it is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest

from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import Rank, TenantFlow, WaitingRequest
from harch.placement.queueing.releases import Releases, RoomOutlook
from harch.placement.queueing.reservations import Reservation, may_backfill, plan_reservation
from harch.placement.queueing.running import RunningRequest, find_slots, is_movable
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import Level, SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, start, whole_node

NOW_S, MARGIN_S = 50.0, 5.0
SMALL_S = 64.0  # a promise short enough for the first of the starts below, with its grace of 10 s and the margin


def reservation(
    room: Room, request: PlacementRequest, rows: tuple[int, ...] = (0,), *, start_s: float = 1000.0, **also: object
) -> Reservation:
    racks, zones = np.zeros(len(room.rack_row)), np.zeros(len(room.zone_heat_w))
    made = Reservation(request, request.tasks, rows, start_s, MARGIN_S, False, False, racks, zones, racks, zones)
    return replace(made, **also)  # type: ignore[arg-type]


def candidates() -> list[PlacementRequest]:
    return [
        ask(
            f"{turn_class}-{gpus}-{tasks}-{preemptible}-{duration_s}",
            turn_class,
            gpus=gpus,
            tasks=tasks,
            preemptible=preemptible,
            duration_s_max=duration_s,
        )
        for turn_class, gpus, tasks, preemptible, duration_s in itertools.product(
            CLASS_ORDER, (0, 1, 2, 3), (1, 2), (True, False), (None, SMALL_S, SMALL_S + 1)
        )
    ]


@pytest.mark.parametrize("start_s", [NOW_S + 10.0 + SMALL_S + MARGIN_S, NOW_S + 3600.0, NOW_S + 3599.0])
@pytest.mark.parametrize("has_room_made", [True, False])
@pytest.mark.parametrize("own_class", [INTERACTIVE, TRAINING])
def test_kept_nodes_let_in_higher_classes_whom_they_are_kept_for_and_who_is_gone_by_then(
    start_s: float, has_room_made: bool, own_class: SchedulingClass
) -> None:
    room = room_of()
    own = ask("own", own_class, gpus=8)
    kept = reservation(room, own, start_s=start_s, has_room_made=has_room_made)
    everyone = [*candidates(), own]
    expected = []
    for one in everyone:
        higher = CLASS_ORDER.index(one.turn_class) < CLASS_ORDER.index(own_class)
        ends_s = None if one.duration_s_max is None else NOW_S + one.duration_s_max + 10.0 + MARGIN_S
        leaves = (
            has_room_made
            and one.preemptible
            and not higher
            and one.needs.gpus * one.tasks <= 2  # a quarter of eight
            and start_s >= NOW_S + 3600.0
        )
        expected.append(higher or one.id == "own" or (ends_s is not None and ends_s <= start_s) or leaves)
        assert kept.yields_to(one) == higher
        assert is_movable(one, own) == (one.preemptible and not higher and one.needs.gpus * one.tasks <= 2)
    assert [kept.lets_in(one, NOW_S) for one in everyone] == expected
    blocked, flow = Blocked(room), TenantFlow(TRAINING, "t", 1.0, 1)
    for number, one in enumerate(everyone):
        blocked.add(flow, TenantFlow(one.turn_class, "t", 1.0, 1).add(WaitingRequest(Rank(0, 0.0, number), one)))
    together = kept.lets_in_of(blocked, NOW_S)
    assert [bool(together[blocked.index_of(one.id) or 0]) for one in everyone] == expected
    assert kept.describe(NOW_S) == f"1 node is reserved for own, which starts there within {start_s - NOW_S:.0f} s"


def plain_backfill(
    candidate: PlacementRequest, kept: Reservation, room: Room, grace_s: float, own: Reservation | None
) -> list[bool]:
    """Node by node, as `may_backfill` says it in words."""
    bound_s = candidate.duration_s_max
    if candidate.id == kept.request.id:
        return [True] * 4
    if bound_s is not None and NOW_S + bound_s + grace_s + MARGIN_S <= kept.start_s:
        return [True] * 4
    agreed = own is not None and own.request.id in kept.ahead
    needs_processes = kept.tasks if kept.request.runs_process else 0
    left = room.process_slots_free + kept.processes_ending - needs_processes
    if candidate.runs_process and needs_processes and not agreed and candidate.tasks > left:
        return [False] * 4
    found, own_fits = [], True
    for row in range(4):
        rack, zone = room.rack[row], room.rack_zone[room.rack[row]]
        rack_w = room.rack_power_w_free[rack] + kept.rack_w_ending[rack] - kept.rack_w[rack]
        zone_w = room.zone_heat_w_max[zone] - room.zone_heat_w[zone] + kept.zone_w_ending[zone] - kept.zone_w[zone]
        watts = 700.0 * candidate.needs.gpus * candidate.tasks
        short = (kept.rack_w[rack] > 0 and rack_w < watts) or (kept.zone_w[zone] > 0 and zone_w < watts)
        found.append(row not in kept.rows and not (room.power_can_bind and candidate.needs.gpus and short))
        if own is not None:
            own_fits &= not (kept.rack_w[rack] > 0 and own.rack_w[rack] > rack_w)
            own_fits &= not (kept.zone_w[zone] > 0 and own.zone_w[zone] > zone_w)
    if own is not None and (not room.power_can_bind or agreed or own_fits):
        for row in own.rows:
            found[row] = True
    return found


@pytest.mark.parametrize("seed", range(6))
def test_others_go_where_neither_the_nodes_nor_what_nodes_share_is_counted_on(seed: int) -> None:
    random = Random(seed)

    def watts(count: int) -> np.ndarray:
        return np.array([700.0 * random.randrange(5) for _ in range(count)])

    for number in range(60):
        room = room_of(racks=2, nodes_per_rack=2, power_kw_max=random.choice((100.0, 10.5)))
        room.rack_power_w_free = watts(2) + 2100.0
        room.zone_heat_w_max, room.zone_heat_w = np.array([random.choice((7000.0, 3500.0))]), watts(1)
        room.process_slots_free = random.randrange(4)
        request = ask("gang", gpus=8, tasks=random.choice((1, 2)), runs_process=random.random() < 0.7)
        kept = reservation(
            room,
            request,
            random.choice(((0,), (0, 1), (1, 2))),
            start_s=NOW_S + 100.0,
            rack_w=watts(2),
            zone_w=watts(1),
            rack_w_ending=watts(2),
            zone_w_ending=watts(1),
            processes_ending=random.randrange(3),
            ahead=random.choice(((), ("other",))),
        )
        candidate = ask(
            random.choice(("other", "other", "other", "gang")),
            gpus=random.choice((0, 1, 2)),
            tasks=random.choice((1, 2, 3)),
            duration_s_max=random.choice((None, 85.0, 86.0)),
            runs_process=random.random() < 0.7,
        )
        own = None
        if random.random() < 0.5:
            own = reservation(room, candidate, random.choice(((0,), (3,))), rack_w=watts(2), zone_w=watts(1))
        grace_s = random.choice((0.0, 10.0))
        before = room.arrays.available.copy()
        allowed = may_backfill(candidate, kept, room, NOW_S, stop_grace_s=grace_s, own=own)
        assert allowed.tolist() == plain_backfill(candidate, kept, room, grace_s, own), number
        assert (room.arrays.available == before).all()


# When does it fit?


def filled(random: Random, room: Room) -> list[RunningRequest]:
    """One piece of work on the first GPUs of every node, and one on the others."""
    running = []
    for row in range(room.arrays.size):
        for place, gpus in enumerate((6, 2)):
            if random.random() < 0.9:
                request = ask(
                    f"w{row}-{place}",
                    gpus=gpus,
                    duration_s_max=random.choice((None, 100.0, 200.0, 300.0 + row)),
                    runs_process=random.random() < 0.5,
                )
                devices = tuple(range(6)) if gpus == 6 else (6, 7)
                running.append(start(room, request, (msgspec.structs.replace(whole_node(row)[0], devices=devices),)))
    return running


@pytest.mark.parametrize("seed", range(10))
def test_a_request_is_promised_the_first_moment_at_which_it_fits(seed: int) -> None:
    random = Random(seed)
    tight = seed % 2 == 1
    room = room_of(power_kw_max=9.0 if tight else 100.0, heat_kw_max=random.choice((1000.0, 16.0)) if tight else 1000.0)
    room.process_slots_free = random.choice((4, 6))
    running = filled(random, room)
    table = Releases(room, running)
    outlook = RoomOutlook(table, NOW_S, margin_s=MARGIN_S, assumed_s=250.0, stopping={})
    first = plan_reservation(outlook, ask("first", gpus=8, runs_process=True))
    taken = [] if first is None else [first]
    closed = [reservation(room, ask("later", gpus=8), (3,))] if seed % 3 == 0 else []
    open_rows = np.ones(4, np.bool_)
    for other in (*taken, *closed):
        open_rows[list(other.rows)] = False
    for tasks, gpus, level in ((1, 8, Level.HUB), (2, 4, Level.NODE), (2, 8, Level.RACK), (3, 8, Level.HUB)):
        wanted = ask("gang", gpus=gpus, tasks=tasks, required=level, runs_process=random.random() < 0.5)
        wanted = msgspec.structs.replace(wanted, tasks_min=max(1, tasks - 1))
        expected = None
        for count, (size, ended) in enumerate(itertools.product((tasks, wanted.tasks_min), outlook.counts)):
            later = outlook.room_after(ended)
            for other in taken:
                later.rack_power_w_free -= other.rack_w
                later.zone_heat_w += other.zone_w
                later.process_slots_free -= other.processes
            slots = find_slots(later, wanted, size, open_rows)
            if slots is not None:
                expected = ended, slots, later
                break
            assert count < 1000
        plan = plan_reservation(outlook, wanted, taken=taken, closed=closed)
        if expected is None:
            assert plan is None
            continue
        ended, slots, later = expected
        assert plan is not None
        rows = tuple(sorted({slot.row for slot in slots}))
        assert (plan.request, plan.tasks, plan.rows, plan.start_s) == (
            wanted,
            len(slots),
            rows,
            outlook.moment_s(ended),
        )
        assert (plan.margin_s, plan.has_room_made) == (MARGIN_S, False)
        shares = room.power_can_bind or wanted.runs_process
        assert plan.assumed == outlook.is_assumed(ended, range(4) if shares else rows)
        rack_w, zone_w = np.zeros(2), np.zeros(1)
        for slot in slots:
            rack_w[room.rack[slot.row]] += 700.0 * gpus
            zone_w[0] += 700.0 * gpus
        np.testing.assert_allclose(plan.rack_w, rack_w)
        np.testing.assert_allclose(plan.zone_w, zone_w)
        np.testing.assert_allclose(plan.rack_w_ending, later.rack_power_w_free - room.rack_power_w_free)
        np.testing.assert_allclose(plan.zone_w_ending, room.zone_heat_w - later.zone_heat_w)
        assert plan.processes_ending == later.process_slots_free - room.process_slots_free
        assert plan.processes == (len(slots) if wanted.runs_process else 0)
        assert plan.ahead == tuple(other.request.id for other in taken)


@pytest.mark.parametrize(
    ("ends_s", "before_s", "rows"),
    [
        ((250.0, 60.0), 250.0, (0,)),  # in time: it stays, whatever else there is
        ((250.0, 60.0), 249.0, (1,)),  # late, and others can be had in much less than half of the time
        ((250.0, 150.0), 249.0, (1,)),  # in half of the time from now on
        ((250.0, 151.0), 249.0, (0,)),
        ((40.0, 30.0), 20.0, (0,)),  # what could start now is not late
    ],
)
def test_a_plan_stays_where_it_is_unless_others_can_be_had_in_half_of_the_time(
    ends_s: tuple[float, float], before_s: float, rows: tuple[int, ...]
) -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [start(room, ask(f"w{row}", gpus=8), whole_node(row)) for row in (0, 1)]
    stopping = {"w0": ends_s[0], "w1": ends_s[1]}
    outlook = RoomOutlook(Releases(room, running), NOW_S, margin_s=0.0, assumed_s=1000.0, stopping=stopping)
    request = ask("one", gpus=8)
    before = reservation(room, request, (0,), start_s=before_s)
    plan = plan_reservation(outlook, request, before=before)
    assert plan is not None
    assert plan.rows == rows
    assert plan.start_s == max(NOW_S, ends_s[rows[0]])
    other = plan_reservation(outlook, request, before=replace(before, request=ask("another", gpus=8)))
    assert other is not None
    assert other.rows == (1,), "the plan of another means nothing to it"


def test_a_plan_for_fewer_tasks_stays_one_and_nodes_that_are_gone_are_given_up() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [start(room, ask(f"w{row}", gpus=8, duration_s_max=100.0), whole_node(row)) for row in (0, 1)]
    outlook = RoomOutlook(Releases(room, running), NOW_S, margin_s=0.0, assumed_s=1000.0, stopping={})
    gang = msgspec.structs.replace(ask("gang", gpus=8, tasks=2), tasks_min=1)
    fewer = plan_reservation(outlook, gang, before=reservation(room, gang, (1,), start_s=110.0, tasks=1))
    assert fewer is not None
    assert (fewer.tasks, fewer.rows) == (1, (1,))
    closed = [reservation(room, ask("other", gpus=8), (1,))]
    moved = plan_reservation(outlook, gang, closed=closed, before=reservation(room, gang, (1,), start_s=110.0, tasks=1))
    assert moved is not None
    assert (moved.tasks, moved.rows) == (1, (0,)), "both tasks fit nowhere"
    larger = msgspec.structs.replace(gang, tasks=3, tasks_min=3)  # it was changed since
    late = reservation(room, larger, (1,), start_s=60.0, tasks=1)
    stays = plan_reservation(outlook, larger, before=late)
    assert stays is not None
    assert (stays.tasks, stays.rows, stays.start_s) == (1, (1,), 110.0), "better late than nothing"
    alone = ask("alone", gpus=8)
    everything = [reservation(room, ask("other", gpus=8), (0, 1))]
    assert plan_reservation(outlook, alone, closed=everything, before=reservation(room, alone, (1,))) is None


@pytest.mark.parametrize(("countries", "found"), [((), True), (("MA",), True), (("SN", "MA"), True), (("SN",), False)])
def test_nodes_are_kept_only_where_it_may_run(countries: tuple[str, ...], found: bool) -> None:
    room = room_of()
    outlook = RoomOutlook(Releases(room), NOW_S, margin_s=0.0, assumed_s=1000.0, stopping={})
    plan = plan_reservation(outlook, ask("one", INFERENCE, gpus=8, countries_allowed=countries))
    assert (plan is not None) is found
