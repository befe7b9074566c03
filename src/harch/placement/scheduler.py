"""Who gets which GPUs now, and what will the next round do?

The scheduler of one hub: a deterministic value without clock or I/O, and its twin.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from harch.base.rejection import Rejection
from harch.placement.defragmentation import DefragmentationPlan, plan_defragmentation
from harch.placement.placer import LayOutGang, allowed_nodes, by_topology, candidates, find_place, may_run_here, sizes
from harch.placement.plan import ALONE, Clearing, GpuAssignment, SchedulePlan, placements_of, reason
from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.queueing.preemption import PreemptionPlan, plan_preemption
from harch.placement.queueing.releases import RoomOutlook
from harch.placement.queueing.reservations import Reservation, plan_reservation
from harch.placement.queueing.reserved_nodes import KeptNodes, plan_making_room
from harch.placement.queueing.settings import LOWEST_CLASS
from harch.placement.request import PlacementRequest
from harch.placement.state import PlacementState
from harch.wire.explanations import Candidate

# Who gets which GPUs now? The scheduler of one hub: a deterministic value without clock or I/O.
#
# The hub's job machine and `harch simulate` drive the same class. One round is six steps, in this order:
#
# 1. heads      whose turn is it (`turns.queue`)
# 2. hard rules residency first, then quota, processes, what reservations keep free; each "no" is a rule with a number
# 3. place      one node by score, or a gang in the lowest domain that fits; devices by topology (`placing`)
# 4. degrade    a gang that waited long enough takes fewer tasks, if it said so
# 5. preempt    a higher class may take from lower ones, within written limits
# 6. reserve    the first blocked requests keep the domains that clear first; others may only fill in behind them


PREEMPTIONS_TRIED_MAX = 2  # per round
PREEMPT_AGAIN_S = 20.0  # a search for victims costs a millisecond, and what runs changes slowly
CLEARING_SLACK_S = 60.0  # an agent that is slow to say that a task has ended does not undo a plan
SHAPES_MAX = 1000


@dataclass
class Scheduler(PlacementState):
    """Decides over the books of a hub. What it decides is booked at once; the rest is for the hub to carry out."""

    lay_out: LayOutGang = by_topology
    clearing: Clearing | None = None  # at most one at a time
    kept: KeptNodes = field(init=False)
    _in_vain_until_s: dict[object, float] = field(default_factory=dict)  # shapes for which nobody could be stopped

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept = KeptNodes(
            self.room, self.settings, self.releases, self.vacancies, self.stopping, self.spared, self._look_at
        )

    def withdraw(self, request_id: str) -> None:
        """It waits no longer; what was kept for it is open to others at once."""
        super().withdraw(request_id)
        self.kept.release(request_id)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        return self.kept.reservations

    def look_again(self) -> None:
        super().look_again()
        self.kept.plan_anew()

    # Deciding

    def plan(self, *, now_s: float, placed_max: int) -> SchedulePlan:
        """One round. Deterministic: the same happenings before it give the same plan."""
        self.subject = ""
        preemptions: list[PreemptionPlan] = []
        self.kept.begin_round(lambda request_id: self._may_start(request_id, now_s), now_s)
        assignments = [*self._serve_cleared(now_s), *self._serve_kept(now_s)]
        preemptions += self._make_room(now_s)
        tried: set[object] = set()  # shapes for which preemption was considered
        while len(assignments) < placed_max:
            additions = self.vacancies.additions
            assignments += self._pass(now_s, placed_max - len(assignments), tried, preemptions)
            # Whoever started on nodes that were kept for it has opened the rest of them: others are asked again.
            if self.vacancies.additions == additions and len(assignments) < placed_max:
                self.vacancies.clear()
                return SchedulePlan(tuple(assignments), tuple(preemptions), self.reservations)
        return SchedulePlan(tuple(assignments), tuple(preemptions), self.reservations, complete=False)

    def _pass(
        self, now_s: float, placed_max: int, tried: set[object], preemptions: list[PreemptionPlan]
    ) -> list[GpuAssignment]:
        """Everybody once, in the order of their turns."""
        assignments: list[GpuAssignment] = []
        kept, vacancies = self.kept, self.vacancies
        # Who stays blocked is looked at only if somebody could be stopped for it, or nodes be kept.
        order = self.queue.in_order(
            now_s,
            lambda blocked: vacancies.may_serve_of(blocked, kept.by_row, now_s),
            passed_over=() if kept.looks_at_blocked(now_s) else (LOWEST_CLASS,),
            idle_classes=lambda: () if kept.can_keep_more else (LOWEST_CLASS,),
        )
        for request in order:  # 1. heads
            self._look_at(request)
            rejected = self._over_quota(request, now_s)
            blocked = order.is_blocked or (
                order.is_retry and not vacancies.may_serve(request, kept.by_row, now_s)
            )  # somebody before it took what came free
            assignment = None if rejected or blocked else self._try(request, now_s)
            if assignment is not None:
                assignments.append(assignment)
                if len(assignments) >= placed_max:
                    break
                continue
            order.skip_group(blocked=rejected is None and self._waits_for_room_only(request, now_s))
            if rejected is None and may_run_here(self.hub, request):
                # Both plans cost a millisecond, so a round makes few; whoever is left out is first in one of the next.
                if (
                    len(tried) < PREEMPTIONS_TRIED_MAX
                    and request.turn_class is not LOWEST_CLASS
                    and request.shape not in tried
                    and now_s >= self._in_vain_until_s.get(request.shape, -math.inf)
                ):
                    tried.add(request.shape)
                    preemption = self._preempt(request, now_s)
                    if preemption is not None:
                        preemptions.append(preemption)
                if kept.can_keep_more:
                    kept.keep_for(request, now_s)
        return assignments

    def _look_at(self, request: PlacementRequest) -> None:
        self.subject = request.id

    def _may_start(self, request_id: str, now_s: float) -> bool:
        request = self.queue.waiting(request_id)
        return request is not None and self._over_quota(request, now_s) is None

    def _over_quota(self, request: PlacementRequest, now_s: float) -> Rejection | None:
        """Also the fewest tasks that it would start with now are more than its tenant may hold."""
        return self.queue.quota_rejection(request, sizes(request, now_s)[-1])

    def _serve_cleared(self, now_s: float) -> list[GpuAssignment]:
        """Whom others made room for goes first."""
        clearing = self.clearing
        if clearing is None:
            return []
        request = self.queue.waiting(clearing.plan.request.id)
        if request is None or now_s >= clearing.until_s or not may_run_here(self.hub, request):
            self.clearing = None
            return []
        assignment = None if self._over_quota(request, now_s) else self._try(request, now_s)
        if assignment is None:
            return []
        self.clearing = None
        return [assignment]

    def _serve_kept(self, now_s: float) -> list[GpuAssignment]:
        """For whom nodes are kept, though work like it came back before it: the pass would ask that one only, which
        may not have the nodes, and both would wait forever."""
        assignments = []
        for request in [kept.request for kept in self.reservations]:
            if self.queue.is_behind_its_like(request.id) and self._over_quota(request, now_s) is None:
                assignment = self._try(request, now_s)
                assignments += [] if assignment is None else [assignment]
        return assignments

    def _try(self, request: PlacementRequest, now_s: float) -> GpuAssignment | None:
        """2. to 4.: hard rules, place, degrade."""
        self._look_at(request)
        found = find_place(self, request, self.binding(request, now_s), now_s=now_s, lay_out=self.lay_out)
        if found is None:
            return None
        slots, choice = found
        self.book(request, slots, started_s=now_s, now_s=now_s)
        self.kept.release(request.id)
        gpus = len(slots) * request.needs.gpus
        prediction = ALONE if gpus < 2 else self.topology.predict(request, slots)
        why = reason(self.room, self.scorer.name, request, slots, prediction)
        return GpuAssignment(
            request, slots, placements_of(self.room, slots), choice.score, choice.parts, prediction, why
        )

    def binding(self, request: PlacementRequest, now_s: float) -> Sequence[Reservation]:
        """A higher class need not wait long for what is kept for a lower one; but first it looks elsewhere."""
        waited_s = now_s - request.submitted_s
        if waited_s < self.settings.kept_yields_after_s:
            return self.reservations
        return [kept for kept in self.reservations if not kept.yields_to(request)]

    def _waits_for_room_only(self, request: PlacementRequest, now_s: float) -> bool:
        """Time cannot make it fit: only room, or processes, that come free."""
        waited_s = now_s - request.submitted_s
        if request.tasks_min < request.tasks and waited_s < request.degrade_after_s:
            return False
        return waited_s >= self.settings.kept_yields_after_s or not any(
            kept.yields_to(request) for kept in self.reservations
        )

    def _preempt(self, request: PlacementRequest, now_s: float) -> PreemptionPlan | None:
        """5. preempt. Nobody is stopped on nodes with crippled links while it would help elsewhere."""
        allowed = allowed_nodes(self.room, request, self.binding(request, now_s), now_s)
        plan = None
        for within in self._whole_first(request, allowed):
            plan = plan or plan_preemption(
                self.releases,
                request,
                self.settings,
                now_s,
                past=self.past,
                stopping=self.stopping,
                spared=self.past_moves.spared(self.settings, now_s),
                allowed=within,
                preferred=self.anchored > 0,
            )
        if plan is None:
            if len(self._in_vain_until_s) >= SHAPES_MAX:
                self._in_vain_until_s.clear()
            self._in_vain_until_s[request.shape] = now_s + PREEMPT_AGAIN_S
        else:
            self.past.note(plan, now_s)
            for victim in plan.victims:
                self.stops(victim.request.id, now_s=now_s)
        return plan

    def _make_room(self, now_s: float) -> list[PreemptionPlan]:
        """Small work leaves the nodes that are kept for what has waited long, once nothing else is in the way."""
        for kept in self.reservations:
            if not self.kept.may_be_ready(kept, now_s):
                continue
            self._look_at(kept.request)
            plan = plan_making_room(
                self.releases,
                kept,
                self.settings,
                now_s,
                past=self.past_moves,
                spared=self.spared(now_s),
                stopping=self.stopping,
            )
            if plan is not None:
                self.past_moves.note(plan, now_s)
                for victim in plan.victims:
                    self.stops(victim.request.id, now_s=now_s)
            return [] if plan is None else [plan]  # one look costs a millisecond
        return []

    # For other hubs

    def hold(self, request: PlacementRequest, *, now_s: float, until_s: float) -> GpuAssignment | None:
        """Books GPUs for somebody who may come. Until then they count as held by what is about to end."""
        if self._over_quota(request, now_s) is not None:
            return None
        assignment = self._try(request, now_s)
        if assignment is not None:
            self.stopping[request.id] = until_s
        return assignment

    def start_estimate_s(self, request: PlacementRequest, *, now_s: float) -> float | None:
        """In how many seconds it could start if it came now, from what running work promised; None: nobody knows."""
        outlook = RoomOutlook(
            self.releases,
            now_s,
            margin_s=self.settings.backfill_margin_s,
            assumed_s=self.settings.assumed_duration_s,
            stopping=self.stopping,
        )
        plan = plan_reservation(outlook, request, taken=self.reservations)
        return None if plan is None or plan.assumed else max(0.0, plan.start_s - now_s)

    # Making room, and explaining

    def plan_defragmentation(self, request: PlacementRequest, *, now_s: float) -> DefragmentationPlan | None:
        """Which work would have to move so that this request fits; a plan only, nothing is changed."""
        running = [item for key, item in self.running.items() if key not in self.stopping]
        everywhere = np.ones(self.room.arrays.size, np.bool_)
        moves_max = self.settings.moves_max
        for within in self._whole_first(request, everywhere):
            plan = plan_defragmentation(self.room, request, running, now_s, moves_max=moves_max, within=within)
            if plan is not None:
                return plan
        return None

    def _whole_first(self, request: PlacementRequest, allowed: Bools) -> tuple[Bools, ...]:
        """Where to look for it: on nodes whose links are not crippled, then anywhere."""
        burden = self.degradation.of(request, request.tasks)
        if burden is None or not burden.crippled.any():
            return (allowed,)
        return (allowed & ~burden.crippled, allowed)

    def clear(self, plan: DefragmentationPlan, *, now_s: float) -> None:
        """Those who move were told to stop (`stops`): what they leave is kept for the plan's request."""
        ends_s = [self.stopping[move.running.request.id] for move in plan.moves]
        self.clearing = Clearing(plan, max(ends_s, default=now_s) + CLEARING_SLACK_S)
        self.kept.keep_first_for(plan.request, now_s)

    def candidates(self, request: PlacementRequest, *, now_s: float, limit: int) -> tuple[Candidate, ...]:
        """The nodes that one task of the request would get first, best first, with the parts of their scores."""
        allowed = allowed_nodes(self.room, request, self.binding(request, now_s), now_s)
        return tuple(
            Candidate(
                node_id=self.hub.nodes[choice.row].id,
                gpus_free=int(self.room.arrays.gpu_milli_free_sum[choice.row]) // GPU_MILLI,
                score=round(choice.score, 3),
                parts={name: round(value, 3) for name, value in choice.parts.items()},
            )
            for choice in candidates(self, request, allowed, limit)
        )


# What will the next round do? The round itself, on a twin of the scheduler: nothing else can tell it truly.


STARTS_PER_ROUND = 1000
ROUNDS_MAX = 1000  # more than any queue needs


@dataclass(frozen=True)
class Preview:
    """`after` are the books once the next round is done: ask it why those who are not in `starts` wait."""

    starts: frozenset[str]
    after: Scheduler
    now_s: float


def preview(scheduler: Scheduler, *, now_s: float) -> Preview:
    """Changes nothing. Costs a copy of the books and a round, so it is for people who ask."""
    twin = deepcopy(scheduler, {id(scheduler.hub): scheduler.hub})
    starts: set[str] = set()
    for _ in range(ROUNDS_MAX):
        plan = twin.plan(now_s=now_s, placed_max=STARTS_PER_ROUND)
        starts.update(assignment.request.id for assignment in plan.assignments)
        if plan.complete:
            break
    return Preview(frozenset(starts), twin, now_s)
