"""What happens at all hubs, event by event, while a router decides where and when? The carbon twin of `fleet_replay`.

One queue of events in simulated time drives the real scheduler of every hub. The router chooses the hub and the moment;
the scheduler chooses the GPUs, gangs whole. A second book checks every start, and meters bill what the plants gave.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from math import floor, inf
from typing import Protocol

from harch.base.clock import Clock
from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.room import TaskSlot
from harch.simulate.carbon_scenario import CarbonJob, Moving
from harch.simulate.carbon_weather import TAIL_DAYS, Plants, PowerMeter
from harch.simulate.ledger import ReplayLedger
from harch.simulate.policies import HubPolicy
from harch.workloads.spec import SchedulingClass

STARTS_PER_ROUND_MAX = 1000
_PROGRESS_EVERY = 256
_LATE_S = 1.0

Progress = Callable[[float, float], None]


class CarbonEvent(IntEnum):
    """At the same moment, what comes free is free before anybody is served."""

    ENDED = 0
    ARRIVED = 1
    REPLAN = 2


@dataclass(slots=True)
class CarbonRun:
    """A job that holds GPUs."""

    job: CarbonJob
    hub: str
    it_kw: float
    started_s: float
    idle_s: float  # of it, before work goes on after a restart
    ends_s: float
    slots: tuple[TaskSlot, ...] = ()
    stopping: bool = False

    def kept_s(self, now_s: float, checkpoint_every_s: float) -> float:
        """Work of this run that a stop now would keep."""
        return floor(max(0.0, now_s - self.started_s - self.idle_s) / checkpoint_every_s) * checkpoint_every_s


class Router(Protocol):
    """Who decides where and when. It acts by calling the replay back."""

    def arrived(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None: ...


class ReplayPlanner(Router, Protocol):
    """A router that also looks again from time to time, and may stop what runs."""

    replan_s: float

    def stopped(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None: ...

    def replan(self, replay: CarbonReplay, now_s: float) -> None: ...


@dataclass
class CarbonCounts:
    """What is counted beside the meters."""

    waits_s: dict[str, float] = field(default_factory=dict)  # until the first start
    ended_s: dict[str, float] = field(default_factory=dict)
    deciding_ms: list[float] = field(default_factory=list)  # wall clock, per arrival of inference
    moves: int = 0
    suspensions: int = 0
    again_gpu_s: float = 0.0  # GPU time for work done twice and for restarts
    held_gpu_s: float = 0.0
    replans_s: list[float] = field(default_factory=list)  # wall clock


class CarbonReplay:
    """Runs once."""

    def __init__(
        self,
        fleet: Fleet,
        jobs: tuple[CarbonJob, ...],
        plants: Mapping[str, Plants],
        moving: Moving,
        router: Router,
        new_policy: Callable[[Hub], HubPolicy],
        *,
        days: int,
        clock: Clock,
        planner: ReplayPlanner | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.fleet, self.jobs, self.moving, self._clock = fleet, jobs, moving, clock
        self._router, self._planner = router, planner
        self.hubs = {hub.id: hub for hub in fleet.hubs}
        self.plants = plants
        self.meters = {hub.id: PowerMeter(plants[hub.id]) for hub in fleet.hubs}
        self.counts = CarbonCounts()
        self.running: dict[str, CarbonRun] = {}
        self.queued: dict[str, str] = {}  # hub whose scheduler has it in its queue, by job
        self.kept_s: dict[str, float] = {}  # work that is in checkpoints
        self.left_from: dict[str, str] = {}  # hub where the checkpoint lies
        self._policies = {hub.id: new_policy(hub) for hub in fleet.hubs}
        self._ledgers = {hub.id: ReplayLedger(hub) for hub in fleet.hubs}
        self._by_id = {job.request.id: job for job in jobs}
        self._outside: Counter[str] = Counter()
        self._events: list[tuple[float, CarbonEvent, int, CarbonJob | CarbonRun | None]] = []
        self._numbers = count()
        self._end_s = (days + TAIL_DAYS) * 86400.0
        self._progress = progress

    @property
    def violations(self) -> Counter[str]:
        return sum((ledger.violations for ledger in self._ledgers.values()), self._outside.copy())

    def run(self) -> None:
        for job in self.jobs:
            self._at(job.request.submitted_s, CarbonEvent.ARRIVED, job)
        if self._planner is not None:
            self._at(0.0, CarbonEvent.REPLAN, None)
        happened = 0
        while self._events and len(self.counts.ended_s) < len(self.jobs):
            now_s, event, _, subject = heapq.heappop(self._events)
            if now_s > self._end_s:
                break
            if isinstance(subject, CarbonJob):
                self._arrived(subject, now_s)
            elif isinstance(subject, CarbonRun):
                self._ended(subject, now_s)
            elif event is CarbonEvent.REPLAN and self._planner is not None:
                began_s = self._clock.monotonic_s()
                self._planner.replan(self, now_s)
                self.counts.replans_s.append(self._clock.monotonic_s() - began_s)
                self._at(now_s + self._planner.replan_s, CarbonEvent.REPLAN, None)
            happened += 1
            if self._progress is not None and happened % _PROGRESS_EVERY == 0:
                self._progress(now_s, self._end_s)
        last_s = max(self.counts.ended_s.values(), default=0.0)
        for meter in self.meters.values():
            meter.advance(last_s)

    # For routers

    def can_start(self, job: CarbonJob, hub: str) -> bool:
        """True if the hub has room for all of it, by a first look."""
        needs = job.request.needs
        room = self._policies[hub].room
        return int(room.slots(needs, exclusive=False).sum()) >= job.request.tasks

    def try_start(self, job: CarbonJob, hub: str, now_s: float) -> bool:
        """Starts it there now, or leaves no trace."""
        if not self.can_start(job, hub):
            return False
        self.queue(job, hub, now_s)
        if job.request.id in self.running:
            return True
        self._policies[hub].withdraw(job.request.id)
        del self.queued[job.request.id]
        return False

    def queue(self, job: CarbonJob, hub: str, now_s: float) -> None:
        """Hands it to the hub's scheduler, which starts it when its turn has come."""
        if hub not in job.hubs:
            self._outside["hub_not_allowed"] += 1
        self.queued[job.request.id] = hub
        self._policies[hub].submit(job.request, now_s=now_s)
        self._round(hub, now_s)

    def serve(self, hub: str, now_s: float) -> None:
        """Lets the hub's scheduler look at its queue again: with time what is kept for some is open to others."""
        self._round(hub, now_s)

    def stop(self, job_id: str, now_s: float) -> None:
        """Gracefully. What it did since its last checkpoint is lost; the router is told when its GPUs are free."""
        run = self.running[job_id]
        if run.stopping or run.ends_s <= now_s + self.moving.stop_s:
            return
        kept_s = run.kept_s(now_s, self.moving.checkpoint_every_s)
        self.kept_s[job_id] = self.kept_s.get(job_id, 0.0) + kept_s
        self.left_from[job_id] = run.hub
        run.stopping, run.ends_s = True, now_s + self.moving.stop_s
        self.counts.again_gpu_s += (run.ends_s - run.started_s - kept_s) * run.job.kind.gpus
        self._at(run.ends_s, CarbonEvent.ENDED, run)

    def job(self, job_id: str) -> CarbonJob:
        return self._by_id[job_id]

    def gpus_free(self, hub: str, model: str) -> tuple[int, ...]:
        """Whole GPUs that are free on each node of the hub; none on nodes of another model."""
        room = self._policies[hub].room
        free = (room.arrays.gpu_milli_free >= GPU_MILLI).sum(axis=1).tolist()
        nodes = self.hubs[hub].nodes
        return tuple(count if node.gpu_model.name == model else 0 for node, count in zip(nodes, free, strict=True))

    def grid_g_per_kwh(self, hub: str, now_s: float) -> float:
        plants = self.plants[hub]
        return float(plants.grid_g_per_kwh[plants.step(now_s)])

    def kept(self, hub: str) -> Mapping[int, str]:
        """Rows of the hub's nodes that its scheduler keeps for somebody, and for whom."""
        return self._policies[hub].kept

    def queued_gpus(self, hub: str, model: str) -> int:
        jobs = (self._by_id[job_id] for job_id, where in self.queued.items() if where == hub)
        return sum(job.kind.gpus for job in jobs if job.model == model)

    # What happens

    def _at(self, at_s: float, event: CarbonEvent, subject: CarbonJob | CarbonRun | None) -> None:
        heapq.heappush(self._events, (at_s, event, next(self._numbers), subject))

    def _arrived(self, job: CarbonJob, now_s: float) -> None:
        began_s = self._clock.monotonic_s()
        self._router.arrived(self, job, now_s)
        if job.request.turn_class is SchedulingClass.INFERENCE:
            self.counts.deciding_ms.append(1000 * (self._clock.monotonic_s() - began_s))

    def _round(self, hub: str, now_s: float) -> None:
        policy = self._policies[hub]
        while True:
            decisions = policy.decide(now_s=now_s, starts_max=STARTS_PER_ROUND_MAX)
            for start in decisions.starts:
                self._start(hub, start.request.id, start.slots, now_s)
            if decisions.complete:
                return

    def _start(self, hub: str, job_id: str, slots: tuple[TaskSlot, ...], now_s: float) -> None:
        job = self._by_id[job_id]
        self._ledgers[hub].start(job.request, slots)
        del self.queued[job_id]
        restarted = job_id in self.kept_s
        idle_s = self.moving.restart_s if restarted else 0.0
        nodes = self.hubs[hub].nodes
        it_kw = sum(
            len(slot.devices) * nodes[slot.row].power_w_max / len(nodes[slot.row].gpus) / 1000 for slot in slots
        )
        ends_s = now_s + idle_s + job.duration_s - self.kept_s.get(job_id, 0.0)
        run = CarbonRun(job, hub, it_kw, now_s, idle_s, ends_s, slots)
        self.running[job_id] = run
        self._at(ends_s, CarbonEvent.ENDED, run)
        self.meters[hub].change(now_s, it_kw)
        self.counts.waits_s.setdefault(job_id, now_s - job.request.submitted_s)
        if restarted and self.left_from[job_id] != hub:
            self.counts.moves += 1
            kwh = job.kind.gpus * self.moving.checkpoint_gb_per_gpu * self.moving.transfer_kwh_per_gb
            self.meters[hub].transfer(now_s, kwh)
        elif restarted:
            self.counts.suspensions += 1

    def _ended(self, run: CarbonRun, now_s: float) -> None:
        """It has done its work, or it was told to stop and has stopped."""
        job_id = run.job.request.id
        if self.running.get(job_id) is not run or now_s < run.ends_s:
            return
        del self.running[job_id]
        self._ledgers[run.hub].end(job_id)
        self._policies[run.hub].ended(job_id, now_s=now_s)
        self.meters[run.hub].change(now_s, -run.it_kw)
        self.counts.held_gpu_s += (now_s - run.started_s) * run.job.kind.gpus
        if not run.stopping:
            self.counts.ended_s[job_id] = now_s
        self._round(run.hub, now_s)  # before it looks for a place again: those come first for whom it gave way
        if run.stopping and self._planner is not None:
            self._planner.stopped(self, run.job, now_s)

    # Judging

    def deadline_misses(self) -> int:
        """Deferrable work that ended later than its duration and slack allow, or not at all."""
        ended = self.counts.ended_s
        return sum(ended.get(job.request.id, inf) > job.deadline_s + _LATE_S for job in self.jobs if job.deferrable)

    def promises_broken(self) -> int:
        """Deferrable work whose first start came later than was said."""
        waits = self.counts.waits_s
        return sum(waits.get(job.request.id, inf) > job.slack_s + _LATE_S for job in self.jobs if job.deferrable)
