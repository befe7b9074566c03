"""Who must make room for a higher class? The least lost work that frees one domain, within written limits.

Victims are of strictly lower classes, preemptible, and stand wholly inside the domain that they free. Narrow domains
are tried first: one node, then a rack, a row, the hub, never wider than the request allows. Nobody is stopped in vain:
without any one of the victims the request would not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harch.placement.policy.shapes import Bools, Floats, Ints
from harch.placement.request import Request
from harch.placement.room import Room
from harch.placement.turns.running import Releases, Running, domains, find_slots
from harch.placement.turns.settings import CLASS_ORDER, TurnSettings
from harch.workloads.spec import Level

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Whom to stop for `request`. Each victim is told, has its `stop_grace_s`, and then waits again."""

    request: Request
    victims: tuple[Running, ...]  # that which loses least first
    rows: tuple[int, ...]  # the domain that is cleared
    level: Level
    lost_gpu_s: float
    notice_s: float  # the longest grace: after so long the request fits
    move: Literal["restart"] = "restart"  # from its own checkpoint folder

    def describe(self) -> str:
        ids = ", ".join(victim.request.id for victim in self.victims)
        return (
            f"{self.request.turn_class} {self.request.id} takes the place of {ids}: {self.lost_gpu_s:.0f} GPU-seconds "
            f"are lost, one {self.level} is cleared within {self.notice_s:.0f} s"
        )


class PastPreemptions:
    """Who was stopped, and when: as far back as a limit asks."""

    def __init__(self) -> None:
        self._stops: deque[tuple[float, str]] = deque()

    def note(self, plan: PreemptionPlan, now_s: float) -> None:
        """`plan` is carried out."""
        self._stops.extend((now_s, victim.request.id) for victim in plan.victims)

    def left(self, settings: TurnSettings, now_s: float) -> int:
        """How many more may be stopped within this hour."""
        oldest_s = now_s - max(HOUR_S, settings.preempted_again_after_s)
        while self._stops and self._stops[0][0] <= oldest_s:
            self._stops.popleft()
        return settings.preemptions_per_hour_max - sum(at_s > now_s - HOUR_S for at_s, _ in self._stops)

    def spared(self, settings: TurnSettings, now_s: float) -> set[str]:
        """Who was stopped so recently that it is left alone."""
        return {key for at_s, key in self._stops if at_s > now_s - settings.preempted_again_after_s}


def plan_preemption(
    room: Room,
    request: Request,
    running: Sequence[Running],
    settings: TurnSettings,
    now_s: float,
    *,
    past: PastPreemptions,
    stopping: Collection[str],
) -> PreemptionPlan | None:
    """None if nobody may be stopped, if it would not help, or if those in `stopping` already make room enough.

    `running` is everything that holds GPUs, with those that were told to stop and have not ended yet: their ids are
    in `stopping`.
    """
    victims_max = min(settings.preemption_victims_max, past.left(settings, now_s))
    if victims_max < 1 or (request.countries_allowed and room.hub.country not in request.countries_allowed):
        return None
    lower = CLASS_ORDER[CLASS_ORDER.index(request.turn_class) + 1 :]
    excluded = past.spared(settings, now_s) | set(stopping)
    eligible = [
        index
        for index, item in enumerate(running)
        if item.request.turn_class in lower and item.request.preemptible and item.request.id not in excluded
    ]
    if not eligible:
        return None
    search = _Search(room, request, running, stopping, now_s)
    if search.fits((), search.everywhere):
        return None
    eligible.sort(key=lambda index: (search.lost_gpu_s[index], running[index].restarts, running[index].request.id))
    for level in Level:
        if Level.NODE.rank <= level.rank <= max(request.topology.required.rank, Level.NODE.rank):
            plan = _plan_at(level, search, eligible, victims_max, settings)
            if plan is not None:
                return plan
    return None


