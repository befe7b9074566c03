"""What is kept free for a request that does not fit, and who may use it meanwhile?

`plan_reservation` finds the domain that clears first by the promises of what runs, and keeps its nodes until then.
`may_backfill` lets others onto those nodes only if they have surely ended by then, and onto other nodes only if the
power, the cooling and the processes that the reservation counts on are left. Why nobody is delayed by that:

1. At `start_s` everything that the plan counted on has ended: each end is a promise, with a margin.
2. What came onto the kept nodes since has ended too, by its own promise.
3. What came elsewhere took only what the plan did not need of the things that nodes share.

So the request fits on its nodes at `start_s` at the latest, and a plan made again for the same nodes starts no later.
What a plan says of shared power and processes is true until something ends; then it is made again (with `before`).

Where work promised no end, one is *assumed* (`releases`), and so is `start_s`: nothing is certain then, but nobody
comes onto the nodes who would stay beyond it. Otherwise one such piece of work would open them to everybody, forever.
"""

# harch: pure

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from harch.base.counting import counted
from harch.placement.policy.shapes import Bools, Floats
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.releases import RoomOutlook
from harch.placement.queueing.running import MOVABLE_SHARE_MAX, find_slots, is_movable
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot

STAYS_LEAST_S = 3600.0  # whoever will have to leave kept nodes comes only if it can work for so long before
_WATTS_SLACK = 1e-6  # sums in another order differ in the last digits


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for a request from now until it starts, which is at `start_s` at the latest."""

    request: PlacementRequest
    tasks: int  # that will fit: fewer than wanted only if all of them never would
    rows: tuple[int, ...]
    start_s: float
    margin_s: float
    has_room_made: bool  # small work that is still there at `start_s` is moved away
    assumed: bool  # it waits for something that promised no end: `start_s` is likely, not certain
    # What it needs of things that nodes share; and how much of them comes free until `start_s`, less what the
    # reservations before it need.
    rack_w: Floats = field(compare=False, repr=False)
    zone_w: Floats = field(compare=False, repr=False)
    rack_w_ending: Floats = field(compare=False, repr=False)
    zone_w_ending: Floats = field(compare=False, repr=False)
    processes_ending: int = 0
    ahead: tuple[str, ...] = ()  # the requests whose reservations came before, and whose needs are counted in

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def describe(self, now_s: float) -> str:
        when = f"within {max(0.0, self.start_s - now_s):.0f} s"
        if self.assumed:
            when += " (estimated: not all work there has a time limit)"
        are_reserved = f"{counted(len(self.rows), 'node')} {'is' if len(self.rows) == 1 else 'are'} reserved"
        return f"{are_reserved} for {self.request.id}, which starts there {when}"

    @property
    def processes(self) -> int:
        return self.tasks if self.request.runs_process else 0

    def lets_in(self, candidate: PlacementRequest, now_s: float) -> bool:
        """Could it be placed on the kept nodes? Whom they are kept for, who has ended by then, and higher classes."""
        if self.yields_to(candidate):
            return True
        return candidate.id == self.request.id or _is_gone_before(candidate, self, now_s, candidate.stop_grace_s)

    def lets_in_of(self, blocked: Blocked, now_s: float) -> Bools:
        """The same for everybody who is blocked, by index."""
        request = self.request
        own_class = CLASS_ORDER.index(request.turn_class)
        lasts_s = now_s + blocked.stop_grace_s + blocked.duration_s_max
        let_in: Bools = (blocked.class_place < own_class) | (lasts_s + self.margin_s <= self.start_s)
        if self.has_room_made and now_s + STAYS_LEAST_S <= self.start_s:
            small = blocked.gpu_milli_total <= request.gpu_milli_total * MOVABLE_SHARE_MAX
            let_in |= blocked.preemptible & (blocked.class_place >= own_class) & small
        index = blocked.index_of(request.id)
        if index is not None:
            let_in[index] = True
        return let_in

    def yields_to(self, candidate: PlacementRequest) -> bool:
        return CLASS_ORDER.index(candidate.turn_class) < CLASS_ORDER.index(self.request.turn_class)


def plan_reservation(
    outlook: RoomOutlook,
    request: PlacementRequest,
    *,
    taken: Sequence[Reservation] = (),
    closed: Sequence[Reservation] = (),
    before: Reservation | None = None,
) -> Reservation | None:
    """Where and when the request will fit, beside the reservations `taken`; None if not even on empty nodes.

    `closed` are others whose nodes are not to be had either, but that come after this one for what nodes share.
    `before` is its reservation so far. It stays on those nodes while they can be had in time, so that a plan for one
    request is not undone by another's; and when they cannot, unless others can be had in half of the time.
    """
    room = outlook.room
    if request.countries_allowed and room.hub.country not in request.countries_allowed:
        return None
    search = _Search(outlook, request, taken, closed)
    again = None
    if before is not None and before.request.id == request.id:
        same = np.zeros(room.arrays.size, np.bool_)
        same[list(before.rows)] = True
        again = search.earliest(before.tasks, same)
        if again is not None and again.start_s <= max(before.start_s, outlook.now_s):
            return again
    everywhere = np.ones(room.arrays.size, np.bool_)
    for tasks in dict.fromkeys((request.tasks, request.tasks_min)):
        found = search.earliest(tasks, everywhere)
        if found is not None:
            break
    else:
        return again
    if again is not None and 2 * (found.start_s - outlook.now_s) > again.start_s - outlook.now_s:
        return again
    return found


def may_backfill(
    candidate: PlacementRequest,
    reservation: Reservation,
    room: Room,
    now_s: float,
    *,
    stop_grace_s: float = 0.0,
    own: Reservation | None = None,
) -> Bools:
    """The nodes that another request may be placed on now without delaying the reserved one.

    `own` is the reservation of the candidate itself, if it has one: on its own nodes it takes what the plans of both
    agreed on.
    """
    everywhere = np.ones(room.arrays.size, np.bool_)
    if candidate.id == reservation.request.id or _is_gone_before(candidate, reservation, now_s, stop_grace_s):
        return everywhere
    agreed = own is not None and own.request.id in reservation.ahead
    if candidate.runs_process and reservation.processes and not agreed:
        spare = room.process_slots_free + reservation.processes_ending - reservation.processes
        if candidate.tasks > spare:
            return ~everywhere
    allowed = everywhere
    allowed[list(reservation.rows)] = False
    if not room.power_can_bind:
        if own is not None:
            allowed[list(own.rows)] = True
        return allowed
    rack_w, zone_w = _spare_w(reservation, room)
    if candidate.needs.gpus:
        # As if all its tasks came to one rack: never too little is left.
        watts = room.watts(candidate.needs) * candidate.tasks
        allowed &= (rack_w[room.rack] >= watts) & (zone_w[room.rack_zone[room.rack]] >= watts)
    if own is not None and (agreed or bool((own.rack_w <= rack_w).all() and (own.zone_w <= zone_w).all())):
        allowed[list(own.rows)] = True
    return allowed


def _is_gone_before(candidate: PlacementRequest, reservation: Reservation, now_s: float, stop_grace_s: float) -> bool:
    """It has ended by then, or leaves when it is told to and has used the nodes well until then."""
    bound_s = candidate.duration_s_max
    if bound_s is not None and now_s + stop_grace_s + bound_s + reservation.margin_s <= reservation.start_s:
        return True
    return (
        reservation.has_room_made
        and is_movable(candidate, reservation.request)
        and now_s + STAYS_LEAST_S <= reservation.start_s
    )


def _spare_w(reservation: Reservation, room: Room) -> tuple[Floats, Floats]:
    """Watts per rack and per zone that the reservation does not need; of those that it does not use, any amount."""
    rack_w = room.rack_power_w_free + reservation.rack_w_ending - reservation.rack_w + _WATTS_SLACK
    zone_w = room.zone_heat_w_max - room.zone_heat_w + reservation.zone_w_ending - reservation.zone_w + _WATTS_SLACK
    return np.where(reservation.rack_w > 0, rack_w, np.inf), np.where(reservation.zone_w > 0, zone_w, np.inf)


class _Search:
    """The first moment at which a request fits, and where."""

    def __init__(
        self,
        outlook: RoomOutlook,
        request: PlacementRequest,
        taken: Sequence[Reservation],
        closed: Sequence[Reservation],
    ) -> None:
        self._outlook, self._request, self._taken = outlook, request, taken
        self._open = np.ones(outlook.room.arrays.size, np.bool_)
        for other in (*taken, *closed):
            self._open[list(other.rows)] = False

    def earliest(self, tasks: int, within: Bools) -> Reservation | None:
        """The quick look goes first: mostly it fits as soon as it could."""
        allowed, outlook = within & self._open, self._outlook
        ended = outlook.first_look(self._request, tasks, allowed)
        if ended is None:
            return None
        slots = self._slots(ended, tasks, allowed)
        if slots is None:
            later = outlook.counts[ended + 1 :]
            place = bisect_left(later, True, key=lambda count: self._slots(count, tasks, allowed) is not None)
            if place == len(later):
                return None
            ended = later[place]
            slots = self._slots(ended, tasks, allowed)
        return None if slots is None else self._reservation(ended, slots)

    def _room_after(self, ended: int) -> Room:
        """With what the reservations before this one will use already gone."""
        later = self._outlook.room_after(ended)
        for other in self._taken:
            later.rack_power_w_free -= other.rack_w
            later.zone_heat_w += other.zone_w
            later.process_slots_free -= other.processes
        return later

    def _slots(self, ended: int, tasks: int, allowed: Bools) -> tuple[TaskSlot, ...] | None:
        return find_slots(self._room_after(ended), self._request, tasks, allowed)

    def _reservation(self, ended: int, slots: tuple[TaskSlot, ...]) -> Reservation:
        outlook, room, later = self._outlook, self._outlook.room, self._room_after(ended)
        rows = np.array([slot.row for slot in slots])
        watts = room.watts(self._request.needs)[rows]
        racks = room.rack[rows]
        kept_rows = tuple(sorted({slot.row for slot in slots}))
        shares = room.power_can_bind or self._request.runs_process  # then it waits for what is elsewhere, too
        return Reservation(
            request=self._request,
            tasks=len(slots),
            rows=kept_rows,
            start_s=outlook.moment_s(ended),
            margin_s=outlook.margin_s,
            has_room_made=outlook.has_room_made(ended),
            assumed=outlook.is_assumed(ended, range(room.arrays.size) if shares else kept_rows),
            rack_w=np.bincount(racks, watts, len(room.rack_row)).astype(np.float64),
            zone_w=np.bincount(room.rack_zone[racks], watts, len(room.zone_heat_w)).astype(np.float64),
            rack_w_ending=later.rack_power_w_free - room.rack_power_w_free,
            zone_w_ending=room.zone_heat_w - later.zone_heat_w,
            processes_ending=later.process_slots_free - room.process_slots_free,
            ahead=tuple(other.request.id for other in self._taken),
        )
