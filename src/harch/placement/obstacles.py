"""What keeps a request from starting? The functions of the decision, with one constraint lifted after the other.

An explanation that evaluates anything else than the decision does will be untrue some day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.placement.placing import allowed_nodes, sizes
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.placement.turns.reservations import Reservation
from harch.placement.turns.running import find_slots

_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What is in the way of a request, in a room as it is. Free GPUs, processes and quotas are told by others."""

    fits: bool = True
    kept_by: tuple[Reservation, ...] = ()  # it would fit, but for what they keep
    power_short: str = ""  # it would fit, but for the power or cooling that its tasks share


def find_obstacles(room: Room, request: Request, reservations: Sequence[Reservation], *, now_s: float) -> Obstacles:
    if _slots(room, request, reservations, now_s) is not None:
        return Obstacles()
    least = sizes(request, now_s)[-1]
    if request.runs_process and room.process_slots_free < least:  # what else is in the way, were they there?
        room = room.copy()
        room.process_slots_free = least
        if _slots(room, request, reservations, now_s) is not None:
            return Obstacles(fits=False)
    if _slots(room, request, (), now_s) is not None:
        alone = [kept for kept in reservations if _slots(room, request, (kept,), now_s) is None]
        return Obstacles(fits=False, kept_by=tuple(alone or reservations))
    wished = _slots(room.without_power_limits(), request, (), now_s)
    return Obstacles(fits=False, power_short="" if wished is None else _power_short(room, request, wished))


def power_limit(room: Room, request: Request) -> str:
    """Which feeds and plants would not carry it, if nothing else ran and everything was as the fleet file says; empty
    if they would, or if there are not even GPUs enough. The fewest tasks that it would ever start with count."""
    whole = room.whole_and_empty
    everywhere = np.ones(whole.arrays.size, np.bool_)
    if not whole.power_can_bind or find_slots(whole, request, request.tasks_min, everywhere) is not None:
        return ""
    wished = find_slots(whole.without_power_limits(), request, request.tasks_min, everywhere)
    return "" if wished is None else _power_short(whole, request, wished)


def _slots(
    room: Room, request: Request, reservations: Sequence[Reservation], now_s: float
) -> tuple[TaskSlot, ...] | None:
    allowed = allowed_nodes(room, request, reservations, now_s)
    found = (find_slots(room, request, tasks, allowed) for tasks in sizes(request, now_s))
    return next((slots for slots in found if slots is not None), None)


def _power_short(room: Room, request: Request, wished: tuple[TaskSlot, ...]) -> str:
    """Which feeds and plants cannot carry the layout that it would have without them. Where each node alone could be
    carried, it is their sum that cannot."""
    rows = np.array([slot.row for slot in wished])
    watts = room.watts(request.needs)[rows]
    racks = room.rack[rows]
    rack_w = np.bincount(racks, watts, len(room.rack_row))
    zone_w = np.bincount(room.rack_zone[racks], watts, len(room.zone_heat_w))
    zone_w_free = room.zone_heat_w_max - room.zone_heat_w
    zones = [f"cooling zone {zone.id}" for zone in room.hub.cooling_zones]
    feeds = [f"the feed of rack {rack.id}" for rack in room.hub.racks]
    short = [
        *_short_of(zones, zone_w_free.tolist(), zone_w.tolist()),
        *_short_of(feeds, room.rack_power_w_free.tolist(), rack_w.tolist()),
    ]
    return "; ".join(short[:_NAMED_MAX]) or "no feed and plant together carry all of its tasks"


def _short_of(names: list[str], free_w: list[float], wanted_w: list[float]) -> list[str]:
    return [
        f"{name} has {max(free, 0.0) / 1000:.1f} kW to spare; it would draw {wanted / 1000:.1f} kW there"
        for name, free, wanted in zip(names, free_w, wanted_w, strict=True)
        if wanted > max(free, 0.0)
    ]
