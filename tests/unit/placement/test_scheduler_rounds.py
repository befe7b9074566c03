"""Rounds of the scheduler by example: limits of a round, holds and estimates, clearing, who is stopped and moved."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from harch.placement.defragmentation import DefragmentationPlan, Move, plan_defragmentation
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.queueing.running import RunningRequest
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.placement.scheduler import (
    CLEARING_SLACK_S,
    PREEMPT_AGAIN_S,
    PREEMPTIONS_TRIED_MAX,
    Scheduler,
    preview,
)
from harch.workloads.spec import Gang, Level, Resources, SchedulingClass
from unit.placement.mixed_hub import mixed_hub, request_of

ALL, FOUR = tuple(range(8)), (0, 1, 2, 3)
INFERENCE, TRAINING = SchedulingClass.INFERENCE, SchedulingClass.TRAINING


def made(settings: QueueSettings | None = None, **limits: tuple[float, ...]) -> Scheduler:
    scheduler = Scheduler(mixed_hub(**limits), settings or QueueSettings())  # type: ignore[arg-type]
    scheduler.serve(tuple(scheduler.room.row_of), True)
    scheduler.room.process_slots_free = 50
    return scheduler


def big(gpus: int, tasks: int = 1, **fields: Any) -> PlacementRequest:
    return request_of(Resources(gpus=gpus, gpu_model="big"), tasks, **fields)


def book(scheduler: Scheduler, request: PlacementRequest, *slots: TaskSlot, started_s: float = 0.0) -> None:
    scheduler.book(request, slots, started_s=started_s, now_s=started_s)


def fill(scheduler: Scheduler, **fields: Any) -> None:
    """One workload on each node of eight big GPUs."""
    for row in (0, 1, 5):
        book(scheduler, big(8, key=f"on-{row}", **fields), TaskSlot(row, ALL))


def starts(scheduler: Scheduler, now_s: float, placed_max: int = 100) -> list[str]:
    return [item.request.id for item in scheduler.plan(now_s=now_s, placed_max=placed_max).assignments]


# A round


def test_a_round_ends_at_its_limit_and_says_so() -> None:
    scheduler = made()
    for number in range(4):
        scheduler.submit(request_of(Resources(gpus=1), key=f"w{number}"), now_s=number)
    for placed_max, placed, complete in ((1, 1, False), (2, 2, False), (9, 1, True), (9, 0, True)):
        plan = scheduler.plan(now_s=10.0, placed_max=placed_max)
        assert (len(plan.assignments), plan.complete) == (placed, complete)
    assert scheduler.plan(now_s=10.0, placed_max=0).complete is False


def test_an_assignment_says_where_why_and_how_fast() -> None:
    scheduler = made()
    scheduler.submit(big(2, key="pair"), now_s=0)
    scheduler.submit(big(1, key="one"), now_s=1)
    pair, one = scheduler.plan(now_s=2.0, placed_max=9).assignments
    assert [(task.node_id, task.gpu_ids) for task in pair.tasks] == [("n0", ("n0-g0", "n0-g1"))]
    assert (pair.prediction.level, pair.prediction.gb_per_s, pair.prediction.slowdown) == (Level.ISLAND, 360.0, 1.0)
    assert pair.score == pair.parts["best_fit"]
    assert pair.why.startswith("best-fit: leaves 6 GPUs free on n0; in one island")
    assert one.why == "best-fit: leaves 5 GPUs free on n0"
    assert scheduler.running["pair"].started_s == 2.0
    assert scheduler.subject in {"pair", "one"}
    scheduler.plan(now_s=3.0, placed_max=9)
    assert scheduler.subject == ""


def test_candidates_are_rounded_for_people() -> None:
    scheduler = made()
    book(scheduler, request_of(Resources(gpus=1, gpu_fraction=0.3), key="share"), TaskSlot(4, (0,)))
    first, second = scheduler.candidates(request_of(Resources(gpus=1)), now_s=0, limit=2)
    assert (first.node_id, first.gpus_free, second.node_id) == ("n4", 1, "n2")
    score = -(700 + 62_000 / 1e7)
    assert (first.score, first.parts) == (round(score, 3), {"best_fit": round(score, 3)})


def test_what_is_over_its_quota_does_not_start_and_stops_nobody() -> None:
    scheduler = made(QueueSettings(tenant_quotas={"t": Quota(gpus_held_max=4)}))
    fill(scheduler)
    for row in (0, 1, 5):
        scheduler.queue.released(f"on-{row}", 0.0)
    scheduler.submit(big(8, key="large", scheduling_class=INFERENCE), now_s=0)
    plan = scheduler.plan(now_s=1.0, placed_max=9)
    assert (plan.assignments, plan.preemptions, plan.reservations) == ((), (), ())
    assert scheduler.hold(big(8, key="held"), now_s=1.0, until_s=9.0) is None


def test_the_request_on_which_a_decision_fails_is_known() -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no layout")

    scheduler = made()
    scheduler.lay_out = fails  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="no layout"):
        scheduler.hold(big(8, 2, key="pair"), now_s=0.0, until_s=9.0)
    assert scheduler.subject == "pair"
    scheduler.submit(big(8, 2, key="next"), now_s=1.0)
    with pytest.raises(RuntimeError, match="no layout"):
        scheduler.plan(now_s=1.0, placed_max=9)
    assert scheduler.subject == "next"


# Holding and estimating


def test_a_hold_is_booked_and_counts_as_about_to_end() -> None:
    scheduler = made()
    assignment = scheduler.hold(big(8, key="loan"), now_s=5.0, until_s=65.0)
    assert assignment is not None
    assert assignment.slots == (TaskSlot(5, ALL),)
    assert scheduler.stopping == {"loan": 65.0}
    fill_rest = [scheduler.hold(big(8, key=f"h{n}"), now_s=5.0, until_s=65.0) for n in range(3)]
    assert [found is None for found in fill_rest] == [False, False, True]
    assert "h2" not in scheduler.stopping


def test_the_start_of_what_waits_is_estimated_from_promises() -> None:
    scheduler = made(QueueSettings(backfill_margin_s=30.0))
    assert scheduler.start_estimate_s(big(8), now_s=100.0) == 0.0
    for row, duration_s in ((0, 1000.0), (1, 500.0), (5, 2000.0)):
        ends = replace(big(8, key=f"on-{row}"), duration_s_max=duration_s, stop_grace_s=10.0)
        book(scheduler, ends, TaskSlot(row, ALL))
    assert scheduler.start_estimate_s(big(8), now_s=100.0) == 500.0 + 10.0 + 30.0 - 100.0
    assert scheduler.start_estimate_s(big(8, 2), now_s=100.0) == 1000.0 + 10.0 + 30.0 - 100.0
    assert scheduler.start_estimate_s(big(8, 4), now_s=100.0) is None
    endless = made()
    fill(endless)
    assert endless.start_estimate_s(big(8), now_s=100.0) is None, "nothing promised an end"


# Making room


def test_an_urgent_request_stops_the_least_lost_work_and_is_not_tried_again_at_once() -> None:
    scheduler = made()
    for row, started_s in ((0, 0.0), (1, 50.0), (5, 20.0)):
        book(scheduler, big(8, key=f"on-{row}", preemptible=True), TaskSlot(row, ALL), started_s=started_s)
    urgent = big(8, key="urgent", scheduling_class=INFERENCE, submitted_s=100.0)
    scheduler.submit(urgent, now_s=100.0)
    (preemption,) = scheduler.plan(now_s=100.0, placed_max=9).preemptions
    assert [victim.request.id for victim in preemption.victims] == ["on-1"]
    margin_s = scheduler.settings.backfill_margin_s
    assert scheduler.stopping == {"on-1": 100.0 + preemption.victims[0].stop_grace_s + margin_s}
    assert scheduler.spared(100.0) == {"on-1"}
    assert scheduler.plan(now_s=101.0, placed_max=9).preemptions == (), "one is enough"


def test_a_search_in_vain_is_repeated_after_a_while() -> None:
    scheduler = made()
    fill(scheduler, preemptible=False)
    scheduler.submit(big(8, key="urgent", scheduling_class=INFERENCE), now_s=0.0)
    assert scheduler.plan(now_s=0.0, placed_max=9).preemptions == ()
    for row in (0, 1, 5):
        scheduler.ended(f"on-{row}", now_s=0.5)
        book(scheduler, big(8, key=f"again-{row}", preemptible=True), TaskSlot(row, ALL), started_s=0.5)
    assert scheduler.plan(now_s=PREEMPT_AGAIN_S - 0.1, placed_max=9).preemptions == ()
    assert len(scheduler.plan(now_s=PREEMPT_AGAIN_S, placed_max=9).preemptions) == 1


def test_small_work_leaves_the_nodes_that_are_kept_for_what_has_waited_long() -> None:
    scheduler = made(QueueSettings(makes_room_after_s=600.0))
    for row in (0, 1, 5):
        for device in range(8):
            small = big(1, key=f"s{row}-{device}", preemptible=True, scheduling_class=TRAINING)
            book(scheduler, small, TaskSlot(row, (device,)))
    scheduler.submit(big(8, key="large"), now_s=0.0)
    assert scheduler.plan(now_s=0.0, placed_max=9).preemptions == ()
    (kept,) = scheduler.reservations
    now_s = 600.0
    assert scheduler.plan(now_s=now_s - 1.0, placed_max=9).preemptions == ()
    (found,) = scheduler.plan(now_s=now_s, placed_max=9).preemptions
    victims = {victim.request.id for victim in found.victims}
    (row,) = kept.rows
    assert victims == {f"s{row}-{device}" for device in range(8)}
    assert set(scheduler.stopping) == victims
    assert scheduler.past_moves.spared(scheduler.settings, now_s) == victims
    assert scheduler.past.spared(scheduler.settings, now_s) == set(), "not for a higher class"
    assert scheduler.plan(now_s=now_s + 1.0, placed_max=9).preemptions == ()
    for victim in victims:
        scheduler.ended(victim, now_s=now_s + 5.0)
    assert starts(scheduler, now_s + 5.0) == ["large"]


def test_a_round_looks_for_victims_twice_and_the_next_round_for_the_others() -> None:
    scheduler = made()
    fill(scheduler, preemptible=True)
    for gpus in (8, 7, 6):
        scheduler.submit(big(gpus, key=f"urgent-{gpus}", scheduling_class=INFERENCE), now_s=0.0)
    first = scheduler.plan(now_s=0.0, placed_max=9).preemptions
    assert len(first) == PREEMPTIONS_TRIED_MAX == 2
    for plan in first:
        for victim in plan.victims:
            scheduler.ended(victim.request.id, now_s=1.0)
    second = scheduler.plan(now_s=1.0, placed_max=9)
    started = {item.request.id for item in second.assignments}
    assert started == {plan.request.id for plan in first}
    assert {plan.request.id for plan in second.preemptions} | started == {"urgent-6", "urgent-7", "urgent-8"}


def test_the_lowest_class_stops_nobody() -> None:
    scheduler = made()
    fill(scheduler, preemptible=True)
    scheduler.submit(big(8, key="waits"), now_s=0.0)
    assert scheduler.plan(now_s=0.0, placed_max=9).preemptions == ()


def scattered(scheduler: Scheduler, **fields: Any) -> None:
    """One small workload on each node of eight, younger ones on later nodes."""
    for number, row in enumerate((0, 1, 5)):
        book(scheduler, big(1, key=f"small-{row}", **fields), TaskSlot(row, (0,)), started_s=10.0 * number)


def test_a_plan_moves_the_work_that_loses_least_and_is_cleared_for_its_request() -> None:
    scheduler = made()
    scattered(scheduler, preemptible=True)
    large = big(8, key="large", submitted_s=100.0)
    plan = scheduler.plan_defragmentation(large, now_s=100.0)
    assert plan is not None
    assert [move.running.request.id for move in plan.moves] == ["small-5"]
    assert (plan.slots, plan.level, plan.rows) == ((TaskSlot(5, ALL),), Level.NODE, (5,))
    assert plan.moves[0].to == (TaskSlot(0, (1,)),)
    assert plan.lost_gpu_s == plan.moves[0].lost_gpu_s == 80.0
    assert plan.describe() == "moving 1 (small-5) frees one node for large; 80 GPU-seconds are repeated"
    scheduler.submit(large, now_s=100.0)
    scheduler.stops("small-5", now_s=100.0)
    ends_s = scheduler.stopping["small-5"]
    scheduler.clear(plan, now_s=100.0)
    assert scheduler.clearing is not None
    assert scheduler.clearing.until_s == ends_s + CLEARING_SLACK_S
    scheduler.ended("small-5", now_s=105.0)
    scheduler.submit(big(1, key="filler", submitted_s=0.0), now_s=105.0)
    assert "large" in starts(scheduler, 105.0)
    assert scheduler.running["large"].slots == (TaskSlot(5, ALL),)
    assert scheduler.clearing is None


@pytest.mark.parametrize(("waits", "later_s", "kept"), [(True, 0.0, True), (False, 0.0, False), (True, 1e6, False)])
def test_a_clearing_ends_once_its_request_is_gone_or_its_time_is_over(waits: bool, later_s: float, kept: bool) -> None:
    scheduler = made()
    scattered(scheduler, preemptible=True)
    large = big(8, key="large")
    plan = scheduler.plan_defragmentation(large, now_s=100.0)
    assert plan is not None
    if waits:
        scheduler.submit(large, now_s=100.0)
    scheduler.stops("small-5", now_s=100.0)
    scheduler.clear(plan, now_s=100.0)
    scheduler.plan(now_s=101.0 + later_s, placed_max=9)
    assert (scheduler.clearing is not None) is kept


def test_a_clearing_without_moves_is_kept_for_a_while_from_now() -> None:
    scheduler = made()
    plan = DefragmentationPlan(big(8, key="large"), (TaskSlot(5, ALL),), Level.NODE, (5,), ())
    scheduler.clear(plan, now_s=100.0)
    assert scheduler.clearing is not None
    assert scheduler.clearing.until_s == 100.0 + CLEARING_SLACK_S


def test_a_clearing_lasts_until_the_last_that_moves_has_ended() -> None:
    scheduler = made()
    scattered(scheduler, preemptible=True)
    scheduler.stops("small-5", now_s=100.0)
    scheduler.stops("small-1", now_s=130.0)
    moves = tuple(Move(scheduler.running[key], (), 0.0) for key in ("small-1", "small-5"))
    scheduler.clear(DefragmentationPlan(big(8, key="large"), (), Level.NODE, (1,), moves), now_s=130.0)
    assert scheduler.clearing is not None
    assert scheduler.clearing.until_s == scheduler.stopping["small-1"] + CLEARING_SLACK_S


def test_what_stops_already_is_not_moved() -> None:
    scheduler = made()
    scattered(scheduler, preemptible=True)
    scheduler.stops("small-5", now_s=100.0)
    plan = scheduler.plan_defragmentation(big(8, key="large"), now_s=100.0)
    assert plan is not None
    assert [move.running.request.id for move in plan.moves] == ["small-1"]


# Plans to move work, apart from a scheduler


def running(
    scheduler: Scheduler, request: PlacementRequest, *slots: TaskSlot, started_s: float = 0.0
) -> RunningRequest:
    for slot in slots:
        scheduler.room.take(request.needs, slot, exclusive=request.topology.exclusive)
    if request.runs_process:
        scheduler.room.process_slots_free -= len(slots)
    return RunningRequest(request, slots, started_s, stop_grace_s=10.0)


def test_no_plan_is_made_for_what_fits_or_needs_no_gpu_or_may_not_move() -> None:
    scheduler = made()
    room = scheduler.room
    items = [running(scheduler, big(1, key=f"s{row}", preemptible=True), TaskSlot(row, (0,))) for row in (0, 1, 5)]
    assert plan_defragmentation(room, big(7), items, 100.0, moves_max=4) is None
    assert plan_defragmentation(room, request_of(Resources(cpus=64), 9), items, 100.0, moves_max=4) is None
    assert plan_defragmentation(room, big(8), items, 100.0, moves_max=4) is not None
    assert plan_defragmentation(room, big(8), items, 100.0, moves_max=0) is None
    stay = [RunningRequest(replace(item.request, preemptible=False), item.slots, 0.0) for item in items]
    assert plan_defragmentation(room, big(8), stay, 100.0, moves_max=4) is None


def test_only_as_many_move_as_are_needed_and_never_more_than_the_limit() -> None:
    """Node 5 holds three small ones; two of them are young. All must leave, or none."""
    scheduler = made()
    room = scheduler.room
    items = [
        running(scheduler, big(1, key=f"s{number}", preemptible=True), TaskSlot(5, (number,)), started_s=10.0 * number)
        for number in range(3)
    ]
    items += [running(scheduler, big(4, key=f"stays-{row}", preemptible=False), TaskSlot(row, FOUR)) for row in (0, 1)]
    assert plan_defragmentation(room, big(8), items, 100.0, moves_max=2) is None
    plan = plan_defragmentation(room, big(8), items, 100.0, moves_max=3)
    assert plan is not None
    assert [(move.running.request.id, move.lost_gpu_s) for move in plan.moves] == [
        ("s0", 100.0),
        ("s1", 90.0),
        ("s2", 80.0),
    ]
    assert {slot.row for move in plan.moves for slot in move.to} <= {0, 1}
    six = plan_defragmentation(room, big(6), items, 100.0, moves_max=3)
    assert six is not None
    assert [move.running.request.id for move in six.moves] == ["s2"], "the youngest is enough"


def test_whoever_leaves_needs_a_place_to_go() -> None:
    scheduler = made()
    items = [running(scheduler, big(4, key="mover", preemptible=True), TaskSlot(5, FOUR))]
    items += [
        running(scheduler, big(5, key=f"stays-{row}", preemptible=False), TaskSlot(row, (0, 1, 2, 3, 4)))
        for row in (0, 1)
    ]
    assert plan_defragmentation(scheduler.room, big(8), items, 100.0, moves_max=9) is None
    scheduler.room.give_back(Resources(gpus=5, gpu_model="big"), items[1].slots[0])
    room_made = [items[0], running(scheduler, big(4, key="less", preemptible=False), TaskSlot(0, FOUR)), items[2]]
    plan = plan_defragmentation(scheduler.room, big(8), room_made, 100.0, moves_max=9)
    assert plan is not None
    assert plan.moves[0].to == (TaskSlot(0, (4, 5, 6, 7)),)


def test_the_largest_is_rehoused_first_and_processes_are_counted() -> None:
    scheduler = made()
    small = running(scheduler, big(1, key="a-small", preemptible=True, command=("x",)), TaskSlot(5, (0,)))
    large = running(scheduler, big(3, key="b-large", preemptible=True), TaskSlot(5, (1, 2, 3)))
    items = [small, large]
    items += [running(scheduler, big(4, key=f"stays-{row}", preemptible=False), TaskSlot(row, FOUR)) for row in (0, 1)]
    plan = plan_defragmentation(scheduler.room, big(8), items, 100.0, moves_max=9)
    assert plan is not None
    assert [(move.running.request.id, move.to) for move in plan.moves] == [
        ("b-large", (TaskSlot(0, (4, 5, 6)),)),
        ("a-small", (TaskSlot(0, (7,)),)),
    ]
    scheduler.room.process_slots_free = 0
    processes = big(8, command=("x",))
    assert plan_defragmentation(scheduler.room, processes, items, 100.0, moves_max=9) is None
    scheduler.room.process_slots_free = 1
    assert plan_defragmentation(scheduler.room, processes, items, 100.0, moves_max=9) is not None


@pytest.mark.parametrize(
    ("required", "level", "rows"),
    [(Level.NODE, None, ()), (Level.RACK, Level.RACK, (0, 1)), (Level.HUB, Level.RACK, (0, 1))],
)
def test_the_narrowest_domain_that_holds_a_gang_is_cleared(
    required: Level, level: Level | None, rows: tuple[int, ...]
) -> None:
    scheduler = made()
    items = [
        running(scheduler, request_of(Resources(gpus=1), key=f"s{row}", preemptible=True), TaskSlot(row, (0,)))
        for row in (0, 1, 5)
    ]
    plan = plan_defragmentation(scheduler.room, big(8, 2, required=required), items, 100.0, moves_max=9)
    assert (None if plan is None else plan.level) is level
    if plan is not None:
        assert plan.rows == rows
        assert [slot.row for slot in plan.slots] == list(rows)


def test_a_row_is_cleared_for_what_no_rack_holds_and_the_hub_for_what_no_row_holds() -> None:
    scheduler = made()
    items = [running(scheduler, request_of(Resources(gpus=1), key="on-2", preemptible=True), TaskSlot(2, (0,)))]
    row = request_of(Resources(gpus=4), 6, required=Level.ROW)
    plan = plan_defragmentation(scheduler.room, row, items, 100.0, moves_max=9)
    assert plan is not None
    assert (plan.level, plan.rows) == (Level.ROW, (0, 1, 2, 3))
    assert plan.moves[0].to[0].row in (4, 5)
    whole = request_of(Resources(gpus=4), 8)
    plan = plan_defragmentation(scheduler.room, whole, items, 100.0, moves_max=9)
    assert plan is not None
    assert (plan.level, plan.rows) == (Level.HUB, (0, 1, 2, 3, 4, 5))
    assert plan.moves[0].to[0].row == 4


def test_only_the_given_nodes_are_cleared() -> None:
    scheduler = made()
    items = [
        running(scheduler, big(1, key=f"s{row}", preemptible=True), TaskSlot(row, (0,)), started_s=10.0 * row)
        for row in (0, 1, 5)
    ]
    within = scheduler.room.rack == 0
    plan = plan_defragmentation(scheduler.room, big(8), items, 100.0, moves_max=9, within=within)
    assert plan is not None
    assert (plan.rows, plan.moves[0].running.request.id) == ((1,), "s1")
    scheduler.room.cordon("n1", True)
    plan = plan_defragmentation(scheduler.room, big(8), items, 100.0, moves_max=9, within=within)
    assert plan is not None
    assert plan.rows == (0,)


@pytest.mark.parametrize(
    ("duration_s", "lost_gpu_s", "pays"),
    [(100.0, 799.0, True), (100.0, 800.0, False), (None, 28_799.0, True), (None, 28_800.0, False)],
)
def test_a_plan_pays_where_more_starts_than_is_done_again(duration_s: float, lost_gpu_s: float, pays: bool) -> None:
    mover = RunningRequest(big(1, key="m"), (TaskSlot(0, (0,)),), 0.0)
    request = replace(big(8), duration_s_max=duration_s)
    moves = (Move(mover, (), lost_gpu_s - 1.0), Move(mover, (), 1.0))
    plan = DefragmentationPlan(request, (), Level.NODE, (0,), moves)
    assert request.gpu_milli_total == 8 * GPU_MILLI
    assert (plan.lost_gpu_s, plan.pays) == (lost_gpu_s, pays)


# Looking ahead


def test_a_preview_goes_on_until_the_round_is_complete() -> None:
    scheduler = made()
    for number in range(3):
        scheduler.submit(big(8, key=f"w{number}"), now_s=number)
    scheduler.submit(big(8, key="waits"), now_s=9)
    seen = preview(scheduler, now_s=10.0)
    assert seen.starts == {"w0", "w1", "w2"}
    assert (set(seen.after.running), seen.now_s) == ({"w0", "w1", "w2"}, 10.0)
    assert scheduler.running == {}
    assert seen.after.hub is scheduler.hub


def test_a_higher_class_takes_what_is_kept_for_a_lower_one_once_it_has_waited() -> None:
    scheduler = made(QueueSettings(kept_yields_after_s=60.0))
    fill(scheduler, preemptible=False)
    scheduler.submit(big(8, key="kept", submitted_s=0.0), now_s=0.0)
    scheduler.plan(now_s=0.0, placed_max=9)
    assert [kept.request.id for kept in scheduler.reservations] == ["kept"]
    urgent = big(8, key="urgent", scheduling_class=INFERENCE, submitted_s=100.0)
    assert len(scheduler.binding(urgent, 159.9)) == 1
    assert scheduler.binding(urgent, 160.0) == []
    assert len(scheduler.binding(big(8, key="like", submitted_s=100.0), 500.0)) == 1
    scheduler.withdraw("kept")
    assert scheduler.reservations == ()


def test_a_gang_that_may_degrade_is_looked_at_again_when_that_is_due() -> None:
    scheduler = made()
    book(scheduler, big(8, key="on-0", preemptible=False), TaskSlot(0, ALL))
    elastic = big(8, 3, key="elastic", gang=Gang(tasks_min=2, degrade_after_s=60.0))
    scheduler.submit(elastic, now_s=0.0)
    assert starts(scheduler, 0.0) == []
    assert starts(scheduler, 59.0) == []
    assert starts(scheduler, 60.0) == ["elastic"]
    assert len(scheduler.running["elastic"].slots) == 2
