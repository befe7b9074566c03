"""Who restarts elsewhere so that a gang that has waited long can start? Small work on the nodes that are kept for it.

Draining alone does not serve large gangs on a full hub: of the work on a dozen nodes some always lasts for days. So
once a request has waited `makes_room_after_s`, its reservation counts on movable work (`Releases.movable_for`) only
until then; and when everything else on the kept nodes has ended, movable work is told to stop. It waits again and goes
on from its own checkpoint. Nobody is stopped before the request can start, and nobody in vain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np

from harch.placement.policy.shapes import Bools
from harch.placement.request import Request
from harch.placement.room import TaskSlot
from harch.placement.turns.preemption import PastPreemptions, PreemptionPlan
from harch.placement.turns.releases import Releases
from harch.placement.turns.reservations import Reservation
from harch.placement.turns.running import find_slots
from harch.placement.turns.settings import TurnSettings
from harch.workloads.spec import Level

WORTH_LEAST_S = 300.0


def is_worth_room(request: Request) -> bool:
    """Nobody is stopped for what needs no GPU, or is over in a moment."""
    bound_s = request.duration_s_max
    return request.needs.gpus > 0 and (bound_s is None or bound_s >= WORTH_LEAST_S)


def may_have_room_made(request: Request, settings: TurnSettings, now_s: float) -> bool:
    return is_worth_room(request) and now_s - request.submitted_s >= settings.makes_room_after_s


def plan_making_room(
    releases: Releases,
    reservation: Reservation,
    settings: TurnSettings,
    now_s: float,
    *,
    past: PastPreemptions,
    spared: Collection[str],
    stopping: Collection[str],
) -> PreemptionPlan | None:
    """None if it would not help yet, or not within the limits, or if those in `stopping` already make room enough."""
    left = settings.makes_room_per_hour_max - past.in_last_hour(settings, now_s)
    victims_max = min(settings.makes_room_victims_max, left)
    request = reservation.request
    if victims_max < 1 or not may_have_room_made(request, settings, now_s):
        return None
    search = _Search(releases, reservation, releases.marked(stopping))
    candidates = releases.cheapest_first(
        releases.movable_for(request, {*spared, *stopping}) & releases.touching(search.within), now_s
    )
    if search.slots(candidates) is None or search.slots(()) is not None:
        return None
    # Those that lose least, as few of them as it takes.
    fewest = bisect_left(range(len(candidates)), True, key=lambda count: search.slots(candidates[:count]) is not None)
    victims = search.needed(candidates[:fewest])
    if len(victims) > victims_max:
        return None
    stopped = tuple(releases.item(number) for number in victims)
    return PreemptionPlan(
        request=request,
        victims=stopped,
        rows=reservation.rows,
        level=Level.HUB if len(reservation.rows) > 1 else Level.NODE,
        lost_gpu_s=float(releases.lost_gpu_s(now_s)[victims].sum()),
        notice_s=max(victim.stop_grace_s for victim in stopped),
    )


class _Search:
    """Would it fit on its kept nodes if these were gone?"""

    def __init__(self, releases: Releases, reservation: Reservation, stopping: Bools) -> None:
        self._releases, self._reservation, self._stopping = releases, reservation, stopping
        self.within = np.zeros(releases.room.arrays.size, np.bool_)
        self.within[list(reservation.rows)] = True

    def slots(self, victims: Collection[int]) -> tuple[TaskSlot, ...] | None:
        gone = self._stopping.copy()
        gone[list(victims)] = True
        reservation = self._reservation
        return find_slots(self._releases.room_after(gone), reservation.request, reservation.tasks, self.within)

    def needed(self, victims: list[int]) -> list[int]:
        """Without whoever turns out to be in nobody's way. Who holds a GPU that the request gets is not asked about."""
        slots = self.slots(victims) or ()
        given = {(slot.row, device) for slot in slots for device in slot.devices}
        for number in reversed(victims):
            held = self._releases.item(number).slots
            if not any((slot.row, device) in given for slot in held for device in slot.devices):
                without = [other for other in victims if other != number]
                if self.slots(without) is not None:
                    victims = without
        return victims
