"""For whom are nodes reserved, until when, and who restarts elsewhere for it?

The reservations of one hub from round to round.
"""

# harch: pure

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.queueing.preemption import PastPreemptions, PreemptionPlan
from harch.placement.queueing.releases import Releases, RoomOutlook
from harch.placement.queueing.reservations import Reservation, plan_reservation
from harch.placement.queueing.running import find_slots
from harch.placement.queueing.settings import QueueSettings
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, Strategy

# Who restarts elsewhere so that a gang that has waited long can start? Small work on the nodes that are kept for it.
#
# Draining alone does not serve large gangs on a full hub: of the work on a dozen nodes some always lasts for days. So
# once a request has waited `makes_room_after_s`, its reservation counts on movable work (`Releases.movable_for`) only
# until then; and when everything else on the kept nodes has ended, movable work is told to stop. It waits again and
# goes
# on from its own checkpoint. Nobody is stopped before the request can start, and nobody in vain.


WORTH_LEAST_S = 300.0


def is_worth_room(request: PlacementRequest) -> bool:
    """Nobody is stopped for what needs no GPU, or is over in a moment."""
    bound_s = request.duration_s_max
    return request.needs.gpus > 0 and (bound_s is None or bound_s >= WORTH_LEAST_S)


def may_have_room_made(request: PlacementRequest, settings: QueueSettings, now_s: float) -> bool:
    return is_worth_room(request) and now_s - request.submitted_s >= settings.makes_room_after_s


