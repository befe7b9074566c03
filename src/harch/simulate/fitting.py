"""Where do plain schedulers put things? First fit and best fit, blind to the topology; gangs whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot


def fit(
    room: Room, request: Request, *, best: bool, tasks: int | None = None, allowed: Bools | None = None
) -> tuple[TaskSlot, ...] | None:
    """Nodes in their order, or (`best`) those with the least free GPU first. Takes nothing.

    `tasks` is fewer than wanted for a degraded gang; `allowed` holds the nodes that may be used.
    """
    wanted = request.tasks if tasks is None else tasks
    slots = room.slots(request.needs, exclusive=request.topology.exclusive)
    if allowed is not None:
        slots = np.where(allowed, slots, 0)
    if int(slots.sum()) < wanted:
        return None
    rows = np.flatnonzero(slots)
    if best:
        rows = rows[np.argsort(room.arrays.gpu_milli_free_sum[rows], kind="stable")]
    kind = room.kind(request.needs)
    placed: list[TaskSlot] = []
    for row in rows.tolist():
        free_milli = room.arrays.gpu_milli_free[row].tolist()
        for _ in range(min(int(slots[row]), wanted - len(placed))):
            devices = _devices(free_milli, kind.gpus, kind.gpu_milli, best=best)
            placed.append(TaskSlot(row, devices))
        if len(placed) == wanted:
            return tuple(placed) if wanted == 1 or _power_holds(room, request, placed) else None
    return None


def _devices(free_milli: list[int], gpus: int, milli: int, *, best: bool) -> tuple[int, ...]:
    """Takes the devices from `free_milli`, so that the next task of the gang does not get them too."""
    fitting = [index for index, left in enumerate(free_milli) if left >= milli]
    if best and milli < GPU_MILLI:
        fitting.sort(key=lambda index: free_milli[index])
    devices = tuple(sorted(fitting[:gpus]))
    for index in devices:
        free_milli[index] -= milli
    return devices


def _power_holds(room: Room, request: Request, placed: Sequence[TaskSlot]) -> bool:
    """Slots are counted per node; a rack's feed and a hall's cooling are shared by what is on several of them."""
    watts = room.watts(request.needs)
    by_rack = np.bincount([room.rack[slot.row] for slot in placed], [watts[slot.row] for slot in placed])
    racks = np.arange(len(by_rack))
    by_zone = np.bincount(room.rack_zone[racks], by_rack, len(room.zone_heat_w))
    return bool(
        (by_rack <= room.rack_power_w_free[racks]).all() and (room.zone_heat_w + by_zone <= room.zone_heat_w_max).all()
    )
