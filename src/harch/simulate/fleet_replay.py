"""What happens at all hubs of a fleet, event by event, and how did it go?

Arrivals, rounds, starts, ends, stops and restarts; allocation, waits, gangs and fairness, counted while it runs.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from itertools import count
from math import floor
from typing import NamedTuple

import numpy as np

from harch.base.clock import Clock
from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.placement.topology import TopologyGraph
from harch.simulate.arrivals import Job, ReplayWorkload
from harch.simulate.ledger import ReplayLedger
from harch.simulate.policies import HubPolicy, Start
from harch.workloads.spec import Level, SchedulingClass

# How did it go? Allocation, waits, gangs, stops and fairness of one replay, counted while it runs.
#
# *Allocation* is GPUs given to work. *Utilisation* is modelled: a GPU that is held is busy for the share of the time
# that
# the workload file assumes of its class. Slowdowns are predicted by the bandwidth model; they do not prolong the run.


@dataclass
class HubTally:
    """GPU-seconds of one hub, before and since it became saturated."""

    hub: Hub
    saturated_from_s: float | None
    held_milli: int = 0
    busy_milli: float = 0.0
    held_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    held_saturated_gpu_s: float = 0.0
    held_hourly_gpu_s: list[float] = field(default_factory=list)
    _now_s: float = 0.0

    def advance(self, now_s: float) -> None:
        seconds = now_s - self._now_s
        if seconds <= 0:
            return
        self._add_hours(now_s)
        self.held_gpu_s += seconds * self.held_milli / GPU_MILLI
        self.busy_gpu_s += seconds * self.busy_milli / GPU_MILLI
        if self.saturated_from_s is not None:
            saturated_s = max(0.0, now_s - max(self._now_s, self.saturated_from_s))
            self.held_saturated_gpu_s += saturated_s * self.held_milli / GPU_MILLI
        self._now_s = now_s

    def _add_hours(self, now_s: float) -> None:
        """What is held until now, hour by hour."""
        gpus, at_s, hours = self.held_milli / GPU_MILLI, self._now_s, self.held_hourly_gpu_s
        while at_s < now_s:
            hour = int(at_s // 3600)
            if len(hours) <= hour:
                hours += [0.0] * (hour + 1 - len(hours))
            until_s = min(now_s, 3600.0 * (hour + 1))
            hours[hour] += gpus * (until_s - at_s)
            at_s = until_s

    def change(self, now_s: float, milli: int, busy_milli: float) -> None:
        self.advance(now_s)
        self.held_milli += milli
        self.busy_milli += busy_milli


class GangStart(NamedTuple):
    """One start of several tasks that talk to each other."""

    gpus: int
    level: Level  # the lowest domain that holds all of it
    slowdown: float


@dataclass
class FleetTally:
    """One replay. Times are seconds since its start."""

    fleet: Fleet
    workload: ReplayWorkload
    hubs: dict[str, HubTally] = field(init=False)
    waits_s: dict[str, float] = field(default_factory=dict)  # by job, until its first start
    tenant_gpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    gangs: list[GangStart] = field(default_factory=list)
    degraded: int = 0
    preemptions: int = 0
    restarts: int = 0
    lost_gpu_s: float = 0.0
    spilled: int = 0

    def __post_init__(self) -> None:
        requested: defaultdict[str, list[Job]] = defaultdict(list)
        for job in self.workload.jobs:
            requested[job.home].append(job)
        self.hubs = {hub.id: HubTally(hub, saturated_from_s(hub, requested[hub.id])) for hub in self.fleet.hubs}

    # What is made of it

    def allocation_pct(self) -> float:
        held = sum(hub.held_gpu_s for hub in self.hubs.values())
        return 100 * held / (self.fleet.gpu_count * self.workload.hours * 3600)

    def allocation_saturated_pct(self, hubs: Iterable[str] | None = None) -> float | None:
        """Over the saturated part of each hub; None if no hub gets there."""
        held = given = 0.0
        for name in hubs if hubs is not None else self.hubs:
            hub = self.hubs[name]
            if hub.saturated_from_s is not None:
                held += hub.held_saturated_gpu_s
                given += hub.hub.gpu_count * (self.workload.hours * 3600 - hub.saturated_from_s)
        return 100 * held / given if given else None

    def utilisation_pct(self) -> float:
        busy = sum(hub.busy_gpu_s for hub in self.hubs.values())
        return 100 * busy / (self.fleet.gpu_count * self.workload.hours * 3600)

    def waits(self) -> dict[str, dict[str, object]]:
        """Per class. Who has not started has waited until the end: a lower bound of his wait."""
        end_s = self.workload.hours * 3600
        found: dict[str, dict[str, object]] = {}
        for turn_class in SchedulingClass:
            jobs = [job.request for job in self.workload.jobs if job.request.turn_class is turn_class]
            if not jobs:
                continue
            pairs = sorted(
                (self.waits_s.get(one.id, end_s - one.submitted_s), one.id not in self.waits_s) for one in jobs
            )
            p50, p99 = (pairs[int(share * (len(pairs) - 1))] for share in (0.5, 0.99))
            found[turn_class.value] = {
                "jobs": len(jobs),
                "started": sum(one.id in self.waits_s for one in jobs),
                "p50_s": round(p50[0], 1),
                "p99_s": round(p99[0], 1),
                "p99_is_lower_bound": p99[1],
            }
        return found

    def gangs_of(self, gpus: int | None = None) -> dict[str, object]:
        """Starts of gangs, of that size or of any. Slowdown is predicted communication time over the best possible."""
        gangs = [gang for gang in self.gangs if gpus is None or gang.gpus == gpus]
        slowdowns = [gang.slowdown for gang in gangs]
        inside = sum(gang.level is Level.ISLAND for gang in gangs)
        return {
            "starts": len(gangs),
            "in_one_island_pct": round(100 * inside / len(gangs), 2) if gangs else None,
            "predicted_slowdown_mean": round(float(np.mean(slowdowns)), 3) if gangs else None,
            "predicted_slowdown_p99": round(float(np.quantile(slowdowns, 0.99)), 3) if gangs else None,
        }

    def gang_waits(self) -> dict[str, dict[str, object]]:
        """Per size in GPUs: how many gangs came, how many started, and how long they waited."""
        end_s = self.workload.hours * 3600
        by_size: defaultdict[int, list[Job]] = defaultdict(list)
        for job in self.workload.jobs:
            if job.request.tasks > 1 and job.request.needs.gpus:
                by_size[job.request.tasks * job.request.needs.gpus].append(job)
        return {
            str(size): {
                "jobs": len(jobs),
                "started": sum(job.request.id in self.waits_s for job in jobs),
                "p50_s": round(
                    float(np.median([self.waits_s.get(j.request.id, end_s - j.request.submitted_s) for j in jobs])),
                    1,
                ),
            }
            for size, jobs in sorted(by_size.items())
        }

    def fairness_jain(self) -> float | None:
        """Jain's index over tenants of GPU time had per GPU time due; 1 is perfectly fair.

        Due is the max-min fair share of what was given in all: nobody is due more than he asked for.
        """
        requested: defaultdict[str, float] = defaultdict(float)
        for job in self.workload.jobs:
            requested[job.request.tenant] += job.gpu_seconds
        due = max_min(dict(requested), sum(self.tenant_gpu_s.values()))
        ratios = [self.tenant_gpu_s[tenant] / share for tenant, share in due.items() if share > 0]
        return jain(ratios)


def saturated_from_s(hub: Hub, jobs: Sequence[Job]) -> float | None:
    """When the work of a hub would first hold all its GPUs, if everything started on arrival.

    It depends on what arrives and on nothing that a policy does, so all policies are judged over the same hours.
    """
    if not jobs:
        return None
    times = np.array([(job.request.submitted_s, job.request.submitted_s + job.duration_s) for job in jobs])
    milli = np.array([job.request.gpu_milli_total for job in jobs])
    moments = times.T.ravel()
    order = np.argsort(moments, kind="stable")
    held = np.cumsum(np.concatenate([milli, -milli])[order])
    full = np.flatnonzero(held >= hub.gpu_count * GPU_MILLI)
    return float(moments[order][full[0]]) if full.size else None


def max_min(requested: dict[str, float], given: float) -> dict[str, float]:
    """Divides `given`: equal shares, but nobody gets more than he asked for."""
    due: dict[str, float] = {}
    left = given
    for place, tenant in enumerate(sorted(requested, key=lambda name: (requested[name], name))):
        due[tenant] = min(requested[tenant], left / (len(requested) - place))
        left -= due[tenant]
    return due


def jain(values: Sequence[float]) -> float | None:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


# What happens at all hubs of a fleet, event by event? Arrivals, rounds, starts, ends, stops and restarts.
#
# One queue of events in simulated time drives one policy per hub, the real scheduler among them. Work is tried at the
# hub
# that it came to. What the first round there cannot start, and what may leave the country, goes once to the nearest hub
# whose own queue leaves room for it: a *modelled* spill-over that stands for the federation's offers and leases.


STARTS_PER_ROUND_MAX = 1000
_PROGRESS_EVERY = 512

Progress = Callable[[float, float], None]  # seconds replayed, of how many


class FleetEvent(IntEnum):
    """At the same moment, what comes free is free before anybody is served."""

    ENDED = 0
    ARRIVED = 1
    ROUND = 2


@dataclass(slots=True)
class FleetRun:
    """A job that holds GPUs."""

    job: Job
    site: ReplaySite
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
class ReplaySite:
    """One hub in the replay."""

    hub: Hub
    policy: HubPolicy
    ledger: ReplayLedger
    graph: TopologyGraph
    neighbours: tuple[str, ...]  # nearest first
    round_due: bool = False
    last_round_s: float = -float("inf")
    fresh: list[Job] = field(default_factory=list)  # arrived since the last round
    waiting_milli: int = 0  # GPUs that its queue asks for

    def milli_per_task(self, request: PlacementRequest) -> int:
        """What one task takes of GPUs here."""
        return self.policy.room.kind(request.needs).gpu_milli_total

    def waits(self, request: PlacementRequest, change: int) -> None:
        """`change` is 1 when it begins to wait here, -1 when it no longer does."""
        self.waiting_milli += change * request.tasks * self.milli_per_task(request)

    def offers(self, request: PlacementRequest) -> bool:
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
        workload: ReplayWorkload,
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
        self._running: dict[str, FleetRun] = {}
        self._left_s: dict[str, float] = {}  # work that remains of jobs that were stopped
        self._events: list[tuple[float, FleetEvent, int, object]] = []
        self._numbers = count()
        self._digest = blake2b(digest_size=16)
        self.tally = FleetTally(fleet, workload)
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
            self._at(job.request.submitted_s, FleetEvent.ARRIVED, job)
        happened = 0
        while self._events and self._events[0][0] <= self._end_s:
            now_s, _, _, subject = heapq.heappop(self._events)
            if isinstance(subject, Job):
                self._arrived(subject, now_s)
            elif isinstance(subject, FleetRun):
                self._ended(subject, now_s)
            elif isinstance(subject, ReplaySite):
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

    def _at(self, at_s: float, event: FleetEvent, subject: Job | FleetRun | ReplaySite) -> None:
        heapq.heappush(self._events, (at_s, event, next(self._numbers), subject))

    # What happens

    def _arrived(self, job: Job, now_s: float) -> None:
        site = self._sites[job.home]
        site.fresh.append(job)
        self._submit(site, job.request, now_s)
        if job.request.tasks_min < job.request.tasks:  # from then on a smaller start is possible
            self._at(now_s + job.request.degrade_after_s, FleetEvent.ROUND, site)

    def _submit(self, site: ReplaySite, request: PlacementRequest, now_s: float) -> None:
        started_s = self._clock.monotonic_s()
        site.policy.submit(request, now_s=now_s)
        self.cost.deciding_s += self._clock.monotonic_s() - started_s
        site.waits(request, 1)
        self._request_round(site, now_s)

    def _request_round(self, site: ReplaySite, now_s: float) -> None:
        if not site.round_due:
            site.round_due = True
            self._at(max(now_s, site.last_round_s + self._cycle_s), FleetEvent.ROUND, site)

    def _round(self, site: ReplaySite, now_s: float) -> None:
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
                self._lend(job, site, now_s)

    def _start(self, site: ReplaySite, start: Start, now_s: float) -> None:
        job, tally = self._jobs[start.request.id], self.tally
        request, restarted = job.request, start.request.id in self._left_s
        site.ledger.start(request, start.slots)
        site.waits(request, -1)
        idle_s = self._workload.running.restart_s if restarted else 0.0
        run = FleetRun(job, site, start.slots, now_s, 0.0, idle_s)
        run.ends_s = now_s + idle_s + self._left_s.get(request.id, job.duration_s) / run.pace
        self._running[request.id] = run
        self._at(run.ends_s, FleetEvent.ENDED, run)
        busy = self._workload.running.busy_share[request.turn_class]
        tally.hubs[site.hub.id].change(now_s, run.gpu_milli, run.gpu_milli * busy)
        tally.waits_s.setdefault(request.id, now_s - request.submitted_s)
        tally.restarts += restarted
        tally.degraded += len(start.slots) < request.tasks
        if request.tasks > 1 and request.needs.gpus:
            seen = site.graph.predict(request, start.slots)
            tally.gangs.append(GangStart(request.tasks * request.needs.gpus, seen.level, seen.slowdown))
        self.cost.starts += 1
        where = ";".join(f"{slot.row}:{slot.devices}" for slot in start.slots)
        self._digest.update(f"{now_s:.3f} {request.id} {site.hub.id} {where}\n".encode())

    def _ended(self, run: FleetRun, now_s: float) -> None:
        """It has done its work, or it was told to stop and has stopped."""
        request = run.job.request
        if self._running.get(request.id) is not run or now_s < run.ends_s:
            return
        self._free(run, now_s)
        if run.stopping:
            self._submit(run.site, request, now_s)

    def _free(self, run: FleetRun, now_s: float) -> None:
        request, site = run.job.request, run.site
        del self._running[request.id]
        site.ledger.end(request.id)
        busy = self._workload.running.busy_share[request.turn_class]
        self.tally.hubs[site.hub.id].change(now_s, -run.gpu_milli, -run.gpu_milli * busy)
        self._count_time(run, now_s)
        started_s = self._clock.monotonic_s()
        site.policy.ended(request.id, now_s=now_s)
        self.cost.deciding_s += self._clock.monotonic_s() - started_s
        self._request_round(site, now_s)

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
        self._at(run.ends_s, FleetEvent.ENDED, run)
        self.tally.preemptions += 1
        self.tally.lost_gpu_s += (run.ends_s - run.started_s - kept_s) * run.gpu_milli / GPU_MILLI

    def _lend(self, job: Job, home: ReplaySite, now_s: float) -> None:
        request = job.request
        for name in home.neighbours:
            site = self._sites[name]
            if site.offers(request):
                home.policy.withdraw(request.id)
                home.waits(request, -1)
                self._submit(site, request, now_s)
                self.tally.spilled += 1
                return

    def _count_time(self, run: FleetRun, until_s: float) -> None:
        self.tally.tenant_gpu_s[run.job.request.tenant] += (until_s - run.started_s) * run.gpu_milli / GPU_MILLI


def _site(fleet: Fleet, hub: Hub, policy: HubPolicy) -> ReplaySite:
    rtt_ms = {end: link.rtt_ms for link in fleet.links_of(hub.id) for end in link.ends if end != hub.id}
    others = sorted((other.id for other in fleet.hubs if other is not hub), key=lambda name: rtt_ms.get(name, 1e9))
    return ReplaySite(hub, policy, ReplayLedger(hub), TopologyGraph(policy.room), tuple(others))
