"""Does the engine keep scarce things, follow the fleet, learn while running, and say why?"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.policy import KernelsMissing, kernels_available
from harch.placement.policy.engine import PlacementEngine, prepare
from harch.placement.policy.lessons import LearningSchedule, RequestHistory
from harch.placement.policy.shapes import NodeShape, ShapeRequest, request_rows

BIG, SMALL = NodeShape(96_000, 400_000, 8, 0), NodeShape(32_000, 100_000, 2, 1)
SHARE, WHOLE, EIGHT, CPU_ONLY = (
    ShapeRequest(2000, 4096, 1, 500),
    ShapeRequest(8000, 16_384, 1, 1000),
    ShapeRequest(64_000, 131_072, 8, 1000),
    ShapeRequest(4000, 8192),
)
MIX = request_rows([SHARE] * 20 + [WHOLE] * 20 + [EIGHT] * 4 + [CPU_ONLY] * 6)


def taught(*shapes: NodeShape, mix: np.ndarray = MIX, **options: int) -> PlacementEngine:
    engine = PlacementEngine(shapes, models=2, **options)
    engine.learn_from(mix)
    return engine


def test_shares_meet_on_one_device() -> None:
    engine = taught(SMALL, SMALL)
    first, second = engine.place(SHARE), engine.place(SHARE)
    assert first is not None
    assert second is not None
    assert (first.node, first.devices) == (second.node, second.devices)


def test_whole_gpus_are_taken_in_index_order() -> None:
    engine = taught(BIG)
    decision = engine.place(ShapeRequest(1000, 1024, 3, 1000))
    assert decision is not None
    assert decision.devices == (0, 1, 2)


def test_several_shares_go_to_different_devices() -> None:
    engine = taught(SMALL)
    decision = engine.place(ShapeRequest(1000, 1024, 2, 400))
    assert decision is not None
    assert sorted(decision.devices) == [0, 1]
    assert engine.nodes.gpu_milli_free[0].tolist() == [600, 600]


def test_a_node_of_72_devices_is_filled_to_the_last() -> None:
    engine = taught(NodeShape(10**6, 10**6, 72, 0))
    decision = engine.place(ShapeRequest(1000, 1000, 71, 1000))
    assert decision is not None
    assert len(set(decision.devices)) == 71
    assert engine.place(ShapeRequest(0, 0, 2, 1000)) is None
    last = engine.place(ShapeRequest(0, 0, 1, 1000))
    assert last is not None
    assert engine.nodes.gpu_milli_free_sum[0] == 0


def test_scarce_models_are_kept_for_those_who_name_them() -> None:
    twin = NodeShape(32_000, 100_000, 2, 0)
    named = request_rows([WHOLE] * 10 + [WHOLE._replace(models=0b10)] * 10)
    engine = taught(*[SMALL] * 2, *[twin] * 4, mix=named)
    for _ in range(8):
        decision = engine.place(WHOLE)
        assert decision is not None
        assert engine.nodes.model[decision.node] == 0


def test_room_for_scarce_shapes_is_kept() -> None:
    """Small work fills the node that eight-GPU requests cannot use before it breaks one that they can."""
    weak = NodeShape(48_000, 400_000, 8, 0)
    mix = request_rows([WHOLE] * 30 + [EIGHT] * 10)
    engine = taught(BIG, weak, mix=mix)
    for _ in range(5):
        decision = engine.place(WHOLE)
        assert decision is not None
        assert decision.node == 1


def test_hard_checks_and_drained_nodes_are_respected() -> None:
    engine = taught(SMALL, SMALL, SMALL)
    only_last = np.array([False, False, True])
    decision = engine.choose(SHARE, only_last)
    assert decision is not None
    assert decision.node == 2
    engine.set_node_available(2, False)
    assert engine.choose(SHARE, only_last) is None
    assert engine.top_candidates(SHARE, 5, only_last) == []
    engine.set_node_available(2, True)
    assert engine.choose(SHARE, only_last) is not None


def test_what_was_refused_everywhere_is_tried_again_once_anything_comes_free() -> None:
    engine = taught(SMALL, SMALL)
    held = [engine.place(WHOLE) for _ in range(4)]
    assert engine.place(WHOLE) is None
    assert engine.place(WHOLE) is None
    assert held[3] is not None
    engine.release(WHOLE, held[3].node, held[3].devices)
    assert engine.choose(WHOLE, np.zeros(2, dtype=np.bool_)) is None  # a mask says nothing about other nodes
    engine.set_node_available(held[3].node, False)
    assert engine.place(WHOLE) is None
    engine.set_node_available(held[3].node, True)
    assert engine.place(WHOLE) is not None


def test_a_mask_of_the_wrong_form_is_refused() -> None:
    engine = taught(SMALL, SMALL)
    with pytest.raises(ValueError, match="one per node"):
        engine.choose(SHARE, np.array([True]))


def test_what_nothing_can_hold_is_refused() -> None:
    engine = taught(SMALL)
    assert engine.place(EIGHT) is None
    assert engine.place(SHARE._replace(models=0b01)) is None


def test_nothing_is_given_twice_or_given_back_twice() -> None:
    engine = taught(SMALL)
    engine.take(WHOLE, 0, (1,))
    with pytest.raises(InvariantBroken):
        engine.take(WHOLE, 0, (1,))
    engine.release(WHOLE, 0, (1,))
    with pytest.raises(InvariantBroken):
        engine.release(WHOLE, 0, (1,))
    with pytest.raises(InvariantBroken):
        engine.take(WHOLE, 0, (0, 1))
    with pytest.raises(InvariantBroken):
        engine.take(ShapeRequest(0, 0, 2, 400), 0, (0, 0))
    with pytest.raises(InvariantBroken):
        engine.take(WHOLE, 5, (0,))


def test_candidates_come_best_first_and_their_parts_add_up() -> None:
    engine = taught(BIG, SMALL, SMALL, BIG)
    engine.place(WHOLE)
    candidates = engine.top_candidates(SHARE, 3)
    assert len(candidates) == 3
    scores = [candidate.score for candidate in candidates]
    assert scores == sorted(scores, reverse=True)
    for candidate in candidates:
        assert sum(candidate.parts) == pytest.approx(candidate.score)
        assert candidate.parts.model_price <= 0
        assert candidate.parts.block_price <= 1e-9
    assert engine.choose(SHARE) == candidates[0]


def test_lessons_built_aside_see_what_changed_meanwhile() -> None:
    """Preparing on a snapshot and adopting later gives the same next decision as learning at once."""
    aside, at_once = (taught(BIG, SMALL, SMALL) for _ in range(2))
    for engine in (aside, at_once):
        for request in (SHARE, WHOLE, SHARE, CPU_ONLY):
            engine.place(request)
    prepared = prepare(aside.snapshot())
    for engine in (aside, at_once):
        engine.take(WHOLE, 0, (7,))
        engine.take(SHARE, 2, (1,))
    aside.adopt(prepared)
    at_once.relearn()
    assert aside.top_candidates(SHARE, 3) == at_once.top_candidates(SHARE, 3)


def test_learning_follows_the_schedule_and_a_drifting_mix() -> None:
    history = RequestHistory(limit=50, schedule=LearningSchedule(first_arrivals=(10,), every_arrivals=50))
    engine = PlacementEngine([BIG] * 4, models=2, history=history)
    due = 0
    for index in range(200):
        request = SHARE if index < 100 else WHOLE
        if engine.learning_due:
            due += 1
            engine.relearn()
        decision = engine.place(request)
        if decision is not None:
            engine.release(request, decision.node, decision.devices)
    assert due == 4
    assert set(engine.history.rows()[:, 3].tolist()) == {1000}


def test_where_work_departs_shares_go_to_the_fullest_device_that_takes_them() -> None:
    """Lent to the emptier device, the share would keep both from falling free as a whole."""
    engine = taught(SMALL)
    engine.take(ShapeRequest(1000, 1024, 1, 600), 0, (0,))
    engine.take(ShapeRequest(1000, 1024, 1, 300), 0, (1,))
    engine.history.departed = engine.history.taken
    engine.learn_from(MIX)
    assert engine._lessons.turnover == 1.0
    decision = engine.choose(ShapeRequest(1000, 1024, 1, 300))
    assert decision is not None
    assert decision.devices == (0,)


def test_a_scarce_model_is_priced_by_what_will_be_free_again_where_work_departs() -> None:
    named = request_rows([SHARE] * 20 + [SHARE._replace(models=0b10)] * 20)
    filling, turning = (taught(BIG, SMALL, mix=named) for _ in range(2))
    turning.history.taken = turning.history.departed = 10.0
    turning.learn_from(named)
    for engine in (filling, turning):
        engine.take(WHOLE, 1, (0,))
        engine.refresh_prices()
    assert 0.0 < turning._prices.model[1] < filling._prices.model[1]


def test_kinds_beyond_the_slots_make_room_and_decisions_stay_the_same() -> None:
    narrow, wide = taught(BIG, SMALL, kind_slots_max=2), taught(BIG, SMALL)
    for index in range(60):
        request = ShapeRequest(500 * (index % 5), 1024, 1, 100 + 100 * (index % 4))
        assert narrow.place(request) == wide.place(request)


def test_without_numba_there_is_a_clear_error_and_the_rest_imports() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import harch.placement, harch.placement.policy.shapes, harch.placement.policy.lessons\n"
        "try:\n    import harch.placement.policy.engine\n"
        "except harch.placement.policy.KernelsMissing as missing:\n    print(missing)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'harch[kernels]'" in done.stdout
    assert issubclass(KernelsMissing, ImportError)
    assert kernels_available()