def plan_making_room(
    releases: Releases,
    reservation: Reservation,
    settings: QueueSettings,
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


# For whom are nodes kept, and until when? The reservations of one hub from round to round.
#
# A reservation stays while its request waits: whoever comes later, of its class or a lower one, may only fill in behind
# it. So work too large for what comes free piece by piece is served at last, also on a hub that is always full.


PLANS_PER_ROUND_MAX = 1  # a plan of when and where a request will fit costs a millisecond
PLAN_AGAIN_S = 60.0  # and what runs changes slowly
LOOK_EVERY_S = 30.0  # hundreds may be blocked, and few of them can be helped
NEARNESS_WAIT_S = 3600.0  # nodes that clear so much later are kept, if a gang's GPUs stand together there
KEPT_SHARE_MAX = 0.5  # of the nodes, unless one request alone needs more: others must have somewhere to go
RESTS_MAX = 1000


@dataclass
class KeptNodes:
    """The oldest reservation comes first: for what nodes share, the later ones count what the earlier ones need."""

    room: Room
    settings: QueueSettings
    releases: Releases
    vacancies: Vacancies
    stopping: Mapping[str, float]
    spared: Callable[[float], Iterable[str]]  # who was stopped so recently that it is left alone
    look_at: Callable[[PlacementRequest], None]  # called with the request that a plan is made for
    reservations: tuple[Reservation, ...] = ()
    by_row: dict[int, Reservation] = field(default_factory=dict)
    _plans_left: int = 0
    _next_look_s: float = -math.inf
    _rests_until_s: dict[str, float] = field(default_factory=dict)  # by request: a plan was made lately
    _looks_again_s: dict[str, float] = field(default_factory=dict)  # by request: whether room could be made for it
    _planned_at: dict[str, int] = field(default_factory=dict)  # by request: the version of `releases` it was made for

    def of(self, request_id: str) -> Reservation | None:
        return next((kept for kept in self.reservations if kept.request.id == request_id), None)

    def begin_round(self, may_start: Callable[[str], bool], now_s: float) -> None:
        """Drops what nobody waits for or may use, and plans anew what is overdue or rests on what has changed."""
        self._plans_left = PLANS_PER_ROUND_MAX
        kept = [
            item
            for item in self.reservations
            if may_start(item.request.id) and bool(self.room.arrays.available[list(item.rows)].all())
        ]
        if len(kept) < len(self.reservations):
            self._set(kept)
        for place, item in enumerate(kept):
            if self._is_outdated(item, now_s):
                again = self._plan(item.request, now_s, taken=kept[:place], closed=kept[place + 1 :], before=item)
                if again is not None:
                    kept[place] = again
        self._set(kept)

    def release(self, request_id: str) -> None:
        """It has started: what was kept for it is open to others."""
        if self.reservations and self.of(request_id) is not None:
            self._set([item for item in self.reservations if item.request.id != request_id])

    @property
    def can_keep_more(self) -> bool:
        return len(self.reservations) < self.settings.reservations_max and self._plans_left > 0

    def looks_at_blocked(self, now_s: float) -> bool:
        """Should those who were blocked before be asked again whether nodes are to be kept for them?"""
        if not self.can_keep_more or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + LOOK_EVERY_S
        return True

    def keep_for(self, request: PlacementRequest, now_s: float) -> None:
        """Keeps nodes for a request that did not fit, if there is one reservation to give."""
        if not self.can_keep_more:
            return
        if now_s < self._rests_until_s.get(request.id, now_s) or self.of(request.id) is not None:
            return
        takes_milli = request.tasks * self.room.kind(request.needs).gpu_milli_total
        if takes_milli <= GPU_MILLI and now_s - request.submitted_s < self.settings.starvation_s:
            return  # such work starts with what comes free piece by piece: to keep a node for it would be a waste
        self._plans_left -= 1
        planned = self._plan(request, now_s, taken=list(self.reservations))
        kept_max = KEPT_SHARE_MAX * self.room.arrays.size
        if planned is not None and (not self.reservations or len(self.by_row) + len(planned.rows) <= kept_max):
            self._set([*self.reservations, planned])

    def keep_first_for(self, request: PlacementRequest, now_s: float) -> None:
        """Room is being made for it: it comes before everybody else, and whose nodes it needs must plan again."""
        planned = self._plan(request, now_s, taken=[])
        if planned is not None:
            rows = set(planned.rows)
            others = [
                item for item in self.reservations if item.request.id != request.id and rows.isdisjoint(item.rows)
            ]
            self._set([planned, *others])

    def may_be_ready(self, item: Reservation, now_s: float) -> bool:
        """Worth a look whether small work could leave now."""
        if not may_have_room_made(item.request, self.settings, now_s):
            return False
        if now_s < self._looks_again_s.get(item.request.id, now_s):
            return False
        self._looks_again_s[item.request.id] = now_s + PLAN_AGAIN_S
        return True

    def plan_anew(self) -> None:
        """The hardware has changed: what could not be kept may be kept now."""
        self._rests_until_s.clear()
        self._planned_at.clear()

    def _is_outdated(self, item: Reservation, now_s: float) -> bool:
        if self.room.power_can_bind or item.processes:  # what it needs of shared things depends on everything that runs
            return self._planned_at.get(item.request.id) != self.releases.version
        return now_s >= item.start_s and now_s >= self._rests_until_s.get(item.request.id, now_s)

    def _plan(
        self,
        request: PlacementRequest,
        now_s: float,
        *,
        taken: list[Reservation],
        closed: list[Reservation] | None = None,
        before: Reservation | None = None,
    ) -> Reservation | None:
        self.look_at(request)
        if len(self._rests_until_s) >= RESTS_MAX:
            self._rests_until_s.clear()
            self._planned_at.clear()
            self._looks_again_s.clear()
        self._rests_until_s[request.id] = now_s + PLAN_AGAIN_S
        self._planned_at[request.id] = self.releases.version
        outlook = RoomOutlook(
            self.releases,
            now_s,
            margin_s=self.settings.backfill_margin_s,
            assumed_s=self.settings.assumed_duration_s,
            stopping=self.stopping,
            movable=self.releases.movable_for(request, self.spared(now_s)) if is_worth_room(request) else None,
            moved_from_s=request.submitted_s + self.settings.makes_room_after_s,
        )
        narrow = _in_one_node(self.room, request)
        if narrow is not None:
            near = plan_reservation(outlook, narrow, taken=taken, closed=closed or (), before=before)
            soon_s = max(now_s, request.submitted_s + self.settings.makes_room_after_s) + NEARNESS_WAIT_S
            if near is not None and near.start_s <= soon_s:
                return replace(near, request=request)
        return plan_reservation(outlook, request, taken=taken, closed=closed or (), before=before)

    def _set(self, reservations: list[Reservation]) -> None:
        """What is no longer kept, or kept for later, is open to others."""
        start_s = {row: kept.start_s for kept in reservations for row in kept.rows}
        self.vacancies.add(
            row
            for before in self.reservations
            for row in before.rows
            if row not in start_s or start_s[row] > before.start_s
        )
        if any(before.processes and before not in reservations for before in self.reservations):
            self.vacancies.add_processes()
        self.reservations = tuple(reservations)
        self.by_row = {row: kept for kept in reservations for row in kept.rows}


def _in_one_node(room: Room, request: PlacementRequest) -> PlacementRequest | None:
    """The same request in its preferred island or node, if it prefers one that could hold it; None: nothing to gain.

    What is spread wants many nodes, whatever it prefers: `required: island` would be no topology for it.
    """
    topology = request.topology
    if topology.strategy is Strategy.SPREAD:
        return None
    if (
        request.tasks == 1
        or topology.preferred.rank > Level.NODE.rank
        or topology.required.rank <= topology.preferred.rank
    ):
        return None
    if int(room.slots_when_empty(request.needs).max()) < request.tasks:
        return None
    return msgspec.structs.replace(request, topology=msgspec.structs.replace(topology, required=topology.preferred))
