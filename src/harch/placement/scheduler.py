"""Who gets which GPUs now? The scheduler of one hub: a deterministic value without clock or I/O.

The hub's job machine and `harch simulate` drive the same class. One round is six steps, in this order:

1. heads      whose turn is it (`turns.queue`)
2. hard rules residency first, then quota, processes, what reservations keep free; each "no" is a rule with a number
3. place      one node by score, or a gang in the lowest domain that fits; devices by topology
4. degrade    a gang that waited long enough takes fewer tasks, if it said so
5. preempt    a higher class may take from lower ones, within written limits
6. reserve    the first blocked request keeps the domain that clears first; others may only fill in behind it
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement.defragmentation import DefragmentationPlan, plan_defragmentation
from harch.placement.devices import choose_devices
from harch.placement.explanation import Candidate
from harch.placement.gangs import place_gang
from harch.placement.plan import ALONE, Assignment, Clearing, SchedulePlan, placements_of, reason, slot_of
from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.placement.scorers import BestFit, Choice, Scorer
from harch.placement.topology import TopologyGraph
from harch.placement.turns.preemption import PastPreemptions, PreemptionPlan, plan_preemption
from harch.placement.turns.queue import TurnQueue
from harch.placement.turns.reservations import Reservation, may_backfill, plan_reservation
from harch.placement.turns.running import Running
from harch.placement.turns.settings import LOWEST_CLASS, TurnSettings
from harch.placement.vacancies import Vacancies
from harch.workloads.lifecycle import TaskPlacement
from harch.workloads.spec import Level

PREEMPTIONS_TRIED_MAX = 2  # per round
CLEARING_SLACK_S = 60.0  # an agent that is slow to say that a task has ended does not undo a plan

PREEMPT_AGAIN_S = 20.0  # a search for victims costs milliseconds, and what runs changes slowly
RESERVE_AGAIN_S = 60.0  # the same for a plan of when and where a request will fit
SHAPES_MAX = 1000


@dataclass
class Scheduler:
    """The capacity of a hub, who waits for it and who holds it."""

    hub: Hub
    settings: TurnSettings = field(default_factory=TurnSettings)
    room: Room = field(init=False)
    scorer: Scorer = field(init=False)
    queue: TurnQueue = field(init=False)
    running: dict[str, Running] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    stopping: dict[str, float] = field(default_factory=dict)  # told to make room, and when it has surely ended
    past: PastPreemptions = field(default_factory=PastPreemptions)
    clearing: Clearing | None = None  # at most one at a time
    topology: TopologyGraph = field(init=False)
    vacancies: Vacancies = field(init=False)
    kept: dict[int, Reservation] = field(default_factory=dict)  # `reservations` by row
    _plan_again_s: dict[str, float] = field(default_factory=dict)  # by request
    _in_vain_until_s: dict[object, float] = field(default_factory=dict)  # shapes for which nobody could be stopped

    def __post_init__(self) -> None:
        self.room = Room(self.hub)
        self.vacancies = Vacancies(self.room)
        self.topology = TopologyGraph(self.room)
        self.scorer = BestFit(self.room)
        self.queue = TurnQueue(self.settings, self.room)

    # What happens

    def submit(self, request: Request, *, now_s: float) -> None:
        self.scorer.observe(self.room.kind(request.needs))
        # Whoever was stopped for a higher class waits anew: by its age it would take its place back at once.
        was_stopped = request.id in self.past.spared(self.settings, now_s)
        self.queue.add(request, now_s, waiting_since_s=now_s if was_stopped else request.submitted_s)

    def withdraw(self, request_id: str) -> None:
        self.queue.remove(request_id)

    def resume(self, request: Request, tasks: tuple[TaskPlacement, ...], *, started_s: float, now_s: float) -> None:
        """Books what already holds GPUs, e.g. after a restart of the hub."""
        slots = tuple(slot_of(self.room, task) for task in tasks)
        self._book(request, slots, started_s=started_s, now_s=now_s)

    def stops(self, request_id: str, *, now_s: float) -> None:
        """It was told to stop, by whomever: its place comes free after its grace."""
        running = self.running[request_id]
        self.stopping[request_id] = now_s + running.stop_grace_s + self.settings.backfill_margin_s

    def ended(self, request_id: str, *, now_s: float) -> None:
        """Frees what the request held, exactly once."""
        running = self.running.pop(request_id, None)
        if running is None:
            raise InvariantBroken("only held GPUs are freed", request_id)
        needs, exclusive = running.request.needs, running.request.topology.exclusive
        kind = self.room.kind(needs)
        for slot in running.slots:
            self.room.give_back(needs, slot, exclusive=exclusive)
            self.scorer.release(kind, slot)
            for device in slot.devices:
                if not self.room.healthy[slot.row, device]:
                    self.scorer.withhold(slot.row, device, kind.gpu_milli)
        if running.request.runs_process:
            self.room.process_slots_free += len(running.slots)
        self.stopping.pop(request_id, None)
        self.vacancies.add(slot.row for slot in running.slots)
        self.queue.released(request_id, now_s)

    # For other hubs

    def hold(self, request: Request, *, now_s: float, until_s: float) -> Assignment | None:
        """Books GPUs for somebody who may come. Until then they count as held by what is about to end."""
        if self.queue.quota_rejection(request) is not None:
            return None
        assignment = self._try(request, list(self.reservations), now_s=now_s)
        if assignment is not None:
            self.stopping[request.id] = until_s
            self.vacancies.changed(slot.row for slot in assignment.slots)
        return assignment

    def hand_over(self, hold_id: str, request: Request, *, now_s: float) -> None:
        """What was held is this request's now."""
        held = self.running.pop(hold_id)
        self.stopping.pop(hold_id, None)
        self.queue.released(hold_id, now_s)
        self.running[request.id] = Running(
            request=request, slots=held.slots, started_s=now_s, stop_grace_s=request.stop_grace_s
        )
        self.queue.holds(request.id, request, len(held.slots), now_s)

    def start_estimate_s(self, request: Request, *, now_s: float) -> float | None:
        """In how many seconds it could start if it came now, from what running work promised; None: nobody knows."""
        plan = plan_reservation(
            self.room,
            request,
            list(self.running.values()),
            now_s,
            taken=list(self.reservations),
            before=None,
            stopping=self.stopping,
            margin_s=self.settings.backfill_margin_s,
        )
        return None if plan is None or plan.start_s == math.inf else max(0.0, plan.start_s - now_s)

    # The hardware changes; the next decision sees it

    def serve(self, node_ids: tuple[str, ...], served: bool) -> None:
        """An agent serves these nodes, or no longer does."""
        self.room.serve(node_ids, served)
        self._look_again()
        self._show_availability(node_ids)

    def cordon(self, node_id: str, cordoned: bool) -> None:
        self.room.cordon(node_id, cordoned)
        self._look_again()
        self._show_availability((node_id,))

    def set_health(self, node_id: str, device: int, healthy: bool) -> None:
        row = self.room.row_of[node_id]
        before = int(self.room.withheld_milli[row, device])
        self.room.set_health(node_id, device, healthy)
        self._look_again()
        self.scorer.withhold(row, device, int(self.room.withheld_milli[row, device]) - before)

    def set_cooling(self, zone: int, heat_kw_max: float) -> None:
        self.room.set_cooling(zone, heat_kw_max)
        self._look_again()

    def _look_again(self) -> None:
        """What did not fit may fit now, and what could not be kept free may be kept."""
        self.vacancies.add_everything()
        self._plan_again_s.clear()

    def use(self, scorer: Scorer) -> None:
        """Swaps the scorer: the new one, made for an empty room, is shown everything that is not free."""
        for running in self.running.values():
            for slot in running.slots:
                scorer.take(self.room.kind(running.request.needs), slot)
        for row, device in zip(*np.nonzero(self.room.withheld_milli), strict=True):
            scorer.withhold(int(row), int(device), int(self.room.withheld_milli[row, device]))
        self.scorer = scorer
        self.vacancies.add_everything()
        self._show_availability(tuple(self.room.row_of))

    def _show_availability(self, node_ids: tuple[str, ...]) -> None:
        for node_id in node_ids:
            row = self.room.row_of[node_id]
            self.scorer.set_available(row, bool(self.room.arrays.available[row]))

    # Deciding

    def plan(self, *, now_s: float, placed_max: int) -> SchedulePlan:
        """One round. Deterministic: the same happenings before it give the same plan."""
        preemptions: list[PreemptionPlan] = []
        assignments, reservations = self._serve_cleared(now_s)
        reserve_left = self.settings.reservations_max
        tried: set[object] = set()  # shapes for which preemption was considered
        order = self.queue.in_order(now_s, lambda waiting: self.vacancies.may_serve(waiting, self.kept, now_s))
        for request in order:  # 1. heads
            rejected = self.queue.quota_rejection(request)
            blocked = order.is_blocked or (
                order.is_again and not self.vacancies.may_serve(request, self.kept, now_s)
            )  # somebody before it took what came free
            assignment = None if rejected or blocked else self._try(request, reservations, now_s=now_s)
            if assignment is not None:
                assignments.append(assignment)
                self.vacancies.changed(slot.row for slot in assignment.slots)
                if len(assignments) >= placed_max:
                    self._keep(reservations)
                    return SchedulePlan(tuple(assignments), tuple(preemptions), self.reservations, complete=False)
                continue
            order.skip_group(blocked=rejected is None and _waits_for_room_only(request, now_s))
            if rejected is None and self._may_run_here(request):
                # Both plans cost milliseconds, so a round makes few; whoever is left out is first in one of the next.
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
                has_one = any(kept.request.id == request.id for kept in reservations)
                if (
                    reserve_left and not has_one
                ):  # also spent where nothing can be kept: a plan is dear, and many may be blocked
                    reserve_left -= 1
                    reservation = self._reserve(request, reservations, now_s)
                    if reservation is not None:
                        reservations.append(reservation)
        self.vacancies.clear()
        self._keep(reservations)
        return SchedulePlan(tuple(assignments), tuple(preemptions), self.reservations)

    def _serve_cleared(self, now_s: float) -> tuple[list[Assignment], list[Reservation]]:
        """Whom others made room for goes first; until it fits, its nodes are kept before those of anybody else."""
        clearing = self.clearing
        if clearing is None:
            return [], []
        request = self.queue.waiting(clearing.plan.request.id)
        if request is None or now_s >= clearing.until_s or not self._may_run_here(request):
            self.clearing = None
            return [], []
        reservation = self._reserve(request, [], now_s)
        kept = [] if reservation is None else [reservation]
        if self.queue.quota_rejection(request) is None:
            assignment = self._try(request, kept, now_s=now_s)
            if assignment is not None:
                self.clearing = None
                self.vacancies.changed(slot.row for slot in assignment.slots)
                return [assignment], []
        return [], kept

    def _keep(self, reservations: list[Reservation]) -> None:
        """What is no longer kept, or kept for later, is open to others."""
        start_s = {row: kept.start_s for kept in reservations for row in kept.rows}
        self.vacancies.add(
            row for before in self.reservations for row in before.rows if start_s.get(row, math.inf) > before.start_s
        )
        self.reservations = tuple(reservations)
        self.kept = {row: kept for kept in reservations for row in kept.rows}

    def _try(self, request: Request, reservations: list[Reservation], *, now_s: float) -> Assignment | None:
        if not self._may_run_here(request):
            return None
        allowed = self._allowed(request, reservations, now_s)
        for tasks in self._sizes(request, now_s):  # 4. degrade: smaller sizes come last, and only once they are due
            if request.runs_process and tasks > self.room.process_slots_free:
                continue
            assignment = self._place(request, tasks, allowed, now_s)
            if assignment is not None:
                return assignment
        return None

    def _may_run_here(self, request: Request) -> bool:
        """2. hard rules: residency comes first, and no later step ever sees a forbidden request."""
        return not request.countries_allowed or self.hub.country in request.countries_allowed

    def _allowed(self, request: Request, reservations: list[Reservation], now_s: float) -> Bools:
        allowed = ~self.room.exclusive_on
        if request.topology.exclusive:
            allowed &= self.room.tasks_on == 0
        if request.needs.gpus and self.room.power_can_bind:
            allowed &= self.room.watts_free() >= self.room.watts(request.needs)
        for reservation in reservations:
            allowed &= may_backfill(
                request,
                reservation,
                self.room,
                now_s,
                stop_grace_s=request.stop_grace_s,
                own=self._reservation_of(request),
            )
        return allowed

    @staticmethod
    def _sizes(request: Request, now_s: float) -> list[int]:
        if request.tasks_min < request.tasks and now_s - request.submitted_s >= request.degrade_after_s:
            return list(range(request.tasks, request.tasks_min - 1, -1))
        return [request.tasks]

    def _place(self, request: Request, tasks: int, allowed: Bools, now_s: float) -> Assignment | None:
        """3. place."""
        one_island = request.topology.required is Level.ISLAND and request.needs.gpus > 1
        if tasks == 1 and request.tasks == 1 and not one_island:
            choice = self._choose(request, allowed)
            if choice is None:
                return None
            devices = choose_devices(self.room, choice.row, request.needs, device=choice.device)
            if devices is None:
                raise InvariantBroken("a scorer chooses nodes with room", self.hub.nodes[choice.row].id, request.id)
            slots: tuple[TaskSlot, ...] = (TaskSlot(choice.row, devices),)
        else:
            found = self._place_gang(request, tasks, allowed)
            if found is None:
                return None
            slots, choice = found, Choice(found[0].row, None, 0.0, {})
        self._book(request, slots, started_s=now_s, now_s=now_s)
        placements = placements_of(self.room, slots)
        prediction = ALONE if sum(len(slot.devices) for slot in slots) < 2 else self.topology.predict(request, slots)
        why = reason(self.room, self.scorer.name, request, slots, prediction)
        return Assignment(request, slots, placements, choice.score, choice.parts, prediction, why)

    def _place_gang(self, request: Request, tasks: int, allowed: Bools) -> tuple[TaskSlot, ...] | None:
        return place_gang(self.room, request, tasks, rank_nodes=self.scorer.node_scores, allowed=allowed)

    def _choose(self, request: Request, allowed: Bools) -> Choice | None:
        """The first wanted model that has room, so that a preference is one; any model at once if none is preferred."""
        needs = request.needs
        if len(needs.gpu_models) < 2:
            return self.scorer.choose(self.room.kind(needs), allowed)
        for model in needs.gpu_models:
            choice = self.scorer.choose(self.room.kind(replace_models(request, model).needs), allowed)
            if choice is not None:
                return choice
        return None

    def _book(self, request: Request, slots: tuple[TaskSlot, ...], *, started_s: float, now_s: float) -> None:
        if request.id in self.running:
            raise InvariantBroken("a workload is placed once", request.id)
        kind = self.room.kind(request.needs)
        for slot in slots:
            self.room.take(request.needs, slot, exclusive=request.topology.exclusive)
            self.scorer.take(kind, slot)
        if request.runs_process:
            self.room.process_slots_free -= len(slots)
        self.running[request.id] = Running(
            request=request, slots=slots, started_s=started_s, stop_grace_s=request.stop_grace_s
        )
        self.queue.holds(request.id, request, len(slots), now_s)

    def _preempt(self, request: Request, now_s: float) -> PreemptionPlan | None:
        """5. preempt."""
        plan = plan_preemption(
            self.room,
            request,
            list(self.running.values()),
            self.settings,
            now_s,
            past=self.past,
            stopping=self.stopping,
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

    def _reserve(self, request: Request, taken: list[Reservation], now_s: float) -> Reservation | None:
        """6. reserve."""
        before = self._reservation_of(request)
        if before is not None and self._still_holds(before, taken, now_s):
            return before
        if self._rests(request, before, now_s):
            return before if before is not None and self._is_free_for(before, taken) else None
        if len(self._plan_again_s) >= SHAPES_MAX:
            self._plan_again_s.clear()
        self._plan_again_s[request.id] = now_s + RESERVE_AGAIN_S
        return plan_reservation(
            self.room,
            request,
            list(self.running.values()),
            now_s,
            taken=taken,
            before=before,
            stopping=self.stopping,
            margin_s=self.settings.backfill_margin_s,
        )

    def _reservation_of(self, request: Request) -> Reservation | None:
        return next((kept for kept in self.reservations if kept.request.id == request.id), None)

    def _still_holds(self, before: Reservation, taken: list[Reservation], now_s: float) -> bool:
        """Until its start, a promise need not be made again, unless nodes share power or cooling that may run short.

        Where no start was promised, one may be as soon as something on the nodes has ended.
        """
        if now_s >= before.start_s or self.room.power_can_bind:
            return False
        if before.start_s == math.inf and self.vacancies.is_on(before.rows):
            return False
        return self._is_free_for(before, taken)

    def _rests(self, request: Request, before: Reservation | None, now_s: float) -> bool:
        """A plan was made lately, so none is made now; but where power may run short, an old plan says too little."""
        if self.room.power_can_bind or (before is not None and now_s >= before.start_s):
            return False
        return now_s < self._plan_again_s.get(request.id, -math.inf)

    def _is_free_for(self, before: Reservation, taken: list[Reservation]) -> bool:
        rows = set(before.rows)
        return bool(self.room.arrays.available[list(rows)].all()) and all(rows.isdisjoint(kept.rows) for kept in taken)

    def plan_defragmentation(self, request: Request, *, now_s: float) -> DefragmentationPlan | None:
        """Which work would have to move so that this request fits; a plan only, nothing is changed."""
        running = [item for key, item in self.running.items() if key not in self.stopping]
        return plan_defragmentation(self.room, request, running, now_s, moves_max=self.settings.moves_max)

    def clear(self, plan: DefragmentationPlan, *, now_s: float) -> None:
        """Those who move were told to stop (`stops`): what they leave is kept for the plan's request."""
        ends_s = [self.stopping[move.running.request.id] for move in plan.moves]
        self.clearing = Clearing(plan, max(ends_s, default=now_s) + CLEARING_SLACK_S)
        self._plan_again_s.pop(plan.request.id, None)
        own = self._reservation_of(plan.request)
        if own is not None:  # it was made for other nodes, and would be kept as long as nothing ends there
            self.vacancies.add(own.rows)
            self.reservations = tuple(kept for kept in self.reservations if kept is not own)
            self.kept = {row: kept for kept in self.reservations for row in kept.rows}

    def candidates(self, request: Request, *, limit: int) -> tuple[Candidate, ...]:
        """The nodes that one task of the request would get first, best first, with the parts of their scores."""
        allowed = self._allowed(request, list(self.reservations), request.submitted_s)
        return tuple(
            Candidate(
                node_id=self.hub.nodes[choice.row].id,
                gpus_free=int(self.room.arrays.gpu_milli_free_sum[choice.row]) // GPU_MILLI,
                score=round(choice.score, 3),
                parts={name: round(value, 3) for name, value in choice.parts.items()},
            )
            for choice in self.scorer.candidates(self.room.kind(request.needs), allowed, limit)
        )


def _waits_for_room_only(request: Request, now_s: float) -> bool:
    """Neither time nor processes that end can make it fit: only room that comes free."""
    whole = request.tasks_min == request.tasks or now_s - request.submitted_s >= request.degrade_after_s
    return whole and not request.runs_process


def replace_models(request: Request, model: str) -> Request:
    """The same request for one model only."""
    return replace(request, needs=replace(request.needs, gpu_model=model, gpu_models=()))