def _plan_at(
    level: Level, search: _Search, eligible: list[int], victims_max: int, settings: TurnSettings
) -> PreemptionPlan | None:
    domain_of = domains(search.room, level)
    inside: dict[int, list[int]] = {}
    for index in eligible:
        touched = {int(domain_of[slot.row]) for slot in search.running[index].slots}
        if len(touched) == 1:
            inside.setdefault(touched.pop(), []).append(index)
    best: tuple[float, list[int], int] | None = None
    for estimate, domain in search.promising(domain_of, inside)[: settings.preemption_domains_tried_max]:
        if best is not None and estimate >= best[0]:
            break
        within = domain_of == domain
        victims = search.fewest(inside[domain][: settings.preemption_candidates_max], within)
        if victims is not None and len(victims) <= victims_max:
            lost = float(search.lost_gpu_s[victims].sum())
            if best is None or lost < best[0]:
                best = lost, victims, domain
    if best is None:
        return None
    lost, victims, domain = best
    stopped = tuple(search.running[index] for index in victims)
    return PreemptionPlan(
        request=search.request,
        victims=stopped,
        rows=tuple(np.flatnonzero(domain_of == domain).tolist()),
        level=level,
        lost_gpu_s=lost,
        notice_s=max(victim.stop_grace_s for victim in stopped),
    )


class _Search:
    """Questions about one request: would it fit if these were gone?"""

    def __init__(
        self, room: Room, request: Request, running: Sequence[Running], stopping: Collection[str], now_s: float
    ) -> None:
        self.room, self.request, self.running = room, request, running
        self.everywhere: Bools = np.ones(room.arrays.size, np.bool_)
        self.lost_gpu_s: Floats = np.array([item.lost_gpu_s(now_s) for item in running])
        self._stopping = np.array([item.request.id in stopping for item in running], np.bool_)
        self._releases = Releases(room, running)
        # A gang that takes fewer tasks by now needs fewer victims.
        due = now_s - request.submitted_s >= request.degrade_after_s
        self._tasks = request.tasks_min if due else request.tasks

    def fits(self, victims: Sequence[int], within: Bools) -> bool:
        return find_slots(self._room_after(victims), self.request, self._tasks, within) is not None

    def promising(self, domain_of: Ints, inside: dict[int, list[int]]) -> list[tuple[float, int]]:
        """Domains that hold the request once all their candidates are gone, by the work that seems lost at least."""
        everyone = [index for candidates in inside.values() for index in candidates]
        needs, exclusive = self.request.needs, self.request.topology.exclusive
        slots = np.bincount(domain_of, self._room_after(everyone).slots(needs, exclusive=exclusive))
        slots_now = np.bincount(domain_of, self._room_after(()).slots(needs, exclusive=exclusive))
        each_milli = max(needs.gpus * needs.gpu_milli, 1)
        keys = []
        for domain, candidates in inside.items():
            if slots[domain] >= self._tasks:
                missing_milli = (self._tasks - slots_now[domain]) * each_milli
                freed_milli = np.cumsum([len(self.running[i].slots) * _gpu_milli(self.running[i]) for i in candidates])
                count = int(np.searchsorted(freed_milli, missing_milli)) + 1
                keys.append((float(self.lost_gpu_s[candidates[:count]].sum()), domain))
        return sorted(keys)

    def fewest(self, candidates: list[int], within: Bools) -> list[int] | None:
        """Those that lose least until it fits, then without whoever is not needed; those that lose most leave first."""
        low, high = 1, len(candidates)
        if not self.fits(candidates, within):
            return None
        while low < high:
            middle = (low + high) // 2
            if self.fits(candidates[:middle], within):
                high = middle
            else:
                low = middle + 1
        victims = candidates[:high]
        for index in reversed(candidates[:high]):
            without = [victim for victim in victims if victim != index]
            if self.fits(without, within):
                victims = without
        return victims

    def _room_after(self, victims: Sequence[int]) -> Room:
        gone = self._stopping.copy()
        gone[list(victims)] = True
        return self._releases.room_after(gone)


def _gpu_milli(item: Running) -> int:
    return max(item.request.needs.gpus * item.request.needs.gpu_milli, 1)
