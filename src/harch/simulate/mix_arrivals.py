"""Which jobs does a mix mean for this fleet? Drawn from one seed; the offered load holds at every hub.

For each hub, kind and class the number of jobs follows from the load, and durations are drawn one from each equal part
of their distribution. So a seed changes which jobs come when, and hardly how much is asked for: even of the rare gangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from harch.base.errors import HarchError
from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import Floats
from harch.placement.request import Request
from harch.simulate.jobs import Job, RunModel, Workload
from harch.simulate.workload_spec import ClassMix, Kind, ModelChoice, WorkloadMix
from harch.workloads.spec import Priority, Resources, SchedulingClass, Topology

JOBS_MAX = 5_000_000
GANG_OF_HUB_MAX = 0.5  # a larger gang would wait for half of the hub to drain: nobody asks for that
_QUANTILES = 2000
_DAY_STEPS = 24 * 60

T = TypeVar("T")


def generate(fleet: Fleet, mix: WorkloadMix, *, hours: float | None, seed: int) -> Workload:
    """Jobs of `hours` (or as long as the mix says), sorted by arrival. The same arguments give the same jobs."""
    hours = mix.days * 24 if hours is None else hours
    random = np.random.default_rng(seed)
    drawn: list[_Drawn] = []
    for hub in fleet.hubs:
        pinned = _pinned_share(fleet, hub, mix)
        for kind, jobs_per_hour in _rates(hub, mix):
            for name, share in _normalised(kind.classes):
                count = int(jobs_per_hour * hours * share + random.random())
                if len(drawn) + count > JOBS_MAX:
                    raise HarchError("E0201", f"the mix means more than {JOBS_MAX:,} jobs", field="load")
                drawn += _draw(hub, kind, name, mix, count, hours=hours, pinned=pinned, random=random)
    drawn.sort(key=lambda one: one.arrives_s)
    jobs = tuple(_job(f"job-{index:07d}", one, mix) for index, one in enumerate(drawn))
    return Workload(mix.name, jobs, hours, run_model(mix))


def run_model(mix: WorkloadMix) -> RunModel:
    busy = {name: described.busy_share for name, described in mix.classes.items()}
    running = mix.running
    return RunModel(busy, running.checkpoint_every_s, running.restart_s, running.stop_s)


@dataclass(frozen=True, slots=True)
class _Drawn:
    arrives_s: float
    duration_s: float
    hub: Hub
    kind: Kind
    turn_class: SchedulingClass
    tenant: str
    fraction: float | None
    cpus: float
    memory_gb: float
    models: tuple[str, ...]
    pinned: bool
    promise: float | None  # times the duration
    degradable: bool


def _rates(hub: Hub, mix: WorkloadMix) -> list[tuple[Kind, float]]:
    """Jobs per hour of each kind that the hub can hold."""
    kinds = [kind for kind in mix.kinds if _models_here(hub, kind)]
    plain = [kind for kind in kinds if kind.job_share]
    hours = {kind.name: _hours_mean(kind, mix) for kind in kinds}
    asked = mix.load * hub.gpu_count  # GPU-hours per hour
    for_plain = asked * (1 - sum(kind.gpu_time_share for kind in kinds))
    shares = sum(kind.job_share for kind in plain)
    each = sum(kind.job_share * kind.gpus_mean * hours[kind.name] for kind in plain) / shares if plain else 0.0
    if not each:
        raise HarchError("E0201", f"no kind of the mix `{mix.name}` fits hub {hub.name}")
    return [
        (
            kind,
            for_plain / each * kind.job_share / shares
            if kind.job_share
            else asked * kind.gpu_time_share / (kind.gpus_mean * hours[kind.name]),
        )
        for kind in kinds
    ]


def _models_here(hub: Hub, kind: Kind) -> tuple[ModelChoice, ...]:
    """The choices of models that leave enough nodes of this hub."""
    cpus, memory_gb = max(value for value, _ in kind.cpus), max(value for value, _ in kind.memory_gb)
    here = []
    for choice in kind.models:
        nodes = [
            node
            for node in hub.nodes
            if (not choice.models or node.gpu_model.name in choice.models)
            and len(node.gpus) >= kind.gpus_per_task
            and node.cpus >= cpus
            and node.memory_gb >= memory_gb
        ]
        gpus_held = sum(len(node.gpus) for node in nodes) * (GANG_OF_HUB_MAX if kind.tasks > 1 else 1.0)
        if nodes and gpus_held >= kind.tasks * kind.gpus_per_task:
            here.append(choice)
    return tuple(here)


def _hours_mean(kind: Kind, mix: WorkloadMix) -> float:
    even = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return sum(share * float(_hours(mix.classes[name], kind, even).mean()) for name, share in _normalised(kind.classes))


def _hours(described: ClassMix, kind: Kind, quantiles: Floats) -> Floats:
    normal = NormalDist()
    z = np.array([normal.inv_cdf(quantile) for quantile in quantiles.tolist()])
    hours: Floats = np.minimum(described.hours_median * np.exp(described.hours_sigma * z), described.hours_max)
    return hours * kind.hours_factor


def _pinned_share(fleet: Fleet, hub: Hub, mix: WorkloadMix) -> float:
    """The share of a hub's own work that must stay in its country."""
    in_country = sum(other.gpu_count for other in fleet.hubs if other.country == hub.country)
    return min(1.0, mix.pinned.get(hub.country, 0.0) * fleet.gpu_count / in_country)


