"""What is kept free for a request that does not fit, and who may use it meanwhile?

`plan_reservation` finds the domain that clears first by the promises of what runs, and keeps its nodes from then on.
`may_backfill` lets others onto those nodes only if they have surely ended by then, and onto other nodes only if the
power, the cooling and the processes that the reservation counts on are left. Why nobody is delayed by that:

1. At `start_s` everything that the plan counted on has ended: each end is a promise, with a margin.
2. What came onto the kept nodes since has ended too, by its own promise.
3. What came elsewhere took only what the plan did not need of the things that nodes share.

So the request fits on its nodes at `start_s` at the latest, and a plan made again for the same nodes starts no later.
It is made again in every round (with `before`): what a plan says of shared power is true until something ends.
Without promises `start_s` is infinite: nothing is guaranteed, but what never ends is kept away from the nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from harch.placement.policy.shapes import Bools, Floats
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.placement.turns.running import Releases, Running, could_fit, find_slots
from harch.placement.turns.settings import CLASS_ORDER

_NOBODY: Mapping[str, float] = MappingProxyType({})
_WATTS_SLACK = 1e-6  # sums in another order differ in the last digits


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for a request from now until it starts, which is at `start_s` at the latest."""

    request: Request
    tasks: int  # that will fit: fewer than wanted only if all of them never would
    rows: tuple[int, ...]
    start_s: float  # infinite: it waits for something that promised no end
    margin_s: float
    # What it needs of things that nodes share; and how much of them comes free until `start_s`, less what the
    # reservations before it need.
    rack_w: Floats = field(compare=False, repr=False)
    zone_w: Floats = field(compare=False, repr=False)
    rack_w_ending: Floats = field(compare=False, repr=False)
    zone_w_ending: Floats = field(compare=False, repr=False)
    processes_ending: int = 0
    ahead: tuple[str, ...] = ()  # the requests whose reservations came before, and whose needs are counted in

    def describe(self, now_s: float) -> str:
        when = "when work without a promised end makes room"
        if math.isfinite(self.start_s):
            when = f"within {max(0.0, self.start_s - now_s):.0f} s"
        return f"{len(self.rows)} nodes are kept for {self.request.id}, which starts on them {when}"

    @property
    def processes(self) -> int:
        return self.tasks if self.request.runs_process else 0

    def lets_in(self, candidate: Request, now_s: float) -> bool:
        """Could it be placed on the kept nodes? Whom they are kept for, who has ended by then, and higher classes.

        Those have their turn before anything is kept for this one.
        """
        if CLASS_ORDER.index(candidate.turn_class) < CLASS_ORDER.index(self.request.turn_class):
            return True
        return candidate.id == self.request.id or _ends_before(candidate, self, now_s + candidate.stop_grace_s)


def plan_reservation(
    room: Room,
    request: Request,
    running: Sequence[Running],
    now_s: float,
    *,
    taken: Sequence[Reservation] = (),
    before: Reservation | None = None,
    stopping: Mapping[str, float] = _NOBODY,
    margin_s: float = 30.0,
) -> Reservation | None:
    """Where and when the request will fit, beside the reservations `taken`; None if not even on empty nodes.

    `before` is its reservation of the last round: kept unless its nodes can no longer be had in time, so that a plan
    for one request is not undone by another's. `stopping` says of those that were told to stop (preempted, cancelled)
    when they have surely ended.
    """
    if request.countries_allowed and room.hub.country not in request.countries_allowed:
        return None
    ends_s = [stopping.get(item.request.id, item.ends_s_max(now_s, margin_s)) for item in running]
    search = _Search(room, request, running, ends_s, now_s, taken, margin_s)
    if before is not None and before.request.id == request.id:
        same = np.zeros(room.arrays.size, np.bool_)
        same[list(before.rows)] = True
        again = search.earliest(before.tasks, same)
        if again is not None and again.start_s <= max(before.start_s, now_s):
            return again
    everywhere = np.ones(room.arrays.size, np.bool_)
    for tasks in dict.fromkeys((request.tasks, request.tasks_min)):
        found = search.earliest(tasks, everywhere)
        if found is not None:
            return found
    return None


