"""What happens at all hubs of a fleet, event by event? Arrivals, rounds, starts, ends, stops and restarts.

One queue of events in simulated time drives one policy per hub, the real scheduler among them. Work is tried at the hub
that it came to. What the first round there cannot start, and what may leave the country, goes once to the nearest hub
whose own queue leaves room for it: a *modelled* spill-over that stands for the federation's offers and leases.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from itertools import count
from math import floor

from harch.base.clock import Clock
from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.request import Request
from harch.placement.room import TaskSlot
from harch.placement.topology import TopologyGraph
from harch.simulate.jobs import Job, Workload
from harch.simulate.ledger import Ledger
from harch.simulate.policies import HubPolicy, Start
from harch.simulate.tally import Gang, Tally

STARTS_PER_ROUND_MAX = 1000
_PROGRESS_EVERY = 512

Progress = Callable[[float, float], None]  # seconds replayed, of how many


class Event(IntEnum):
    """At the same moment, what comes free is free before anybody is served."""

    ENDED = 0
    ARRIVED = 1
    ROUND = 2


@dataclass(slots=True)
class Run:
    """A job that holds GPUs."""

    job: Job
    site: Site
    slots: tuple[TaskSlot, ...]
    started_s: float
    ends_s: float
    idle_s: float  # of it, before work goes on after a restart
    stopping: bool = False

    @property
    def pace(self) -> float:
        """A gang that started with fewer tasks works that much slower."""
        return len(self.slots) / self.job.request.tasks

    @property
    def gpu_milli(self) -> int:
        return len(self.slots) * self.site.milli_per_task(self.job.request)


@dataclass
class Site:
    """One hub in the replay."""

    hub: Hub
    policy: HubPolicy
    ledger: Ledger
    graph: TopologyGraph
    neighbours: tuple[str, ...]  # nearest first
    round_due: bool = False
    last_round_s: float = -float("inf")
    fresh: list[Job] = field(default_factory=list)  # arrived since the last round
    waiting_milli: int = 0  # GPUs that its queue asks for

    def milli_per_task(self, request: Request) -> int:
        """What one task takes of GPUs here."""
        return self.policy.room.kind(request.needs).gpu_milli_total

    def waits(self, request: Request, change: int) -> None:
        """`change` is 1 when it begins to wait here, -1 when it no longer does."""
        self.waiting_milli += change * request.tasks * self.milli_per_task(request)

    def offers(self, request: Request) -> bool:
        """True if its own queue leaves room for the request."""
        if request.countries_allowed and self.hub.country not in request.countries_allowed:
            return False
        room = self.policy.room
        takes_milli = request.tasks * self.milli_per_task(request)
        if int(room.arrays.gpu_milli_free_sum.sum()) - self.waiting_milli < max(takes_milli, 1):
            return False
        return int(room.slots(request.needs, exclusive=request.topology.exclusive).sum()) >= request.tasks


@dataclass
class Cost:
    """Wall-clock time that the policies took."""

    deciding_s: float = 0.0
    rounds_s: list[float] = field(default_factory=list)
    starts: int = 0


class FleetReplay:
    """Runs once. Everything that is counted is in `tally`, `violations` and `cost` afterwards."""

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        new_policy: Callable[[Hub], HubPolicy],
        *,
        clock: Clock,
        cycle_s: float,
        starts_max: int = STARTS_PER_ROUND_MAX,
        progress: Progress | None = None,
    ) -> None:
        self._workload, self._clock, self._cycle_s, self._starts_max = workload, clock, cycle_s, starts_max
        self._progress = progress
        self._end_s = workload.hours * 3600
        self._sites = {hub.id: _site(fleet, hub, new_policy(hub)) for hub in fleet.hubs}
        self._jobs = {job.request.id: job for job in workload.jobs}
        self._running: dict[str, Run] = {}
        self._left_s: dict[str, float] = {}  # work that remains of jobs that were stopped
        self._events: list[tuple[float, Event, int, object]] = []
        self._numbers = count()
        self._digest = blake2b(digest_size=16)
        self.tally = Tally(fleet, workload)
        self.cost = Cost()

    @property
    def violations(self) -> Counter[str]:
        return sum((site.ledger.violations for site in self._sites.values()), Counter[str]())

    @property
    def digest(self) -> str:
        """Equal for equal placements at equal times."""
        return self._digest.hexdigest()

    def run(self) -> None:
        for job in self._workload.jobs:
            self._at(job.request.submitted_s, Event.ARRIVED, job)
        happened = 0
        while self._events and self._events[0][0] <= self._end_s:
            now_s, _, _, subject = heapq.heappop(self._events)
            if isinstance(subject, Job):
                self._arrived(subject, now_s)
            elif isinstance(subject, Run):
                self._ended(subject, now_s)
            elif isinstance(subject, Site):
                self._round(subject, now_s)
            happened += 1
            if self._progress is not None and happened % _PROGRESS_EVERY == 0:
                self._progress(now_s, self._end_s)
        for hub in self.tally.hubs.values():
            hub.advance(self._end_s)
        for run in self._running.values():
            self._count_time(run, self._end_s)
        if self._progress is not None:
            self._progress(self._end_s, self._end_s)

    def _at(self, at_s: float, event: Event, subject: Job | Run | Site) -> None:
        heapq.heappush(self._events, (at_s, event, next(self._numbers), subject))

    # What happens

    def _arrived(self, job: Job, now_s: float) -> None:
        site = self._sites[job.home]
        site.fresh.append(job)
        self._submit(site, job.request, now_s)
        if job.request.tasks_min < job.request.tasks:  # from then on a smaller start is possible
            self._at(now_s + job.request.degrade_after_s, Event.ROUND, site)

    def _submit(self, site: Site, request: Request, now_s: float) -> None:
        started_s = self._clock.monotonic_s()
        site.policy.submit(request, now_s=now_s)
        self.cost.deciding_s += self._clock.monotonic_s() - started_s
        site.waits(request, 1)
        self._ask_for_round(site, now_s)

    def _ask_for_round(self, site: Site, now_s: float) -> None:
        if not site.round_due:
            site.round_due = True
            self._at(max(now_s, site.last_round_s + self._cycle_s), Event.ROUND, site)

    def _round(self, site: Site, now_s: float) -> None:
        site.round_due, site.last_round_s = False, now_s
        while True:
            started_s = self._clock.monotonic_s()
            decisions = site.policy.decide(now_s=now_s, starts_max=self._starts_max)
            took_s = self._clock.monotonic_s() - started_s
            self.cost.deciding_s += took_s
            self.cost.rounds_s.append(took_s)
            for start in decisions.starts:
                self._start(site, start, now_s)
            for request_id in decisions.stops:
                self._stop(request_id, now_s)
            if decisions.complete:
                break
        fresh, site.fresh = site.fresh, []
        for job in fresh:
            if job.request.id not in self._running:
                self._spill(job, site, now_s)

    def _start(self, site: Site, start: Start, now_s: float) -> None:
        job, tally = self._jobs[start.request.id], self.tally
        request, restarted = job.request, start.request.id in self._left_s
        site.ledger.start(request, start.slots)
        site.waits(request, -1)
        idle_s = self._workload.running.restart_s if restarted else 0.0
        run = Run(job, site, start.slots, now_s, 0.0, idle_s)
        run.ends_s = now_s + idle_s + self._left_s.get(request.id, job.duration_s) / run.pace
        self._running[request.id] = run
        self._at(run.ends_s, Event.ENDED, run)
        busy = self._workload.running.busy_share[request.turn_class]
        tally.hubs[site.hub.id].change(now_s, run.gpu_milli, run.gpu_milli * busy)
        tally.waits_s.setdefault(request.id, now_s - request.submitted_s)
        tally.restarts += restarted
        tally.degraded += len(start.slots) < request.tasks
        if request.tasks > 1 and request.needs.gpus:
            seen = site.graph.predict(request, start.slots)
            tally.gangs.append(Gang(request.tasks * request.needs.gpus, seen.level, seen.slowdown))
        self.cost.starts += 1
        where = ";".join(f"{slot.row}:{slot.devices}" for slot in start.slots)
        self._digest.update(f"{now_s:.3f} {request.id} {site.hub.id} {where}\n".encode())

    def _ended(self, run: Run, now_s: float) -> None:
        """It has done its work, or it was told to stop and has stopped."""
        request = run.job.request
        if self._running.get(request.id) is not run or now_s < run.ends_s:
            return
        self._free(run, now_s)
        if run.stopping:
            self._submit(run.site, request, now_s)

    def _free(self, run: Run, now_s: float) -> None:
        request, site = run.job.request, run.site
        del self._running[request.id]
        site.ledger.end(request.id)
        busy = self._workload.running.busy_share[request.turn_class]
        self.tally.hubs[site.hub.id].change(now_s, -run.gpu_milli, -run.gpu_milli * busy)
        self._count_time(run, now_s)
        started_s = self._clock.monotonic_s()
        site.policy.ended(request.id, now_s=now_s)
        self.cost.deciding_s += self._clock.monotonic_s() - started_s
        self._ask_for_round(site, now_s)

    def _stop(self, request_id: str, now_s: float) -> None:
        """Told to stop for a higher class. It goes on later from its last checkpoint; what it did since is lost."""
        run = self._running[request_id]
        if run.stopping or run.ends_s <= now_s + self._workload.running.stop_s:
            return
        model = self._workload.running
        worked_s = max(0.0, now_s - run.started_s - run.idle_s)
        kept_s = floor(worked_s / model.checkpoint_every_s) * model.checkpoint_every_s
        left_s = self._left_s.get(request_id, run.job.duration_s)
        self._left_s[request_id] = left_s - kept_s * run.pace
        run.stopping, run.ends_s = True, now_s + model.stop_s
        self._at(run.ends_s, Event.ENDED, run)
        self.tally.preemptions += 1
        self.tally.lost_gpu_s += (run.ends_s - run.started_s - kept_s) * run.gpu_milli / GPU_MILLI

    def _spill(self, job: Job, home: Site, now_s: float) -> None:
        request = job.request
        for name in home.neighbours:
            site = self._sites[name]
            if site.offers(request):
                home.policy.withdraw(request.id)
                home.waits(request, -1)
                self._submit(site, request, now_s)
                self.tally.spilled += 1
                return

    def _count_time(self, run: Run, until_s: float) -> None:
        self.tally.tenant_gpu_s[run.job.request.tenant] += (until_s - run.started_s) * run.gpu_milli / GPU_MILLI


def _site(fleet: Fleet, hub: Hub, policy: HubPolicy) -> Site:
    rtt_ms = {end: link.rtt_ms for link in fleet.links_of(hub.id) for end in link.ends if end != hub.id}
    others = sorted((other.id for other in fleet.hubs if other is not hub), key=lambda name: rtt_ms.get(name, 1e9))
    return Site(hub, policy, Ledger(hub), TopologyGraph(policy.room), tuple(others))