def _draw(
    hub: Hub,
    kind: Kind,
    name: SchedulingClass,
    mix: WorkloadMix,
    count: int,
    *,
    hours: float,
    pinned: float,
    random: np.random.Generator,
) -> list[_Drawn]:
    if not count:
        return []
    quantiles = (random.permutation(count) + random.uniform(1e-9, 1 - 1e-9, count)) / count
    durations_s = 3600.0 * _hours(mix.classes[name], kind, quantiles)
    arrivals_s = _arrivals_s(mix, hours, random.random(count))
    fractions = _choose(kind.gpu_fraction, count, random) if kind.gpu_fraction else [None] * count
    cpus, memory_gb = _choose(kind.cpus, count, random), _choose(kind.memory_gb, count, random)
    models = _choose([(choice.models, choice.weight) for choice in _models_here(hub, kind)], count, random)
    tenants = _choose(list(mix.tenants.items()), count, random)
    stays, promises, degrades = (random.random(count).tolist() for _ in range(3))
    factors = random.uniform(1.0, mix.running.promise_factor_max, count).tolist()
    return [
        _Drawn(
            arrives_s=float(arrivals_s[index]),
            duration_s=float(durations_s[index]),
            hub=hub,
            kind=kind,
            turn_class=name,
            tenant=tenants[index],
            fraction=fractions[index],
            cpus=cpus[index],
            memory_gb=memory_gb[index],
            models=models[index],
            pinned=stays[index] < pinned,
            promise=factors[index] if promises[index] < mix.running.promised_share else None,
            degradable=kind.tasks_min is not None and degrades[index] < kind.degradable_share,
        )
        for index in range(count)
    ]


def _arrivals_s(mix: WorkloadMix, hours: float, quantiles: Floats) -> Floats:
    """Times of day follow a cosine; the inverse of its integral turns even quantiles into arrivals."""
    steps = np.linspace(0.0, hours, max(2, int(hours / 24 * _DAY_STEPS) + 1))
    turn = 2 * np.pi / 24
    area = steps + mix.day_swing / turn * (
        np.sin(turn * (steps - mix.peak_hour_utc)) + np.sin(turn * mix.peak_hour_utc)
    )
    arrivals: Floats = 3600.0 * np.interp(quantiles * area[-1], area, steps)
    return arrivals


def _choose(
    pairs: list[tuple[T, float]] | tuple[tuple[T, float], ...], count: int, random: np.random.Generator
) -> list[T]:
    weights = np.array([weight for _, weight in pairs])
    chosen = random.choice(len(pairs), size=count, p=weights / weights.sum())
    return [pairs[index][0] for index in chosen.tolist()]


def _normalised(shares: dict[SchedulingClass, float]) -> list[tuple[SchedulingClass, float]]:
    total = sum(shares.values())
    return [(name, share / total) for name, share in shares.items()]


def _job(job_id: str, drawn: _Drawn, mix: WorkloadMix) -> Job:
    kind = drawn.kind
    one_model = drawn.models[0] if len(drawn.models) == 1 else None
    needs = Resources(
        gpus=kind.gpus_per_task,
        gpu_model=one_model,
        gpu_models=() if one_model else drawn.models,
        gpu_fraction=drawn.fraction,
        cpus=drawn.cpus,
        memory_gb=drawn.memory_gb,
    )
    tasks_min = kind.tasks_min if drawn.degradable and kind.tasks_min else kind.tasks
    request = Request(
        id=job_id,
        tenant=drawn.tenant,
        turn_class=drawn.turn_class,
        priority=Priority.NORMAL.rank,
        needs=needs,
        tasks=kind.tasks,
        topology=Topology(),
        countries_allowed=(drawn.hub.country,) if drawn.pinned else (),
        runs_process=False,
        submitted_s=drawn.arrives_s,
        tasks_min=tasks_min,
        degrade_after_s=kind.degrade_after_s,
        duration_s_max=drawn.duration_s * drawn.promise if drawn.promise is not None else None,
        preemptible=mix.classes[drawn.turn_class].preemptible,
    )
    return Job(request, drawn.hub.id, drawn.duration_s, kind.name)
