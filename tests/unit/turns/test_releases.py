"""The table of what would come free: it follows starts and ends, and answers as one made anew."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest, find_slots, is_movable
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, start, stop


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_table_that_followed_everything_answers_as_one_made_anew(seed: int) -> None:
    random = Random(seed)
    room = room_of(racks=4, nodes_per_rack=4)
    everywhere = np.ones(room.arrays.size, np.bool_)
    followed = Releases(room)
    running: dict[str, RunningRequest] = {}
    looks = random.choice((0.0, 0.02, 1.0))  # what starts and ends between two looks is settled at the second
    for number in range(400):
        if random.random() < looks:
            assert followed.of_lower_class(ask("any", INFERENCE)).size == len(followed)
        if running and random.random() < 0.48:
            name = random.choice(sorted(running))
            followed.remove(name)
            stop(room, running.pop(name))
            continue
        request = ask(
            f"w{number}",
            random.choice((INFERENCE, INTERACTIVE, TRAINING)),
            gpus=random.choice((1, 2, 4)),
            tasks=random.choice((1, 1, 3)),
            duration_s_max=random.choice((None, 100.0)),
            preemptible=random.random() < 0.8,
        )
        slots = find_slots(room, request, request.tasks, everywhere)
        if slots is not None:
            running[request.id] = start(room, request, slots, started_s=float(number))
            followed.add(running[request.id])
    followed = random.choice((followed, deepcopy(followed, {id(room): room})))  # a preview of a round looks at a copy
    anew = Releases(room, running.values())
    gang = ask("gang", gpus=8, tasks=2)
    chosen = [name for name in running if random.random() < 0.5]
    one, other = followed.room_after(followed.marked(chosen)), anew.room_after(anew.marked(chosen))
    for left, right in zip(one.arrays, other.arrays, strict=True):
        assert (left == right).all()
    assert (one.tasks_on == other.tasks_on).all()

    def named(table: Releases, mask: np.ndarray) -> set[str]:
        return {table.item(number).request.id for number in np.flatnonzero(mask).tolist()}

    assert named(followed, followed.movable_for(gang, ())) == named(anew, anew.movable_for(gang, ()))
    assert named(anew, anew.movable_for(gang, ())) == {
        name for name, item in running.items() if is_movable(item.request, gang)
    }
    rows = np.arange(room.arrays.size) < 3
    assert named(followed, followed.touching(rows)) == named(anew, anew.touching(rows))
