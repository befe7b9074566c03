"""Is memory bounded, is learning on time, and do lessons say what the history says?"""

from __future__ import annotations

import numpy as np
import pytest

from harch.placement.policy.lessons import (
    ITEM_FIELDS,
    ITEM_GPUS,
    ITEM_MILLI_AHEAD,
    KINDS_MAX,
    SEQUENCE_LENGTH,
    SEQUENCES,
    LearningSchedule,
    Lessons,
    RequestHistory,
    common_kinds,
    learn,
)
from harch.placement.policy.shapes import (
    AMOUNT_MAX,
    GIVE_BACK,
    TAKE,
    NodeShape,
    ShapeRequest,
    canonical,
    empty_nodes,
    request_rows,
)

NODES = empty_nodes([NodeShape(96_000, 400_000, 8, 0)] * 4 + [NodeShape(32_000, 100_000, 2, 1)] * 8)


def rows(*requests: ShapeRequest) -> np.ndarray:
    return request_rows(canonical(request, 2) for request in requests)


def fields(lessons: Lessons) -> np.ndarray:
    return lessons.items.reshape(len(lessons.items), -1, ITEM_FIELDS, SEQUENCES)


def test_the_ring_keeps_the_last_requests_oldest_first() -> None:
    history = RequestHistory(limit=3)
    for cpu_milli in range(5):
        history.add(ShapeRequest(cpu_milli, 0))
    assert history.rows()[:, 0].tolist() == [2, 3, 4]
    assert history.arrivals == 5


def test_learning_is_due_at_doubling_counts_and_then_steadily() -> None:
    schedule = LearningSchedule(first_arrivals=(8, 16), every_arrivals=100)
    learned_at, points = 0, []
    for arrivals in range(400):
        if schedule.due(arrivals, learned_at):
            points.append(arrivals)
            learned_at = arrivals
    assert points == [8, 16, 116, 216, 316]


def test_turnover_is_departures_per_placement_and_follows_the_present() -> None:
    history = RequestHistory()
    assert history.turnover == 0.0
    for _ in range(10):
        history.moved(TAKE)
    assert history.turnover == 0.0, "nothing leaves: the fleet fills up"
    history.learned(0)
    for _ in range(10):
        history.moved(TAKE)
        history.moved(GIVE_BACK)
    assert history.turnover == pytest.approx(10 / 15)
    for _ in range(20):
        history.moved(GIVE_BACK)
    assert history.turnover == 1.0


def test_every_sequence_is_a_fair_picture_of_the_mix() -> None:
    lessons = learn(rows(*[ShapeRequest(1000, 1024, 1, 500)] * 300, *[ShapeRequest(2000, 1024)] * 100), NODES, 2)
    items = fields(lessons)
    assert items.shape == (2, SEQUENCE_LENGTH, ITEM_FIELDS, SEQUENCES)
    gpu_items = (items[0, :, ITEM_GPUS] == 1).sum(axis=0)
    assert gpu_items.min() >= SEQUENCE_LENGTH * 3 // 4 - 1
    assert gpu_items.max() <= SEQUENCE_LENGTH * 3 // 4 + 1


def test_sequences_hold_only_what_a_model_may_receive() -> None:
    lessons = learn(rows(*[ShapeRequest(1000, 1024, 1, 500, 0b10)] * 50), NODES, 2)
    items = fields(lessons)
    assert not items[0, :, ITEM_GPUS].any()
    assert (items[0, :, ITEM_MILLI_AHEAD] == AMOUNT_MAX).all()  # a rollout stops at once
    assert (items[1, :, ITEM_GPUS] == 1).all()


def test_the_same_history_teaches_the_same_lessons() -> None:
    history = rows(
        *[ShapeRequest(1000 * (i % 7), 512 * (i % 5), i % 3, 300 if i % 3 == 1 else 1000) for i in range(200)]
    )
    first, second = learn(history, NODES, 2), learn(history[::-1].copy(), NODES, 2)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)


def test_the_number_of_kinds_is_bounded_and_the_commonest_stay() -> None:
    rare = [ShapeRequest(cpu_milli, 0, 1, 100) for cpu_milli in range(KINDS_MAX + 50)]
    kinds, counts = common_kinds(rows(*rare, *[ShapeRequest(7, 0, 1, 900)] * 5), coverage=1.0)
    assert len(kinds) == KINDS_MAX
    assert [7, 1, 900, 0b11] in kinds.tolist()
    assert counts.max() == 5


def test_coverage_drops_the_rare_tail() -> None:
    kinds, _ = common_kinds(rows(*[ShapeRequest(1, 0, 1, 500)] * 95, *[ShapeRequest(2, 0, 1, 500)] * 5), coverage=0.95)
    assert kinds[:, 0].tolist() == [1]


def test_model_shares_count_demand_and_leave_out_any() -> None:
    lessons = learn(
        rows(ShapeRequest(0, 0, 1, 500, 0b01), ShapeRequest(0, 0, 1, 500, 0b11), ShapeRequest(0, 0, 1, 1000)), NODES, 2
    )
    assert lessons.set_models.tolist() == [0b01]
    assert lessons.set_shares.tolist() == [0.25]


def test_a_shape_that_few_nodes_hold_is_a_class_of_its_own() -> None:
    fleet = empty_nodes([NodeShape(96_000, 400_000, 8, 0)] * 9 + [NodeShape(200_000, 400_000, 8, 0)])
    common, hard = ShapeRequest(64_000, 1, 8, 1000), ShapeRequest(150_000, 1, 8, 1000)
    lessons = learn(rows(*[common] * 9, hard), fleet, 2)
    assert sorted(lessons.block_cpu_milli.tolist()) == [64_000, 150_000]
    assert lessons.block_cpu_milli[0] == 150_000, "the class under most pressure comes first"


def test_the_fragment_counts_only_where_cpu_is_short() -> None:
    plenty = learn(rows(*[ShapeRequest(1000, 1, 1, 1000)] * 10), NODES, 2).fragment_weight
    short = learn(rows(*[ShapeRequest(50_000, 1, 1, 1000)] * 10), NODES, 2).fragment_weight
    assert plenty < 0.001
    assert short == pytest.approx(0.1)


def test_no_history_teaches_nothing_and_breaks_nothing() -> None:
    lessons = learn(np.zeros((0, 5), dtype=np.int64), NODES, 2)
    assert lessons.items.size == 0
    assert len(lessons.block_gpus) == 0


@pytest.mark.parametrize(
    "request_",
    [
        ShapeRequest(-1, 0),
        ShapeRequest(0, 2**31),
        ShapeRequest(0, 0, 73, 1000),
        ShapeRequest(0, 0, 1, 0),
        ShapeRequest(0, 0, 1, 1001),
    ],
)
def test_requests_that_mean_nothing_are_refused(request_: ShapeRequest) -> None:
    with pytest.raises(ValueError, match="must be in"):
        canonical(request_, 2)


@pytest.mark.parametrize("shapes", [[], [NodeShape(1, 1, 73, 0)], [NodeShape(1, 1, 1, 62)], [NodeShape(-1, 1, 1, 0)]])
def test_fleets_beyond_the_limits_are_refused(shapes: list[NodeShape]) -> None:
    with pytest.raises(ValueError, match=r"node|amounts"):
        empty_nodes(shapes)
