"""Which jobs does a mix mean for this fleet?

The TOML file behind `--workload gen:SPEC`, drawn from one seed; the offered load holds at every hub.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.fleet.model import Fleet, Hub
from harch.placement.policy.shapes import Floats
from harch.placement.request import PlacementRequest
from harch.simulate.arrivals import Job, ReplayWorkload, RunModel
from harch.workloads.spec import GPUS_PER_TASK_MAX, TASKS_MAX, Priority, Resources, SchedulingClass, Topology

# What mix of work is asked for? The TOML file behind `--workload gen:SPEC`, as checked values.
#
# docs/guides/simulate.md describes every key; `shipped/saturated.toml` is a complete example.


FILE_BYTES_MAX = 1 << 20
DAYS_MAX = 366
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Weighted = Annotated[tuple[tuple[Positive, Positive], ...], Meta(min_length=1, max_length=64)]


class ModelChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Models that will do, most welcome first; none: any."""

    weight: Positive
    models: tuple[str, ...] = ()


class JobKind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests of one sort. Exactly one of the two shares says how many there are."""

    name: str
    job_share: Share = 0.0
    gpu_time_share: Share = 0.0
    tasks: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 1
    tasks_min: Annotated[int, Meta(ge=1)] | None = None
    degradable_share: Share = 0.0  # of them accept `tasks_min` tasks
    degrade_after_s: Annotated[float, Meta(ge=0)] = 30.0
    gpus_per_task: Annotated[int, Meta(ge=0, le=GPUS_PER_TASK_MAX)]
    gpu_fraction: Weighted | None = None
    cpus: Weighted
    memory_gb: Weighted
    classes: dict[SchedulingClass, Positive]
    hours_factor: Positive = 1.0
    models: tuple[ModelChoice, ...] = (ModelChoice(weight=1.0),)

    @property
    def gpus_mean(self) -> float:
        """GPUs of a whole request, on average."""
        fractions = self.gpu_fraction or ((1.0, 1.0),)
        mean = sum(value * weight for value, weight in fractions) / sum(weight for _, weight in fractions)
        return self.tasks * self.gpus_per_task * mean


class ClassMix(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long work of a class lasts, and what it does to its GPUs."""

    hours_median: Positive
    hours_sigma: Annotated[float, Meta(ge=0, le=4)]
    hours_max: Positive
    busy_share: Share
    preemptible: bool


class RunSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See `jobs.RunModel`; and who promises how long it lasts at most."""

    promised_share: Share
    promise_factor_max: Annotated[float, Meta(ge=1)]
    checkpoint_every_s: Positive
    restart_s: Annotated[float, Meta(ge=0)]
    stop_s: Annotated[float, Meta(ge=0)]


class WorkloadMix(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    name: str
    load: Annotated[float, Meta(gt=0, le=10)]
    days: Annotated[float, Meta(gt=0, le=DAYS_MAX)]
    day_swing: Annotated[float, Meta(ge=0, lt=1)]
    peak_hour_utc: Annotated[float, Meta(ge=0, lt=24)]
    pinned: dict[str, Share]
    tenants: Annotated[dict[str, Positive], Meta(min_length=1, max_length=1000)]
    classes: dict[SchedulingClass, ClassMix]
    running: RunSettings
    kinds: Annotated[tuple[JobKind, ...], Meta(min_length=1, max_length=256)]

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if (kind.job_share > 0) == (kind.gpu_time_share > 0):
                raise ValueError(f"kind `{kind.name}` needs either `job_share` or `gpu_time_share`")
            if kind.gpu_time_share and not kind.gpus_per_task:
                raise ValueError(f"kind `{kind.name}` has no GPUs, so it cannot have a `gpu_time_share`")
            if kind.gpu_fraction and (kind.gpus_per_task != 1 or any(value > 1 for value, _ in kind.gpu_fraction)):
                raise ValueError(f"kind `{kind.name}`: `gpu_fraction` is at most 1, and needs `gpus_per_task = 1`")
            if kind.tasks_min is not None and kind.tasks_min > kind.tasks:
                raise ValueError(f"kind `{kind.name}`: `tasks_min` is more than `tasks`")
            missing = [name for name in kind.classes if name not in self.classes]
            if missing or not kind.classes:
                raise ValueError(f"kind `{kind.name}` needs classes defined in the file")
        if not any(kind.job_share and kind.gpus_per_task for kind in self.kinds):
            raise ValueError("at least one kind with GPUs needs a `job_share`")
        if sum(kind.gpu_time_share for kind in self.kinds) >= 1:
            raise ValueError("the `gpu_time_share` of all kinds together must stay below 1")
        if sum(self.pinned.values()) > 1:
            raise ValueError("`pinned` shares add up to more than 1")


def load_mix(name_or_path: str) -> WorkloadMix:
    """A shipped mix by its name, or a file. Raises HarchError E0202 (not TOML) or E0201 (not a mix)."""
    try:
        if name_or_path in shipped_mix_names():
            data = resources.files("harch.simulate").joinpath("shipped", f"{name_or_path}.toml").read_bytes()
        else:
            with Path(name_or_path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        shipped = ", ".join(shipped_mix_names())
        raise HarchError(
            "E0202",
            f"cannot read `{name_or_path}`: {(error.strerror or 'not a file').lower()}",
            hint=f"give `gen:` and the path of a mix, or a built-in one: {shipped}",
        ) from error
    return parse_mix(data, name_or_path)


def parse_mix(data: bytes, source_name: str = "mix.toml") -> WorkloadMix:
    if len(data) > FILE_BYTES_MAX:
        raise HarchError("E0202", f"`{source_name}` is larger than {FILE_BYTES_MAX // 1024} KiB")
    hint = "docs/guides/simulate.md describes every key"
    try:
        return msgspec.toml.decode(data, type=WorkloadMix)
    except msgspec.ValidationError as error:
        raise HarchError("E0201", f"{source_name}: {error}", hint=hint) from error
    except msgspec.DecodeError as error:
        raise HarchError("E0202", f"{source_name} is not TOML: {error}", hint=hint) from error


def shipped_mix_names() -> tuple[str, ...]:
    files = (file.name for file in resources.files("harch.simulate").joinpath("shipped").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


# Which jobs does a mix mean for this fleet? Drawn from one seed; the offered load holds at every hub.
#
# For each hub, kind and class the number of jobs follows from the load, and durations are drawn one from each equal
# part
# of their distribution. So a seed changes which jobs come when, and hardly how much is asked for: even of the rare
# gangs.


JOBS_MAX = 5_000_000
GANG_OF_HUB_MAX = 0.5  # a larger gang would wait for half of the hub to drain: nobody asks for that
_QUANTILES = 2000
_DAY_STEPS = 24 * 60

T = TypeVar("T")


def generate(fleet: Fleet, mix: WorkloadMix, *, hours: float | None, seed: int) -> ReplayWorkload:
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
                    raise HarchError("E0201", f"the mix has more than {JOBS_MAX:,} jobs", field="load")
                drawn += _draw(hub, kind, name, mix, count, hours=hours, pinned=pinned, random=random)
    drawn.sort(key=lambda one: one.arrives_s)
    jobs = tuple(_job(f"job-{index:07d}", one, mix) for index, one in enumerate(drawn))
    return ReplayWorkload(mix.name, jobs, hours, run_model(mix))


def run_model(mix: WorkloadMix) -> RunModel:
    busy = {name: described.busy_share for name, described in mix.classes.items()}
    running = mix.running
    return RunModel(busy, running.checkpoint_every_s, running.restart_s, running.stop_s)


@dataclass(frozen=True, slots=True)
class _Drawn:
    arrives_s: float
    duration_s: float
    hub: Hub
    kind: JobKind
    turn_class: SchedulingClass
    tenant: str
    fraction: float | None
    cpus: float
    memory_gb: float
    models: tuple[str, ...]
    pinned: bool
    promise: float | None  # times the duration
    degradable: bool


def _rates(hub: Hub, mix: WorkloadMix) -> list[tuple[JobKind, float]]:
    """Jobs per hour of each kind that the hub can hold."""
    kinds = [kind for kind in mix.kinds if _models_here(hub, kind)]
    plain = [kind for kind in kinds if kind.job_share]
    hours = {kind.name: _hours_mean(kind, mix) for kind in kinds}
    offered = mix.load * hub.gpu_count  # GPU-hours per hour
    for_plain = offered * (1 - sum(kind.gpu_time_share for kind in kinds))
    shares = sum(kind.job_share for kind in plain)
    each = sum(kind.job_share * kind.gpus_mean * hours[kind.name] for kind in plain) / shares if plain else 0.0
    if not each:
        raise HarchError("E0201", f"no kind of the mix `{mix.name}` fits hub {hub.name}")
    return [
        (
            kind,
            for_plain / each * kind.job_share / shares
            if kind.job_share
            else offered * kind.gpu_time_share / (kind.gpus_mean * hours[kind.name]),
        )
        for kind in kinds
    ]


def _models_here(hub: Hub, kind: JobKind) -> tuple[ModelChoice, ...]:
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


def _hours_mean(kind: JobKind, mix: WorkloadMix) -> float:
    even = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return sum(share * float(_hours(mix.classes[name], kind, even).mean()) for name, share in _normalised(kind.classes))


def _hours(described: ClassMix, kind: JobKind, quantiles: Floats) -> Floats:
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
    kind: JobKind,
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
    request = PlacementRequest(
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