def may_backfill(
    candidate: Request,
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
    if candidate.id == reservation.request.id or _ends_before(candidate, reservation, now_s + stop_grace_s):
        return everywhere
    rack_w, zone_w = _spare_w(reservation, room)
    agreed = own is not None and own.request.id in reservation.ahead
    if candidate.runs_process and reservation.processes and not agreed:
        spare = room.process_slots_free + reservation.processes_ending - reservation.processes
        if candidate.tasks > spare:
            return ~everywhere
    allowed = everywhere
    allowed[list(reservation.rows)] = False
    if candidate.needs.gpus:
        # As if all its tasks came to one rack: never too little is left.
        watts = room.watts(candidate.needs) * candidate.tasks
        allowed &= (rack_w[room.rack] >= watts) & (zone_w[room.rack_zone[room.rack]] >= watts)
    if own is not None and (agreed or bool((own.rack_w <= rack_w).all() and (own.zone_w <= zone_w).all())):
        allowed[list(own.rows)] = True
    return allowed


def _ends_before(candidate: Request, reservation: Reservation, now_s: float) -> bool:
    bound_s = candidate.duration_s_max
    return bound_s is not None and now_s + bound_s + reservation.margin_s <= reservation.start_s


def _spare_w(reservation: Reservation, room: Room) -> tuple[Floats, Floats]:
    """Watts per rack and per zone that the reservation does not need; of those that it does not use, any amount."""
    rack_w = room.rack_power_w_free + reservation.rack_w_ending - reservation.rack_w + _WATTS_SLACK
    zone_w = room.zone_heat_w_max - room.zone_heat_w + reservation.zone_w_ending - reservation.zone_w + _WATTS_SLACK
    return np.where(reservation.rack_w > 0, rack_w, np.inf), np.where(reservation.zone_w > 0, zone_w, np.inf)


class _Search:
    """The first moment at which a request fits, when what runs ends as late as it promised."""

    def __init__(
        self,
        room: Room,
        request: Request,
        running: Sequence[Running],
        ends_s: Sequence[float],
        now_s: float,
        taken: Sequence[Reservation],
        margin_s: float,
    ) -> None:
        self._room, self._request, self._taken = room, request, taken
        self._now_s, self._margin_s = now_s, margin_s
        self._ends_s = np.array(ends_s)
        # What promises no end comes last, the oldest first: the likeliest to end soon.
        started_s = np.array([item.started_s for item in running])
        self._order = np.lexsort((started_s, self._ends_s))
        self._releases = Releases(room, running)
        self._free = np.ones(room.arrays.size, np.bool_)
        for other in taken:
            self._free[list(other.rows)] = False

    def earliest(self, tasks: int, within: Bools) -> Reservation | None:
        """Bisects over how many have ended: more room never makes it fit worse. The quick look goes first."""
        allowed, counts = within & self._free, range(len(self._order) + 1)
        ended = bisect_left(
            counts, True, key=lambda count: could_fit(self._room_after(count), self._request, tasks, allowed)
        )
        if ended not in counts:
            return None
        slots = self._slots(ended, tasks, allowed)
        if slots is None:  # mostly it fits as soon as it could
            later = range(ended, len(self._order) + 1)
            ended += bisect_left(later, True, key=lambda count: self._slots(count, tasks, allowed) is not None)
            slots = self._slots(ended, tasks, allowed) if ended in counts else None
        return None if slots is None else self._reservation(ended, slots)

    def _room_after(self, ended: int) -> Room:
        """With what the reservations before this one will use already gone."""
        gone = np.zeros(len(self._order), np.bool_)
        gone[self._order[:ended]] = True
        later = self._releases.room_after(gone)
        for other in self._taken:
            later.rack_power_w_free -= other.rack_w
            later.zone_heat_w += other.zone_w
            later.process_slots_free -= other.processes
        return later

    def _slots(self, ended: int, tasks: int, allowed: Bools) -> tuple[TaskSlot, ...] | None:
        return find_slots(self._room_after(ended), self._request, tasks, allowed)

    def _reservation(self, ended: int, slots: tuple[TaskSlot, ...]) -> Reservation:
        room, later = self._room, self._room_after(ended)
        rows = np.array([slot.row for slot in slots])
        watts = room.watts(self._request.needs)[rows]
        racks = room.rack[rows]
        return Reservation(
            request=self._request,
            tasks=len(slots),
            rows=tuple(sorted({slot.row for slot in slots})),
            start_s=float(self._ends_s[self._order[ended - 1]]) if ended else self._now_s,
            margin_s=self._margin_s,
            rack_w=np.bincount(racks, watts, len(room.rack_row)).astype(np.float64),
            zone_w=np.bincount(room.rack_zone[racks], watts, len(room.zone_heat_w)).astype(np.float64),
            rack_w_ending=later.rack_power_w_free - room.rack_power_w_free,
            zone_w_ending=room.zone_heat_w - later.zone_heat_w,
            processes_ending=later.process_slots_free - room.process_slots_free,
            ahead=tuple(other.request.id for other in self._taken),
        )
