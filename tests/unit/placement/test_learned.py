"""The learned policy as a scorer: its arrays follow the room, and its answers are those of its engine."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from harch.placement.learned import LearnedPolicy
from harch.placement.policy.lessons import LearningSchedule, RequestHistory
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.policy.shapes import canonical
from harch.placement.room import TaskSlot
from harch.placement.state import PlacementState
from harch.workloads.spec import Resources
from unit.placement.mixed_hub import mixed_hub, request_of

EVERYWHERE = np.ones(6, np.bool_)


def made(history: RequestHistory | None = None) -> tuple[PlacementState, LearnedPolicy]:
    state = PlacementState(mixed_hub())
    state.serve(tuple(state.room.row_of), True)
    policy = LearnedPolicy(state.room, history=history)
    state.use(policy)
    return state, policy


def check_mirror(state: PlacementState, policy: LearnedPolicy) -> None:
    room, engine = state.room.arrays, policy.engine.nodes
    for name in ("cpu_milli", "memory_mib", "gpus", "model", "cpu_milli_free", "memory_mib_free", "available"):
        assert getattr(engine, name).tolist() == getattr(room, name).tolist()
    assert engine.gpu_milli_free.tolist() == room.gpu_milli_free.tolist()
    assert engine.gpu_milli_free_sum.tolist() == room.gpu_milli_free_sum.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_its_arrays_follow_the_room_through_work_health_and_cordons(seed: int) -> None:
    random = Random(seed)
    state, policy = made()
    running: list[str] = []
    for number in range(20):
        needs = random.choice((Resources(gpus=1), Resources(gpus=2), Resources(gpus=1, gpu_fraction=0.25)))
        kind = state.room.kind(needs)
        rows = np.flatnonzero(state.room.slots(needs)).tolist()
        if rows:
            row = random.choice(rows)
            devices = np.flatnonzero(state.room.arrays.gpu_milli_free[row] >= kind.gpu_milli)[: kind.gpus].tolist()
            state.book(request_of(needs, key=f"w{number}"), (TaskSlot(row, tuple(devices)),), started_s=0, now_s=0)
            running.append(f"w{number}")
        if random.random() < 0.4 and running:
            state.ended(running.pop(random.randrange(len(running))), now_s=number)
        node = random.choice(state.hub.nodes)
        if random.random() < 0.6:
            state.set_health(node.id, random.randrange(len(node.gpus)), random.random() < 0.4)
        else:
            state.cordon(node.id, random.random() < 0.5)
        check_mirror(state, policy)
    late = LearnedPolicy(state.room)
    state.use(late)
    check_mirror(state, late)


def test_its_answers_are_those_of_its_engine() -> None:
    _, policy = made()
    share, whole, pair = Kind(1000, 1024, 1, 500), Kind(1000, 1024, 1, 1000), Kind(1000, 1024, 2, 1000)
    for kind in (share, whole, pair):
        decision = policy.engine.choose(kind)
        choice = policy.choose(kind, EVERYWHERE)
        assert decision is not None
        assert choice is not None
        assert (choice.row, choice.score, choice.parts) == (decision.node, decision.score, decision.parts._asdict())
        assert choice.device == (decision.devices[0] if kind.gpus == 1 else None)
        assert policy.node_scores(kind, EVERYWHERE).tolist() == policy.engine.node_scores(kind).tolist()
        listed = policy.candidates(kind, EVERYWHERE, 3)
        assert [one.row for one in listed] == [one.node for one in policy.engine.top_candidates(kind, 3)]
    assert policy.choose(share, np.zeros(6, np.bool_)) is None
    assert policy.candidates(share, np.arange(6) == 2, 3)[0].row == 2
    assert len(policy.candidates(share, np.arange(6) == 2, 3)) == 1
    none = policy.choose(Kind(1000, 1024), EVERYWHERE)
    assert none is not None
    assert none.device is None


def test_it_learns_when_its_owner_calls_and_keeps_its_history() -> None:
    history = RequestHistory(schedule=LearningSchedule(first_arrivals=(2,), every_arrivals=100))
    _, policy = made(history)
    kind = Kind(1000, 1024, 1, 500)
    policy.observe(kind)
    assert not policy.learning_due
    policy.observe(kind)
    assert policy.learning_due
    assert policy.history_rows().tolist() == [list(canonical(kind, 3))] * 2
    before = policy.engine.snapshot()
    policy.learn()
    assert not policy.learning_due
    assert policy.engine.history.learned_at == before.arrivals == 2


@pytest.mark.parametrize(("milli", "free"), [(300, 700), (0, 1000)])
def test_what_is_withheld_is_not_free_and_comes_back(milli: int, free: int) -> None:
    _, policy = made()
    policy.withhold(2, 1, milli)
    assert policy.engine.nodes.gpu_milli_free[2].tolist()[:4] == [1000, free, 1000, 1000]
    policy.withhold(2, 1, -milli)
    assert policy.engine.nodes.gpu_milli_free[2].tolist()[:4] == [1000] * 4
    assert policy.engine.nodes.cpu_milli_free.tolist() == policy.engine.nodes.cpu_milli.tolist()
