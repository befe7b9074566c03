"""What waits for much starts at last: nodes stay kept for it, small work makes room, higher classes look elsewhere."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from harch.placement.plan import SchedulePlan
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.workloads.spec import Level, Strategy, Topology
from unit.turns.turn_fixtures import INFERENCE, TRAINING, ask, room_of

HOUR_S = 3600.0
NO_MOVES = QueueSettings(makes_room_after_s=1e9)


def hub_of(nodes: int, settings: QueueSettings | None = None) -> Scheduler:
    made = Scheduler(room_of(racks=1, nodes_per_rack=nodes).hub, settings or QueueSettings())
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    return made


def comes(scheduler: Scheduler, request: PlacementRequest, now_s: float) -> SchedulePlan:
    scheduler.submit(msgspec.structs.replace(request, submitted_s=now_s), now_s=now_s)
    return scheduler.plan(now_s=now_s, placed_max=100)


def full_of_small(scheduler: Scheduler, *, preemptible: bool = True, duration_s_max: float | None = None) -> None:
    for number in range(8 * len(scheduler.hub.nodes)):
        one = ask(f"small{number}", preemptible=preemptible, duration_s_max=duration_s_max)
        assert comes(scheduler, one, 0.0).assignments


def test_nodes_stay_kept_while_the_request_waits_and_those_behind_it_go_elsewhere() -> None:
    scheduler = hub_of(2, NO_MOVES)
    full_of_small(scheduler, duration_s_max=HOUR_S)
    comes(scheduler, ask("gang", gpus=8), 10.0)
    (kept,) = scheduler.reservations
    on_kept = [name for name, item in scheduler.running.items() if item.slots[0].row in kept.rows]
    for place, name in enumerate(on_kept[:-1]):
        scheduler.ended(name, now_s=20.0 + place)
        behind = comes(scheduler, ask(f"behind{place}", duration_s_max=2 * HOUR_S), 20.0 + place)
        assert not behind.assignments, "it would still be there when the gang could start"
    assert [item.request.id for item in scheduler.reservations] == ["gang"]
    short = comes(scheduler, ask("short", duration_s_max=600.0), 40.0)
    assert [item.request.id for item in short.assignments] == ["short"], "it has ended by then"
    scheduler.ended("short", now_s=50.0)
    scheduler.ended(on_kept[-1], now_s=60.0)
    assert "gang" in {item.request.id for item in scheduler.plan(now_s=60.0, placed_max=100).assignments}
    assert not scheduler.reservations


@pytest.mark.parametrize("preferred", list(Level))
@pytest.mark.parametrize("strategy", list(Strategy))
def test_nodes_are_kept_for_a_gang_that_one_empty_node_could_hold_however_it_wants_to_stand(
    strategy: Strategy, preferred: Level
) -> None:
    scheduler = hub_of(2, NO_MOVES)
    full_of_small(scheduler, duration_s_max=HOUR_S)
    topology = Topology(strategy=strategy, preferred=preferred)
    comes(scheduler, msgspec.structs.replace(ask("gang", tasks=4), topology=topology), 10.0)
    assert [item.request.id for item in scheduler.reservations] == ["gang"]
    for name in list(scheduler.running):
        scheduler.ended(name, now_s=20.0)
    (started,) = scheduler.plan(now_s=20.0, placed_max=100).assignments
    nodes = {slot.row for slot in started.slots}
    assert len(nodes) == (2 if strategy is Strategy.SPREAD else 1)


def test_nodes_kept_for_a_request_that_goes_elsewhere_are_open_to_others_at_once() -> None:
    scheduler = hub_of(2, NO_MOVES)
    full_of_small(scheduler, duration_s_max=HOUR_S)
    comes(scheduler, ask("gang", gpus=8), 10.0)
    (kept,) = scheduler.reservations
    scheduler.ended(next(n for n, item in scheduler.running.items() if item.slots[0].row in kept.rows), now_s=20.0)
    borrowed = ask("guest", duration_s_max=2 * HOUR_S)
    assert scheduler.hold(borrowed, now_s=20.0, until_s=22.0) is None
    scheduler.withdraw("gang")
    assert scheduler.hold(borrowed, now_s=21.0, until_s=23.0) is not None


def test_small_work_makes_room_for_a_gang_that_has_waited_long_and_only_then() -> None:
    scheduler = hub_of(2)
    full_of_small(scheduler)
    assert not comes(scheduler, ask("gang", gpus=8), 0.0).preemptions
    (kept,) = scheduler.reservations
    assert not scheduler.plan(now_s=HOUR_S - 100.0, placed_max=100).preemptions
    (plan,) = scheduler.plan(now_s=HOUR_S + 100.0, placed_max=100).preemptions
    assert plan.request.id == "gang"
    assert len(plan.victims) == 8
    assert {slot.row for victim in plan.victims for slot in victim.slots} == set(kept.rows)
    for victim in plan.victims:
        scheduler.ended(victim.request.id, now_s=HOUR_S + 110.0)
        scheduler.submit(victim.request, now_s=HOUR_S + 110.0)
    started = scheduler.plan(now_s=HOUR_S + 110.0, placed_max=100).assignments
    assert [item.request.id for item in started] == ["gang"], "those who made room wait behind it"


def test_work_that_may_not_be_preempted_or_is_nearly_as_large_makes_no_room() -> None:
    scheduler = hub_of(1)
    full_of_small(scheduler, preemptible=False)
    comes(scheduler, ask("gang", gpus=8), 0.0)
    assert not scheduler.plan(now_s=2 * HOUR_S, placed_max=100).preemptions
    scheduler = hub_of(1)
    for number in range(2):
        comes(scheduler, ask(f"half{number}", gpus=4), 0.0)
    comes(scheduler, ask("gang", gpus=8), 0.0)
    assert not scheduler.plan(now_s=2 * HOUR_S, placed_max=100).preemptions


def test_the_limits_of_making_room_hold() -> None:
    for limits in ({"makes_room_victims_max": 7}, {"makes_room_per_hour_max": 7}):
        scheduler = hub_of(1, replace(QueueSettings(), **limits))  # type: ignore[arg-type]
        full_of_small(scheduler)
        comes(scheduler, ask("gang", gpus=8), 0.0)
        assert not scheduler.plan(now_s=2 * HOUR_S, placed_max=100).preemptions


def test_who_made_room_counts_against_the_hour() -> None:
    scheduler = hub_of(2, QueueSettings(makes_room_per_hour_max=8))
    full_of_small(scheduler)
    for name in ("gang", "next gang"):
        comes(scheduler, ask(name, gpus=8), 0.0)
    (plan,) = scheduler.plan(now_s=HOUR_S + 100.0, placed_max=100).preemptions
    for victim in plan.victims:
        scheduler.ended(victim.request.id, now_s=HOUR_S + 110.0)
    started = scheduler.plan(now_s=HOUR_S + 110.0, placed_max=100).assignments
    assert [item.request.id for item in started] == [plan.request.id]
    assert not scheduler.plan(now_s=HOUR_S + 200.0, placed_max=100).preemptions, "8 of 8 were stopped in this hour"
    (later,) = scheduler.plan(now_s=2 * HOUR_S + 200.0, placed_max=100).preemptions
    assert later.request.id != plan.request.id


def test_a_higher_class_looks_elsewhere_before_it_takes_what_is_kept() -> None:
    scheduler = hub_of(2, NO_MOVES)
    full_of_small(scheduler, preemptible=False, duration_s_max=HOUR_S)
    comes(scheduler, ask("gang", gpus=8), 0.0)
    (kept,) = scheduler.reservations
    free = next(name for name, item in scheduler.running.items() if item.slots[0].row in kept.rows)
    scheduler.ended(free, now_s=10.0)
    assert not comes(scheduler, ask("urgent", INFERENCE, preemptible=False), 10.0).assignments
    later = scheduler.plan(now_s=10.0 + scheduler.settings.kept_yields_after_s, placed_max=100)
    assert [item.request.id for item in later.assignments] == ["urgent"]


def test_a_higher_class_stops_nobody_on_kept_nodes() -> None:
    scheduler = hub_of(2, NO_MOVES)
    full_of_small(scheduler, duration_s_max=HOUR_S)
    comes(scheduler, ask("gang", gpus=8), 0.0)
    (kept,) = scheduler.reservations
    (plan,) = comes(scheduler, ask("urgent", INFERENCE, preemptible=False), 10.0).preemptions
    assert not {slot.row for victim in plan.victims for slot in victim.slots} & set(kept.rows)


def test_work_that_stays_where_it_is_stands_together() -> None:
    scheduler = hub_of(2)
    comes(scheduler, ask("first", INFERENCE), 0.0)
    row = scheduler.running["first"].slots[0].row
    node_id = scheduler.hub.nodes[row].id
    scheduler.cordon(node_id, True)
    comes(scheduler, ask("tighter", gpus=6), 0.0)
    scheduler.cordon(node_id, False)
    comes(scheduler, ask("second", INFERENCE), 0.0)
    comes(scheduler, ask("movable", TRAINING), 0.0)
    assert scheduler.running["second"].slots[0].row == row
    assert scheduler.running["movable"].slots[0].row != row, "the tightest node, as ever"


def test_no_node_is_kept_for_one_gpu_before_it_has_waited_long() -> None:
    scheduler = hub_of(1, NO_MOVES)
    full_of_small(scheduler)
    comes(scheduler, ask("one"), 0.0)
    assert not scheduler.reservations
    scheduler.plan(now_s=scheduler.settings.starvation_s, placed_max=100)
    assert [item.request.id for item in scheduler.reservations] == ["one"]


def test_a_gang_that_prefers_one_node_has_one_kept() -> None:
    scheduler = hub_of(3)
    full_of_small(scheduler)
    comes(scheduler, ask("gang", tasks=8), 0.0)
    (kept,) = scheduler.reservations
    assert len(kept.rows) == 1
    assert kept.request.id == "gang"
