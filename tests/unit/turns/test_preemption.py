"""Preemption by example: whom, how many, how often."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.placement.queueing.preemption import PastPreemptions, PreemptionPlan, plan_preemption
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest
from harch.placement.queueing.settings import QueueSettings
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
