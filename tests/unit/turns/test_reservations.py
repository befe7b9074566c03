"""Reservations and backfill by example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.placement.queueing.releases import Releases, RoomOutlook
from harch.placement.queueing.reservations import Reservation, may_backfill
from harch.placement.queueing.reservations import plan_reservation as plan_from
from harch.placement.queueing.running import RunningRequest
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import Level
from unit.turns.turn_fixtures import ask, room_of, start, stop, whole_node

ASSUMED_S = 4000.0


def plan_reservation(
    room: Room,
    request: PlacementRequest,
    running: Sequence[RunningRequest],
    now_s: float,
    *,
    taken: Sequence[Reservation] = (),
    before: Reservation | None = None,
    stopping: dict[str, float] | None = None,
    margin_s: float = 30.0,
) -> Reservation | None:
    outlook = RoomOutlook(
        Releases(room, running), now_s, margin_s=margin_s, assumed_s=ASSUMED_S, stopping=stopping or {}
    )
    return plan_from(outlook, request, taken=taken, before=before)


def test_the_domain_that_clears_first_is_kept() -> None:
    room = room_of(racks=2, nodes_per_rack=2)
    bounds_s = (100.0, 900.0, 300.0, 400.0)
    running = [
        start(room, ask(f"w{row}", gpus=8, duration_s_max=bound_s), whole_node(row))
        for row, bound_s in enumerate(bounds_s)
    ]
    in_a_rack = plan_reservation(room, ask("gang", gpus=8, tasks=2, required=Level.RACK), running, 50.0, margin_s=0.0)
    assert in_a_rack is not None
    assert in_a_rack.rows == (2, 3)
    assert in_a_rack.start_s == 410.0, "its promise and its grace"
    assert in_a_rack.describe(50.0) == "2 nodes are reserved for gang, which starts there within 360 s"
    anywhere = plan_reservation(room, ask("gang", gpus=8, tasks=2), running, 50.0, margin_s=0.0)
    assert anywhere is not None
    assert anywhere.rows == (0, 2)


def test_an_end_is_assumed_of_work_that_promised_none() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [
        start(room, ask("endless", gpus=8), whole_node(0)),
        start(room, ask("bounded", gpus=8, duration_s_max=5000.0), whole_node(1)),
    ]
    one = plan_reservation(room, ask("one", gpus=8), running, 0.0, margin_s=0.0)
    assert one is not None
    assert (one.rows, one.start_s, one.assumed) == ((0,), ASSUMED_S, True)
    assert "(estimated: not all work there has a time limit)" in one.describe(0.0)
    bounded = plan_reservation(room, ask("one", gpus=8), running[1:], 0.0, margin_s=0.0)
    assert bounded is not None
    assert (bounded.start_s, bounded.assumed) == (5010.0, False)


def test_whoever_outlives_what_was_assumed_or_promised_is_assumed_to_last_twice_as_long() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    endless = start(room, ask("endless", gpus=8), whole_node(0))
    for now_s, end_s in ((ASSUMED_S + 1, 2 * ASSUMED_S), (2 * ASSUMED_S + 1, 4 * ASSUMED_S)):
        kept = plan_reservation(room, ask("one", gpus=8), [endless], now_s, margin_s=0.0)
        assert kept is not None
        assert (kept.start_s, kept.assumed) == (end_s, True)
    stop(room, endless)
    late = start(room, ask("late", gpus=8, duration_s_max=990.0), whole_node(0))
    kept = plan_reservation(room, ask("one", gpus=8), [late], 1001.0, margin_s=0.0)
    assert kept is not None
    assert (kept.start_s, kept.assumed) == (2000.0, True), "a broken promise is none"


def test_nobody_without_an_end_comes_onto_nodes_whose_end_is_assumed() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [start(room, ask("endless", gpus=8), whole_node(0))]
    kept = plan_reservation(room, ask("gang", gpus=8, tasks=2), running, 0.0, margin_s=0.0)
    assert kept is not None
    assert not may_backfill(ask("other"), kept, room, 0.0).any()
    assert not may_backfill(ask("long", duration_s_max=ASSUMED_S + 1), kept, room, 0.0).any()
    assert may_backfill(ask("short", duration_s_max=ASSUMED_S), kept, room, 0.0).all()


def test_what_can_never_fit_or_may_not_run_here_gets_no_reservation() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    assert plan_reservation(room, ask("huge", gpus=8, tasks=3), [], 0.0) is None
    assert plan_reservation(room, ask("abroad", countries_allowed=("SN",)), [], 0.0) is None


def test_others_come_onto_kept_nodes_only_if_they_have_surely_ended_by_then() -> None:
    room = room_of(racks=1, nodes_per_rack=3)
    running = [start(room, ask("w", gpus=8, duration_s_max=100.0), whole_node(0))]
    kept = plan_reservation(room, ask("gang", gpus=8, tasks=3), running, 0.0, margin_s=10.0)
    assert kept is not None
    assert kept.start_s == 120.0
    assert may_backfill(ask("short", duration_s_max=110.0), kept, room, 0.0).all()
    assert not may_backfill(ask("long", duration_s_max=111.0), kept, room, 0.0).any()
    assert not may_backfill(ask("graceful", duration_s_max=110.0), kept, room, 0.0, stop_grace_s=1.0).any()
    assert not may_backfill(ask("endless"), kept, room, 0.0).any()
    assert may_backfill(kept.request, kept, room, 0.0).all()


def test_power_that_a_reservation_counts_on_is_not_given_to_its_neighbours() -> None:
    # Three hosts of 1 kW and two nodes of eight GPUs of 700 W: the third node must stay without GPUs.
    room = room_of(racks=1, nodes_per_rack=3, power_kw_max=3 + 2 * 5.6)
    ample = room_of(racks=1, nodes_per_rack=3)
    for place, left_over in ((room, False), (ample, True)):
        running = [start(place, ask("w", gpus=8, duration_s_max=100.0), whole_node(0))]
        if left_over:
            running.append(start(place, ask("w1", gpus=8, duration_s_max=200.0), whole_node(1)))
        kept = plan_reservation(place, ask("gang", gpus=8, tasks=2), running, 0.0)
        assert kept is not None
        outside = np.setdiff1d(np.arange(3), kept.rows)
        assert may_backfill(ask("endless"), kept, place, 0.0)[outside].all() == left_over


def test_processes_that_a_reservation_counts_on_are_not_given_away() -> None:
    room = room_of(racks=1, nodes_per_rack=3)
    room.process_slots_free = 4
    running = [
        start(room, ask(f"w{row}", gpus=8, duration_s_max=100.0 + row, runs_process=True), whole_node(row))
        for row in (0, 1)
    ]
    kept = plan_reservation(room, ask("gang", gpus=8, tasks=2, runs_process=True), running, 0.0)
    assert kept is not None
    assert may_backfill(ask("one", runs_process=True), kept, room, 0.0).any()
    assert not may_backfill(ask("two", tasks=2, runs_process=True), kept, room, 0.0).any()
    assert may_backfill(ask("two", tasks=2), kept, room, 0.0).any()


def test_a_second_reservation_leaves_the_nodes_of_the_first_alone() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [start(room, ask(f"w{row}", gpus=8, duration_s_max=100.0 + row), whole_node(row)) for row in (0, 1)]
    first = plan_reservation(room, ask("one", gpus=8), running, 0.0)
    assert first is not None
    second = plan_reservation(room, ask("two", gpus=8), running, 0.0, taken=[first])
    assert second is not None
    assert set(first.rows) | set(second.rows) == {0, 1}
    assert second.ahead == ("one",)
    again = plan_reservation(room, ask("two", gpus=8), running, 1.0, before=second)
    assert again is not None
    assert again.rows == second.rows, "it stays where it was planned"
    assert plan_reservation(room, ask("both", gpus=8, tasks=2), running, 0.0, taken=[first]) is None


def test_nodes_that_victims_are_leaving_are_kept_for_whom_they_leave() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [start(room, ask(f"w{row}", gpus=8), whole_node(row)) for row in (0, 1)]
    kept = plan_reservation(room, ask("high", gpus=8), running, 0.0, stopping={"w1": 10.0})
    assert kept is not None
    assert (kept.rows, kept.start_s) == ((1,), 10.0)
