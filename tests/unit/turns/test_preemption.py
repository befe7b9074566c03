"""Preemption by example: whom, how many, how often."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from harch.placement.queueing.preemption import PastPreemptions, PreemptionPlan, plan_preemption
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, start, whole_node


def full(room: Room, *classes: SchedulingClass, started_s: tuple[float, ...] = ()) -> list[RunningRequest]:
    """One workload per node, on all of its GPUs."""
    return [
        replace(start(room, ask(f"w{row}", turn_class, gpus=8), whole_node(row)), started_s=at_s)
        for row, (turn_class, at_s) in enumerate(zip(classes, started_s or (0.0,) * len(classes), strict=True))
    ]


def plan_for(
    room: Room,
    running: list[RunningRequest],
    *,
    past: PastPreemptions | None = None,
    now_s: float = 100.0,
    **limits: float,
) -> PreemptionPlan | None:
    settings = QueueSettings(**limits)  # type: ignore[arg-type]
    request = ask("high", INTERACTIVE, gpus=8)
    return plan_preemption(
        Releases(room, running), request, settings, now_s, past=past or PastPreemptions(), stopping=()
    )


def test_the_victim_is_of_a_lower_class_and_loses_least() -> None:
    room = room_of(racks=2, nodes_per_rack=2)
    running = full(room, INFERENCE, INTERACTIVE, TRAINING, TRAINING, started_s=(90.0, 99.0, 10.0, 50.0))
    plan = plan_for(room, running)
    assert plan is not None
    assert [victim.request.id for victim in plan.victims] == ["w3"]
    assert (plan.level, plan.rows, plan.move, plan.notice_s) == (Level.NODE, (3,), "restart", 10.0)
    assert plan.lost_gpu_s == 8 * 50
    assert plan.describe() == ("interactive high preempts w3: 400 GPU-seconds are lost, one node is free within 10 s")


def test_a_checkpoint_makes_a_victim_cheap() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING, started_s=(0.0, 50.0))
    running[0] = replace(running[0], checkpoint_s=99.0)
    plan = plan_for(room, running)
    assert plan is not None
    assert plan.victims[0].request.id == "w0"
    assert plan.lost_gpu_s == pytest.approx(8.0)


def test_work_that_may_not_be_preempted_stays() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    running = [start(room, ask("w", TRAINING, gpus=8, preemptible=False), whole_node(0))]
    assert plan_for(room, running) is None


def test_nobody_is_stopped_when_there_is_room_or_when_it_is_being_made() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING)
    assert plan_for(room, running) is None
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING)
    request = ask("high", INFERENCE, gpus=8)
    assert (
        plan_preemption(Releases(room, running), request, QueueSettings(), 1.0, past=PastPreemptions(), stopping={"w0"})
        is None
    )


def test_a_gang_is_made_room_for_inside_one_domain() -> None:
    room = room_of(racks=2, nodes_per_rack=2)
    running = full(room, TRAINING, INFERENCE, TRAINING, TRAINING, started_s=(99.0, 0.0, 0.0, 0.0))
    request = ask("gang", INTERACTIVE, gpus=8, tasks=2, required=Level.RACK)
    plan = plan_preemption(
        Releases(room, running), request, QueueSettings(), 100.0, past=PastPreemptions(), stopping=()
    )
    assert plan is not None
    assert (plan.level, plan.rows) == (Level.RACK, (2, 3))
    assert {victim.request.id for victim in plan.victims} == {"w2", "w3"}


def test_only_as_many_small_ones_are_stopped_as_are_needed() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    running = [
        replace(start(room, ask(f"w{device}", TRAINING), (TaskSlot(0, (device,)),)), started_s=float(device))
        for device in range(8)
    ]
    request = ask("high", INFERENCE, gpus=3)
    plan = plan_preemption(
        Releases(room, running), request, QueueSettings(), 100.0, past=PastPreemptions(), stopping=()
    )
    assert plan is not None
    assert [victim.request.id for victim in plan.victims] == ["w7", "w6", "w5"]
    few = QueueSettings(preemption_victims_max=2)
    assert plan_preemption(Releases(room, running), request, few, 100.0, past=PastPreemptions(), stopping=()) is None


def test_an_hour_has_so_many_preemptions_and_a_victim_is_left_alone_for_a_while() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING, started_s=(50.0, 0.0))
    past = PastPreemptions()
    first = plan_for(room, running, past=past)
    assert first is not None
    past.note(first, 100.0)
    second = plan_for(room, running, past=past, now_s=200.0)
    assert second is not None
    assert second.victims[0].request.id == "w1", "w0 was stopped a moment ago"
    assert plan_for(room, running, past=past, now_s=200.0, preemptions_per_hour_max=1) is None
    assert plan_for(room, running, past=past, now_s=3701.0, preemptions_per_hour_max=1) is not None
    later = plan_for(room, running, past=past, now_s=1901.0)
    assert later is not None
    assert later.victims[0].request.id == "w0"


def test_residency_is_checked_here_too() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    running = full(room, TRAINING)
    request = ask("abroad", INFERENCE, gpus=8, countries_allowed=("SN",))
    assert (
        plan_preemption(Releases(room, running), request, QueueSettings(), 1.0, past=PastPreemptions(), stopping=())
        is None
    )


def plan_of(
    room: Room,
    running: list[RunningRequest],
    request: PlacementRequest,
    *,
    now_s: float = 100.0,
    allowed: list[bool] | None = None,
    preferred: list[bool] | None = None,
    spared: tuple[str, ...] = (),
    **limits: float,
) -> PreemptionPlan | None:
    return plan_preemption(
        Releases(room, running),
        request,
        QueueSettings(**limits),  # type: ignore[arg-type]
        now_s,
        past=PastPreemptions(),
        stopping=(),
        spared=spared,
        allowed=None if allowed is None else np.array(allowed),
        preferred=None if preferred is None else np.array(preferred),
    )


def victims(plan: PreemptionPlan | None) -> list[str]:
    return [] if plan is None else [victim.request.id for victim in plan.victims]


def on(room: Room, name: str, row: int, devices: range, started_s: float, **also: object) -> RunningRequest:
    request = ask(name, TRAINING, gpus=len(devices), **also)  # type: ignore[arg-type]
    return replace(start(room, request, (TaskSlot(row, tuple(devices)),)), started_s=started_s)


@pytest.mark.parametrize(
    ("again_after_s", "now_s", "in_last_hour", "spared"),
    [
        (1800.0, 100.0, 2, {"w0", "w1"}),
        (1800.0, 1899.0, 2, {"w0", "w1"}),
        (1800.0, 1900.0, 2, set()),
        (1800.0, 3699.0, 2, set()),
        (1800.0, 3700.0, 0, set()),
        (7200.0, 3700.0, 0, {"w0", "w1"}),
        (7200.0, 7299.0, 0, {"w0", "w1"}),
        (7200.0, 7300.0, 0, set()),
    ],
)
def test_a_stop_counts_for_an_hour_and_spares_its_victim_for_as_long_as_is_set(
    again_after_s: float, now_s: float, in_last_hour: int, spared: set[str]
) -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING)
    settings, past = QueueSettings(preempted_again_after_s=again_after_s), PastPreemptions()
    assert past.spared(settings, 0.0) == set()
    plan = PreemptionPlan(ask("high"), tuple(running), (0, 1), Level.NODE, 0.0, 0.0)
    past.note(plan, 100.0)
    assert past.in_last_hour(settings, now_s) == in_last_hour
    assert past.spared(settings, now_s) == spared


@pytest.mark.parametrize(("per_hour", "found"), [(1, False), (2, True)])
def test_a_plan_needs_a_victim_that_the_hour_has_left(per_hour: int, found: bool) -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING)
    past = PastPreemptions()
    past.note(PreemptionPlan(ask("high"), (running[0],), (0,), Level.NODE, 0.0, 0.0), 50.0)
    assert (plan_for(room, running, past=past, preemptions_per_hour_max=per_hour) is not None) is found
    assert plan_for(room, running, preemption_victims_max=1) is not None


@pytest.mark.parametrize(("now_s", "count"), [(99.9, 2), (100.0, 1), (150.0, 1)])
def test_a_gang_that_takes_fewer_tasks_by_now_needs_fewer_victims(now_s: float, count: int) -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = full(room, TRAINING, TRAINING)
    gang = msgspec.structs.replace(ask("gang", INFERENCE, gpus=8, tasks=2), tasks_min=1, submitted_s=70.0)
    assert len(victims(plan_of(room, running, gang, now_s=now_s))) == count


def test_gpus_of_one_island_are_freed_together() -> None:
    """The cheapest four stand on both islands of the node."""
    room = room_of(racks=1, nodes_per_rack=1)
    cost_s = (1, 3, 5, 20, 2, 4, 6, 7)
    running = [on(room, f"w{device}", 0, range(device, device + 1), 100.0 - cost_s[device]) for device in range(8)]
    island = ask("island", INFERENCE, gpus=4, required=Level.ISLAND)
    assert sorted(victims(plan_of(room, running, island))) == ["w4", "w5", "w6", "w7"]
    anywhere = ask("anywhere", INFERENCE, gpus=4)
    assert victims(plan_of(room, running, anywhere)) == ["w0", "w4", "w1", "w5"]
    single = ask("single", INFERENCE, gpus=1, required=Level.ISLAND)
    assert victims(plan_of(room, running, single)) == ["w0"]


def test_a_process_needs_a_process_that_ends() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    room.process_slots_free = 1
    cheap = on(room, "cheap", 0, range(4), 99.0)
    costly = on(room, "costly", 0, range(4, 8), 0.0, runs_process=True)
    high = ask("high", INFERENCE, gpus=4, runs_process=True)
    assert victims(plan_of(room, [cheap, costly], high)) == ["costly"]
    room.process_slots_free = 1
    assert victims(plan_of(room, [cheap, costly], high)) == ["cheap"]


def test_whoever_turns_out_not_to_be_needed_stays() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    running = [on(room, "small", 0, range(1), 99.0), on(room, "large", 0, range(1, 8), 0.0)]
    assert victims(plan_of(room, running, ask("high", INFERENCE, gpus=7))) == ["large"]
    assert victims(plan_of(room, running, ask("high", INFERENCE, gpus=8))) == ["small", "large"]


def two_nodes(small: int, small_s: float, large_s: float) -> tuple[Room, list[RunningRequest]]:
    """The first node is full of one, the second has so many of one GPU; all have lost so many seconds."""
    room = room_of(racks=1, nodes_per_rack=2)
    running = [on(room, "large", 0, range(8), 100.0 - large_s)]
    running += [on(room, f"s{device}", 1, range(device, device + 1), 100.0 - small_s) for device in range(small)]
    return room, running


def test_the_node_where_the_least_is_lost_by_those_who_are_needed_is_tried_first() -> None:
    room, running = two_nodes(8, small_s=30.0, large_s=10.0)
    for tried in (1, 8):
        plan = plan_of(room, running, ask("two", INFERENCE, gpus=2), preemption_domains_tried_max=tried)
        assert plan is not None
        assert (len(plan.victims), plan.rows, plan.lost_gpu_s) == (2, (1,), 60.0)
        whole = plan_of(room, running, ask("all", INFERENCE, gpus=8), preemption_domains_tried_max=tried)
        assert (victims(whole), whole and whole.lost_gpu_s) == (["large"], 80.0)


def test_what_is_free_already_need_not_be_made() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    running = [on(room, f"a{device}", 0, range(device, device + 1), 50.0) for device in range(7)]
    running += [on(room, f"b{device}", 1, range(device, device + 1), 70.0) for device in range(8)]
    pair = ask("pair", INFERENCE, tasks=2, required=Level.NODE)
    plan = plan_of(room, running, pair, preemption_domains_tried_max=1)
    assert plan is not None
    assert (plan.rows, plan.lost_gpu_s) == ((0,), 50.0), "one of fifty seconds, and not two of thirty"


def test_work_without_gpus_has_a_price_too() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    needs = msgspec.structs.replace(ask("").needs, gpus=0, cpus=64.0)
    running = [
        replace(
            start(room, msgspec.structs.replace(ask(f"c{row}", TRAINING), needs=needs), (TaskSlot(row, ()),)),
            started_s=started_s,
        )
        for row, started_s in ((0, 0.0), (1, 60.0))
    ]
    plan = plan_of(room, running, msgspec.structs.replace(ask("high", INFERENCE), needs=needs))
    assert plan is not None
    assert (victims(plan), plan.lost_gpu_s) == (["c1"], pytest.approx(0.04))


def test_only_so_many_candidates_of_a_node_are_looked_at() -> None:
    room, running = two_nodes(8, small_s=1.0, large_s=99.0)
    three = ask("three", INFERENCE, gpus=3)
    for most, rows in ((2, (0,)), (3, (1,))):
        plan = plan_of(room, running, three, preemption_candidates_max=most)
        assert plan is not None
        assert plan.rows == rows


def test_only_allowed_nodes_are_cleared_and_preferred_ones_first() -> None:
    room = room_of(racks=1, nodes_per_rack=3)
    running = full(room, TRAINING, TRAINING, TRAINING, started_s=(99.0, 50.0, 0.0))
    high = ask("high", INFERENCE, gpus=8)
    assert victims(plan_of(room, running, high)) == ["w0"]
    mixed_room = room_of(racks=1, nodes_per_rack=3)
    mixed = full(mixed_room, TRAINING, INFERENCE, TRAINING, started_s=(99.0, 100.0, 0.0))
    for nodes in ([False, True, True], [True, True, True]):
        assert "w1" not in victims(plan_of(mixed_room, mixed, high, allowed=nodes)), "of its own class"
    assert victims(plan_of(room, running, high, allowed=[False, True, True])) == ["w1"]
    assert victims(plan_of(room, running, high, allowed=[False, False, False])) == []
    assert victims(plan_of(room, running, high, preferred=[False, False, True])) == ["w2"]
    assert victims(plan_of(room, running, high, preferred=[False, False, False])) == ["w0"]
    assert victims(plan_of(room, running, high, spared=("w0",))) == ["w1"]


def test_a_gang_that_stands_outside_too_is_left_alone() -> None:
    room = room_of(racks=1, nodes_per_rack=3)
    gang = start(room, ask("gang", TRAINING, gpus=8, tasks=2), (*whole_node(0), *whole_node(1)))
    alone = replace(start(room, ask("alone", TRAINING, gpus=8), whole_node(2)), started_s=0.0)
    running = [replace(gang, started_s=99.0), alone]
    high = ask("high", INFERENCE, gpus=8)
    assert victims(plan_of(room, running, high, allowed=[False, True, True])) == ["alone"]
    assert victims(plan_of(room, running, high, preferred=[True, False, False])) == ["alone"], "not inside one node"
    wide = plan_of(room, running, ask("pair", INFERENCE, gpus=8, tasks=2))
    assert (victims(wide), wide and wide.level) == (["gang"], Level.RACK)


def test_the_notice_is_that_of_the_slowest_victim() -> None:
    room = room_of(racks=1, nodes_per_rack=1)
    running = [on(room, "quick", 0, range(4), 0.0), on(room, "slow", 0, range(4, 8), 0.0)]
    running[1] = replace(running[1], stop_grace_s=40.0)
    plan = plan_of(room, running, ask("high", INFERENCE, gpus=8))
    assert plan is not None
    assert plan.notice_s == 40.0


def test_a_narrow_domain_goes_before_a_wider_one_that_would_cost_less() -> None:
    room = room_of(racks=2, nodes_per_rack=1)
    running = [
        on(room, "a", 0, range(8), 0.0),
        on(room, "b0", 1, range(4), 99.0),
        on(room, "b1", 1, range(4, 8), 99.0),
    ]
    pair = ask("pair", INFERENCE, gpus=4, tasks=2)
    plan = plan_of(room, running, pair)
    assert plan is not None
    assert (plan.level, plan.rows, victims(plan)) == (Level.NODE, (1,), ["b0", "b1"])
    gang = plan_of(room, running, ask("gang", INFERENCE, gpus=8, tasks=2, required=Level.ROW))
    assert (gang and gang.level, gang and gang.rows) == (Level.ROW, (0, 1))
    assert plan_of(room, running, ask("gang", INFERENCE, gpus=8, tasks=2, required=Level.RACK)) is None
