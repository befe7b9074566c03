"""Does the room know how much power its racks and how much heat its cooling zones have left?"""

from __future__ import annotations

import numpy as np

from harch.placement.room import TaskSlot
from harch.workloads.spec import Resources
from unit.turns.turn_fixtures import room_of

_NEEDS = Resources(gpus=4)


def test_a_task_heats_its_zone_by_what_it_draws_from_its_rack_and_leaves_nothing_behind() -> None:
    room = room_of(racks=2)
    heat_w, power_w_free = room.zone_heat_w.copy(), room.rack_power_w_free.copy()
    slot = TaskSlot(0, (0, 1, 2, 3))
    room.take(_NEEDS, slot)
    drawn_w = power_w_free - room.rack_power_w_free
    assert drawn_w[room.rack[0]] > 0
    assert np.count_nonzero(drawn_w) == 1, "only its own rack"
    assert room.zone_heat_w.sum() - heat_w.sum() == drawn_w.sum()
    room.give_back(_NEEDS, slot)
    assert np.array_equal(room.zone_heat_w, heat_w)
    assert np.array_equal(room.rack_power_w_free, power_w_free)
