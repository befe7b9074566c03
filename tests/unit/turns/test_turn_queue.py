"""The queue of turns by example: order, groups, aging, positions."""

from __future__ import annotations

import pytest

from harch.base.errors import InvariantBroken
from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.settings import QueueSettings
from harch.workloads.spec import SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of


def queue_of(**limits: float) -> TurnQueue:
    return TurnQueue(QueueSettings(**limits), room_of())  # type: ignore[arg-type]


def order_of(queue: TurnQueue, now_s: float = 0.0) -> list[str]:
    return [request.id for request in queue.in_order(now_s)]


def test_an_idle_hub_serves_by_priority_and_then_by_arrival() -> None:
    queue = queue_of()
    for key, priority in (("first", 1), ("second", 1), ("urgent", 3)):
        queue.add(ask(key, priority=priority), 0.0)
    assert order_of(queue) == ["urgent", "first", "second"]


def test_one_round_shares_an_empty_hub_by_weights() -> None:
    queue = queue_of(training_floor_share=0.0)
    for number in range(40):
        for turn_class in SchedulingClass:
            queue.add(ask(f"{turn_class}{number}", turn_class), 0.0)
    first = [request.turn_class for _, request in zip(range(24), queue.in_order(0.0), strict=False)]
    assert first.count(TRAINING) == 1
    assert first.count(INTERACTIVE) in (2, 3)


def test_a_flow_that_holds_much_lets_another_go_first() -> None:
    queue = queue_of()
    queue.holds("running", ask("running", tenant="rich", gpus=8), 1, 0.0)
    queue.add(ask("rich", tenant="rich", priority=3), 0.0)
    queue.add(ask("poor", tenant="poor", priority=0), 1.0)
    assert order_of(queue, 10.0) == ["poor", "rich"]
    queue.released("running", 20.0)
    queue.remove("poor")
    assert order_of(queue, 20.0) == ["rich"]


def test_what_nobody_else_waited_for_is_not_held_against_a_tenant() -> None:
    queue = queue_of(memory_s=1e9)
    queue.holds("long", ask("long", tenant="early", gpus=8), 1, 0.0)
    queue.released("long", 1e6)
    queue.add(ask("early", tenant="early"), 1e6)
    queue.add(ask("late", tenant="late"), 1e6 + 1)
    assert order_of(queue, 1e6 + 1) == ["early", "late"]


def test_credit_is_not_hoarded_while_a_tenant_asks_for_nothing() -> None:
    queue = queue_of(lookahead_s=1.0)
    for number in range(8):
        queue.add(ask(f"busy{number}", tenant="busy", gpus=8), 0.0)
    for number in range(4):
        queue.holds(f"busy{number}", ask(f"busy{number}", tenant="busy", gpus=8), 1, 0.0)
    for number in range(8):
        queue.add(ask(f"idle{number}", tenant="idle", gpus=8), 1000.0)
    for number in range(4):
        queue.released(f"busy{number}", 1000.0)
    served = [key[:4] for key in order_of(queue, 1000.0)]
    assert served[:4].count("busy") == 2, "they share from now on, instead of making up for the past"


def test_a_group_that_is_skipped_stops_its_flow_and_shape_only() -> None:
    queue = queue_of()
    for key, gpus, tenant in (("a1", 8, "a"), ("a2", 8, "a"), ("a3", 1, "a"), ("b1", 8, "b")):
        queue.add(ask(key, gpus=gpus, tenant=tenant), 0.0)
    order, seen = queue.in_order(0.0), []
    for request in order:
        seen.append(request.id)
        if request.id == "a1":
            order.skip_group()
    assert sorted(seen) == ["a1", "a3", "b1"]


def test_what_surely_ends_soon_is_tried_although_a_longer_one_of_its_shape_was_refused() -> None:
    queue = queue_of()
    queue.add(ask("long", duration_s_max=86_400.0), 0.0)
    queue.add(ask("short", duration_s_max=60.0), 0.0)
    order = queue.in_order(0.0)
    assert next(order).id == "long"
    order.skip_group()
    assert next(order).id == "short"


