"""How did it go? Allocation, waits, gangs, stops and fairness of one replay, counted while it runs.

*Allocation* is GPUs given to work. *Utilisation* is modelled: a GPU that is held is busy for the share of the time that
the workload file assumes of its class. Slowdowns are predicted by the bandwidth model; they do not prolong the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import GPU_MILLI
from harch.simulate.jobs import Job, Workload
from harch.workloads.spec import Level, SchedulingClass


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
    _now_s: float = 0.0

    def advance(self, now_s: float) -> None:
        seconds = now_s - self._now_s
        if seconds <= 0:
            return
        self.held_gpu_s += seconds * self.held_milli / GPU_MILLI
        self.busy_gpu_s += seconds * self.busy_milli / GPU_MILLI
        if self.saturated_from_s is not None:
            saturated_s = max(0.0, now_s - max(self._now_s, self.saturated_from_s))
            self.held_saturated_gpu_s += saturated_s * self.held_milli / GPU_MILLI
        self._now_s = now_s

    def change(self, now_s: float, milli: int, busy_milli: float) -> None:
        self.advance(now_s)
        self.held_milli += milli
        self.busy_milli += busy_milli


class Gang(NamedTuple):
    """One start of several tasks that talk to each other."""

    gpus: int
    level: Level  # the lowest domain that holds all of it
    slowdown: float


@dataclass
class Tally:
    """One replay. Times are seconds since its start."""

    fleet: Fleet
    workload: Workload
    hubs: dict[str, HubTally] = field(init=False)
    waits_s: dict[str, float] = field(default_factory=dict)  # by job, until its first start
    tenant_gpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    gangs: list[Gang] = field(default_factory=list)
    degraded: int = 0
    preemptions: int = 0
    restarts: int = 0
    lost_gpu_s: float = 0.0
    spilled: int = 0

    def __post_init__(self) -> None:
        asked: defaultdict[str, list[Job]] = defaultdict(list)
        for job in self.workload.jobs:
            asked[job.home].append(job)
        self.hubs = {hub.id: HubTally(hub, saturated_from_s(hub, asked[hub.id])) for hub in self.fleet.hubs}

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
        asked: defaultdict[str, float] = defaultdict(float)
        for job in self.workload.jobs:
            asked[job.request.tenant] += job.gpu_seconds
        due = max_min(dict(asked), sum(self.tenant_gpu_s.values()))
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


def max_min(asked: dict[str, float], given: float) -> dict[str, float]:
    """Divides `given`: equal shares, but nobody gets more than he asked for."""
    due: dict[str, float] = {}
    left = given
    for place, tenant in enumerate(sorted(asked, key=lambda name: (asked[name], name))):
        due[tenant] = min(asked[tenant], left / (len(asked) - place))
        left -= due[tenant]
    return due


def jain(values: Sequence[float]) -> float | None:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None
