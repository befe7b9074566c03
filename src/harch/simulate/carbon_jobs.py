"""Which jobs does a carbon scenario mean for this fleet? Drawn from one seed; shares and pins hold in GPU-hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from msgspec import structs

from harch.base.errors import HarchError
from harch.carbon.planning.outlook import Floats
from harch.fleet.model import Fleet, Hub
from harch.placement.request import Request
from harch.simulate.carbon_scenario import Arrivals, Kind, Scenario
from harch.workloads.spec import Priority, Resources, Topology

GANG_OF_POOL_MAX = 0.25
CPUS_PER_GPU = 8.0
MEMORY_GB_PER_GPU = 48.0
JOBS_MAX = 2_000_000
_QUANTILES = 1000
ANYWHERE = ""


@dataclass(frozen=True, slots=True)
class CarbonJob:
    """One request with what a carbon planner must know of it."""

    request: Request
    home: str
    kind: Kind
    model: str
    duration_s: float
    stated_s: float
    hubs: frozenset[str]

    @property
    def slack_s(self) -> float:
        return self.kind.slack_h * 3600

    @property
    def deferrable(self) -> bool:
        return self.kind.slack_h > 0

    @property
    def starts_by_s(self) -> float:
        """The promise, if it is never interrupted."""
        return self.request.submitted_s + self.slack_s

    @property
    def deadline_s(self) -> float:
        return self.request.submitted_s + self.duration_s + self.slack_s


def gpus_of(hub: Hub, model: str) -> int:
    return sum(len(node.gpus) for node in hub.nodes if node.gpu_model.name == model)


def draw_jobs(fleet: Fleet, scenario: Scenario, utilisation: float, *, seed: int) -> tuple[CarbonJob, ...]:
    """All jobs of one period, sorted by arrival. The same arguments give the same jobs."""
    hours = scenario.days * 24.0
    random = np.random.default_rng(seed)
    asked = utilisation * fleet.gpu_count * hours
    shares = {**scenario.pinned, ANYWHERE: 1.0 - scenario.pinned_share}
    drawn: list[tuple[float, CarbonJob]] = []
    for country, pinned in shares.items():
        hubs = [hub for hub in fleet.hubs if country in (ANYWHERE, hub.country)]
        if pinned > 0 and not hubs:
            raise HarchError("E0201", f"work is pinned to {country}, and no hub stands there", field="pinned")
        for kind, share in _kinds_here(hubs, scenario, country):
            drawn += _of_kind(fleet, hubs, country, kind, scenario, asked * pinned * share, random)
            if len(drawn) > JOBS_MAX:
                raise HarchError("E0201", f"the scenario means more than {JOBS_MAX:,} jobs")
    drawn.sort(key=lambda pair: (pair[0], pair[1].home, pair[1].kind.name))
    return tuple(
        replace(job, request=structs.replace(job.request, id=f"job-{number:07d}"))
        for number, (_, job) in enumerate(drawn)
    )


def _places(hubs: list[Hub], kind: Kind) -> list[tuple[Hub, str]]:
    return [
        (hub, model)
        for hub in hubs
        for model in hub.gpu_models
        if kind.gpus == 1 or kind.gpus <= GANG_OF_POOL_MAX * gpus_of(hub, model)
    ]


def _kinds_here(hubs: list[Hub], scenario: Scenario, country: str) -> list[tuple[Kind, float]]:
    """Kinds with their shares. What is too large for these hubs leaves its share to work that may wait as long."""
    found: list[tuple[Kind, float]] = []
    for deferrable in (False, True):
        kinds = [kind for kind in scenario.work if (kind.slack_h > 0) is deferrable]
        here = [kind for kind in kinds if _places(hubs, kind)]
        wanted, held = sum(kind.share for kind in kinds), sum(kind.share for kind in here)
        if wanted > 0 and held == 0:
            raise HarchError("E0201", f"hubs of `{country or 'any country'}` are too small for every kind of work")
        found += [(kind, kind.share * wanted / held) for kind in here]
    return found


def _of_kind(
    fleet: Fleet,
    hubs: list[Hub],
    country: str,
    kind: Kind,
    scenario: Scenario,
    gpu_hours: float,
    random: np.random.Generator,
) -> list[tuple[float, CarbonJob]]:
    places = _places(hubs, kind)
    normal = NormalDist()
    even = [(index + 0.5) / _QUANTILES for index in range(_QUANTILES)]
    mean_h = float(np.mean([_hours(kind, normal.inv_cdf(one)) for one in even]))
    count = int(gpu_hours / (kind.gpus * mean_h) + random.random())
    weights = np.array([gpus_of(hub, model) for hub, model in places], dtype=np.float64)
    chosen = random.choice(len(places), size=count, p=weights / weights.sum())
    # One duration from each equal part of the distribution: a seed changes which jobs come, not how much is asked for.
    quantiles = (random.permutation(count) + random.uniform(0.001, 0.999, count)) / max(count, 1)
    arrivals_s = _arrivals_s(scenario.arrivals, scenario.days * 24.0, random.random(count))
    stated = random.uniform(1.0, scenario.arrivals.stated_factor_max, count)
    jobs = []
    for index in range(count):
        hub, model = places[int(chosen[index])]
        allowed = frozenset(
            other.id
            for other in fleet.hubs
            if country in (ANYWHERE, other.country) and gpus_of(other, model) >= kind.gpus
        )
        duration_s = 3600.0 * _hours(kind, normal.inv_cdf(float(quantiles[index])))
        stated_s = duration_s * float(stated[index])
        request = _request(kind, model, (country,) if country else (), float(arrivals_s[index]), stated_s)
        jobs.append((request.submitted_s, CarbonJob(request, hub.id, kind, model, duration_s, stated_s, allowed)))
    return jobs


def _hours(kind: Kind, z: float) -> float:
    return float(min(kind.hours_median * np.exp(kind.hours_sigma * z), kind.hours_max))


def _arrivals_s(arrivals: Arrivals, hours: float, quantiles: Floats) -> Floats:
    steps = np.linspace(0.0, hours, int(hours * 4) + 1)
    turn = 2 * np.pi / 24
    area = steps + arrivals.day_swing / turn * (
        np.sin(turn * (steps - arrivals.peak_hour_utc)) + np.sin(turn * arrivals.peak_hour_utc)
    )
    found: Floats = 3600.0 * np.interp(quantiles * area[-1], area, steps)
    return found


def _request(kind: Kind, model: str, countries: tuple[str, ...], arrives_s: float, stated_s: float) -> Request:
    needs = Resources(
        gpus=kind.gpus_per_task,
        gpu_model=model,
        cpus=CPUS_PER_GPU * kind.gpus_per_task,
        memory_gb=MEMORY_GB_PER_GPU * kind.gpus_per_task,
    )
    return Request(
        id="",
        tenant=kind.name,
        turn_class=kind.turn_class,
        priority=Priority.NORMAL.rank,
        needs=needs,
        tasks=kind.tasks,
        topology=Topology(),
        countries_allowed=countries,
        runs_process=False,
        submitted_s=arrives_s,
        tasks_min=kind.tasks,
        degrade_after_s=0.0,
        duration_s_max=stated_s,
        preemptible=False,
    )
