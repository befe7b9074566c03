"""Who must make room for a higher class? The least lost work that frees one domain, within written limits.

Victims are of strictly lower classes, preemptible, and stand wholly inside the domain that they free. Narrow domains
are tried first: one node, then a rack, a row, the hub, never wider than the request allows. Nobody is stopped in vain:
without any one of the victims the request would not fit.
"""

# harch: pure

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harch.placement.policy.shapes import Bools, Floats, Ints
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest, could_fit, domains, find_slots
from harch.placement.queueing.settings import QueueSettings
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import Level

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Whom to stop for `request`. Each victim is asked to stop, has its `stop_grace_s`, and then waits again."""

    request: PlacementRequest
    victims: tuple[RunningRequest, ...]  # that which loses least first
    rows: tuple[int, ...]  # the domain that is cleared
    level: Level
    lost_gpu_s: float
    notice_s: float  # the longest grace: after so long the request fits
    move: Literal["restart"] = "restart"  # from its own checkpoint folder

    def describe(self) -> str:
        ids = ", ".join(victim.request.id for victim in self.victims)
        return (
            f"{self.request.turn_class} {self.request.id} preempts {ids}: {self.lost_gpu_s:.0f} GPU-seconds "
            f"are lost, one {self.level} is free within {self.notice_s:.0f} s"
        )


class PastPreemptions:
    """Who was stopped, and when: as far back as a limit asks."""

    def __init__(self) -> None:
        self._stops: deque[tuple[float, str]] = deque()

    def note(self, plan: PreemptionPlan, now_s: float) -> None:
        """`plan` is carried out."""
        self._stops.extend((now_s, victim.request.id) for victim in plan.victims)

    def in_last_hour(self, settings: QueueSettings, now_s: float) -> int:
        oldest_s = now_s - max(HOUR_S, settings.preempted_again_after_s)
        while self._stops and self._stops[0][0] <= oldest_s:
            self._stops.popleft()
        return sum(at_s > now_s - HOUR_S for at_s, _ in self._stops)

    def spared(self, settings: QueueSettings, now_s: float) -> set[str]:
        """Who was stopped so recently that it is left alone."""
        since_s = now_s - settings.preempted_again_after_s
        return {key for at_s, key in self._stops if at_s > since_s} if self._stops else set()


def plan_preemption(
    releases: Releases,
    request: PlacementRequest,
    settings: QueueSettings,
    now_s: float,
    *,
    past: PastPreemptions,
    stopping: Collection[str],
    spared: Collection[str] = (),
    allowed: Bools | None = None,
    preferred: Bools | None = None,
) -> PreemptionPlan | None:
    """None if nobody may be stopped, if it would not help, or if those in `stopping` already make room enough.

    `releases` has everything that holds GPUs, with those that were told to stop and have not ended yet: their ids are
    in `stopping`. `spared` are left alone beside those of `past`, and so is
    everybody on nodes that are not `allowed`. Where one node is enough, it is one of the `preferred` if any will do.
    """
    left = settings.preemptions_per_hour_max - past.in_last_hour(settings, now_s)
    victims_max = min(settings.preemption_victims_max, left)
    hub = releases.room.hub
    if victims_max < 1 or (request.countries_allowed and hub.country not in request.countries_allowed):
        return None
    chosen = releases.of_lower_class(request)
    chosen &= ~releases.marked({*past.spared(settings, now_s), *stopping, *spared})
    if allowed is not None:
        chosen &= ~releases.touching(~allowed)
    if not chosen.any():
        return None
    search = _Search(releases, request, stopping, now_s, allowed)
    if search.fits((), search.allowed):
        return None
    eligible = releases.cheapest_first(chosen, now_s)
    if preferred is not None:
        there = releases.cheapest_first(chosen & ~releases.touching(~preferred), now_s)
        plan = _plan_at(Level.NODE, search, there, victims_max, settings)
        if plan is not None:
            return plan
    for level in Level:
        if Level.NODE.rank <= level.rank <= max(request.topology.required.rank, Level.NODE.rank):
            plan = _plan_at(level, search, eligible, victims_max, settings)
            if plan is not None:
                return plan
    return None


def _plan_at(
    level: Level, search: _Search, eligible: list[int], victims_max: int, settings: QueueSettings
) -> PreemptionPlan | None:
    domain_of = domains(search.room, level)
    domain_of_number = search.releases.domain_of_each(domain_of)
    inside: dict[int, list[int]] = {}
    for number in eligible:
        domain = domain_of_number[number]
        if domain >= 0:
            inside.setdefault(domain, []).append(number)
    best: tuple[float, list[int], int] | None = None
    for estimate, domain in search.promising(domain_of, inside)[: settings.preemption_domains_tried_max]:
        if best is not None and estimate >= best[0]:
            break
        within = search.allowed & (domain_of == domain)
        victims = search.fewest(inside[domain][: settings.preemption_candidates_max], within)
        if victims is not None and len(victims) <= victims_max:
            lost = float(search.lost_gpu_s[victims].sum())
            if best is None or lost < best[0]:
                best = lost, victims, domain
    if best is None:
        return None
    lost, victims, domain = best
    stopped = tuple(search.releases.item(number) for number in victims)
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
        self,
        releases: Releases,
        request: PlacementRequest,
        stopping: Collection[str],
        now_s: float,
        allowed: Bools | None,
    ) -> None:
        self.room, self.releases, self.request = releases.room, releases, request
        self.allowed: Bools = np.ones(self.room.arrays.size, np.bool_) if allowed is None else allowed
        self.lost_gpu_s: Floats = releases.lost_gpu_s(now_s)
        self._stopping = releases.marked(stopping)
        # A gang that takes fewer tasks by now needs fewer victims.
        due = now_s - request.submitted_s >= request.degrade_after_s
        self._tasks = request.tasks_min if due else request.tasks
        one_island = request.topology.required is Level.ISLAND and request.needs.gpus > 1
        self._is_one_task = self._tasks == 1 and not one_island

    def fits(self, victims: Sequence[int], within: Bools) -> bool:
        room, request = self._room_after(victims), self.request
        if self._is_one_task:  # then a quick look is exact
            return could_fit(room, request, 1, within) and (not request.runs_process or room.process_slots_free > 0)
        return find_slots(room, request, self._tasks, within) is not None

    def promising(self, domain_of: Ints, inside: dict[int, list[int]]) -> list[tuple[float, int]]:
        """Domains that hold the request once all their candidates are gone, by the work that seems lost at least."""
        everyone = [number for candidates in inside.values() for number in candidates]
        needs, exclusive = self.request.needs, self.request.topology.exclusive

        def slots_in_domains(gone: Sequence[int]) -> list[int]:
            slots = np.where(self.allowed, self._room_after(gone).slots(needs, exclusive=exclusive), 0)
            per_domain: list[int] = np.bincount(domain_of, slots).tolist()
            return per_domain

        slots, slots_now = slots_in_domains(everyone), slots_in_domains(())
        each_milli = max(self.room.kind(needs).gpu_milli_total, 1)
        lost_gpu_s, gpu_milli = self.lost_gpu_s.tolist(), self.releases.gpu_milli_taken.tolist()
        keys = []
        for domain, candidates in inside.items():
            if slots[domain] >= self._tasks:
                missing_milli = (self._tasks - slots_now[domain]) * each_milli
                lost = 0.0
                for number in candidates:
                    lost += lost_gpu_s[number]
                    missing_milli -= gpu_milli[number]
                    if missing_milli <= 0:
                        break
                keys.append((lost, domain))
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
        for number in reversed(candidates[:high]):
            without = [victim for victim in victims if victim != number]
            if self.fits(without, within):
                victims = without
        return victims

    def _room_after(self, victims: Sequence[int]) -> Room:
        gone = self._stopping.copy()
        gone[list(victims)] = True
        return self.releases.room_after(gone)