def test_what_a_round_yields_may_be_given_gpus_at_once() -> None:
    queue = queue_of()
    for number in range(100):
        queue.add(ask(f"r{number}"), 0.0)
    for request in queue.in_order(0.0):
        queue.holds(request.id, request, 1, 0.0)
    assert len(queue) == 0
    assert "r1" not in queue
    with pytest.raises(InvariantBroken):
        queue.holds("r1", ask("r1"), 1, 0.0)


def test_who_has_waited_too_long_is_served_although_weight_and_priority_speak_against_it() -> None:
    queue = queue_of(starvation_s=100.0, lookahead_s=60.0)
    queue.holds("other", ask("other", TRAINING, gpus=8), 1, 0.0)
    queue.holds("service", ask("service", INFERENCE, gpus=8), 1, 0.0)
    queue.add(ask("old", TRAINING, priority=0), 0.0)
    queue.add(ask("new", INFERENCE, priority=3), 99.0)
    assert order_of(queue, 99.0)[0] == "new"
    assert order_of(queue, 100.0)[0] == "old"
    position = queue.position("old", 100.0)
    assert position is not None
    assert position.aged_in_s == 0.0
    assert position.aged_ahead == 0


def test_who_did_not_fit_before_ages_like_everybody_else() -> None:
    for since_s, first in ((0.0, "old"), (0.5, "new")):
        queue = queue_of(starvation_s=100.0, lookahead_s=60.0)
        queue.holds("other", ask("other", TRAINING, gpus=8), 1, 0.0)
        queue.holds("service", ask("service", INFERENCE, gpus=8), 1, 0.0)
        queue.add(ask("old", TRAINING, priority=0), since_s)
        order = queue.in_order(since_s, lambda blocked: blocked.everybody.copy())
        assert next(order).id == "old"
        order.skip_group(blocked=True)
        queue.add(ask("new", INFERENCE, priority=3), 99.0)
        assert next(queue.in_order(100.0, lambda blocked: blocked.everybody.copy())).id == first


def test_a_place_in_the_queue_survives_a_restart() -> None:
    queue = queue_of()
    queue.add(ask("new"), 50.0)
    queue.add(ask("old"), 60.0, waiting_since_s=10.0)
    assert order_of(queue, 60.0) == ["old", "new"]


def test_a_position_says_what_is_ahead() -> None:
    queue = queue_of()
    queue.holds("much", ask("much", TRAINING, tenant="a", gpus=8), 1, 0.0)
    queue.add(ask("a1", TRAINING, tenant="a"), 0.0)
    queue.add(ask("a2", TRAINING, tenant="a"), 0.0)
    queue.add(ask("b1", TRAINING, tenant="b"), 0.0)
    queue.add(ask("i1", INFERENCE, tenant="b"), 0.0)
    position = queue.position("a2", 5.0)
    assert position is not None
    assert (position.place_in_flow, position.waiting_in_flow) == (2, 2)
    assert position.tenants_ahead == 1
    assert position.classes_ahead == (INFERENCE,)
    assert position.class_weight == pytest.approx(100 / 9), "the floor raises training to a tenth"
    assert position.waited_s == 5.0
    assert "2 of 2 pending in class training of a" in position.describe()
    assert queue.position("nobody", 5.0) is None


def test_many_removals_leave_the_order_alone() -> None:
    queue = queue_of()
    for number in range(1000):
        queue.add(ask(f"r{number}"), float(number))
    for number in range(1000):
        if number % 7:
            queue.remove(f"r{number}", 1000.0)
    queue.add(ask("r3"), 1001.0)
    assert order_of(queue, 1001.0) == [*(f"r{number}" for number in range(0, 1000, 7)), "r3"]


@pytest.mark.parametrize(
    "limits",
    [
        {"tenant_weights": {"t": 0.0}},
        {"training_floor_share": 1.0},
        {"aged_share": 0.0},
        {"lookahead_s": 0.0},
        {"class_weights": {TRAINING: 1.0}},
    ],
)
def test_settings_that_make_no_sense_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs a weight"):
        QueueSettings(**limits)  # type: ignore[arg-type]
