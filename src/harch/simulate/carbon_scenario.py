"""Which fleet, plants, weather and work does a carbon replay assume?

The TOML behind `harch simulate carbon`, checked, and its jobs drawn from one seed; shares and pins hold in GPU-hours.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from datetime import date
from importlib import resources
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct, structs

from harch.base.errors import HarchError
from harch.carbon.planning.outlook import Floats
from harch.fleet.model import Fleet, Hub
from harch.placement.request import PlacementRequest
from harch.workloads.spec import GPUS_PER_TASK_MAX, TASKS_MAX, Priority, Resources, SchedulingClass, Topology

# Which fleet, plants, weather and work does a carbon replay assume? The TOML behind `harch simulate carbon`, checked.
#
# docs/guides/carbon.md describes every key; `scenarios/onsite-124.toml` is a complete example, and other files may say
# `extends` and replace some of its tables.


FILE_BYTES_MAX = 1 << 20
DAYS_MAX = 366
EXTENDS_MAX = 4
SHARES_ROUNDING = 1e-6
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class ScenarioCase(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One replay of the scenario: how busy, and how large the plants are, in times of the hub's IT power."""

    utilisation: Annotated[float, Meta(gt=0, le=1)]
    pv_times: NotNegative
    wind_times: NotNegative


class Weather(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Statistics of the modelled weather, or a file with other weather."""

    clearness_mean: Share
    clearness_day_sd: NotNegative
    clearness_day_memory: Annotated[float, Meta(ge=0, lt=1)]
    clearness_step_sd: NotNegative
    clearness_step_hours: Positive
    performance: Share
    wind_hours: Positive
    wind_spread: NotNegative
    wind_shared: Share
    onsite_g_per_kwh: NotNegative
    csv: str | None = None


class Moving(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What it costs to stop work and to go on with it, here or elsewhere."""

    checkpoint_every_s: Positive
    stop_s: NotNegative
    restart_s: NotNegative
    checkpoint_gb_per_gpu: NotNegative
    transfer_kwh_per_gb: NotNegative


class Arrivals(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When work comes, and how well it knows itself."""

    day_swing: Annotated[float, Meta(ge=0, lt=1)]
    peak_hour_utc: Annotated[float, Meta(ge=0, lt=24)]
    stated_factor_max: Annotated[float, Meta(ge=1)]


class CarbonJobKind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Work of one sort. With `slack_h` it may end so much later than if it had started at once."""

    name: str
    share: Share  # of all GPU-hours
    turn_class: SchedulingClass
    gpus_per_task: Annotated[int, Meta(ge=1, le=GPUS_PER_TASK_MAX)]
    tasks: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 1
    hours_median: Positive
    hours_sigma: Annotated[float, Meta(ge=0, le=4)]
    hours_max: Positive
    movable: bool = False
    slack_h: NotNegative = 0.0

    @property
    def gpus(self) -> int:
        return self.tasks * self.gpus_per_task


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    name: str
    about: str
    fleet: str
    seed: int
    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)]
    weeks: Annotated[tuple[date, ...], Meta(min_length=1, max_length=DAYS_MAX)]  # first days of the periods
    cases: Annotated[tuple[ScenarioCase, ...], Meta(min_length=1, max_length=64)]
    pinned: dict[str, Share]
    weather: Weather
    moving: Moving
    arrivals: Arrivals
    work: Annotated[tuple[CarbonJobKind, ...], Meta(min_length=1, max_length=256)]

    def __post_init__(self) -> None:
        if abs(sum(kind.share for kind in self.work) - 1) > SHARES_ROUNDING:
            raise ValueError("the `share` of all kinds of work must add up to 1")
        if sum(self.pinned.values()) > 1 + SHARES_ROUNDING:
            raise ValueError("`pinned` shares add up to more than 1")
        if len({kind.name for kind in self.work}) < len(self.work):
            raise ValueError("two kinds of work have the same name")
        immovable = [kind.name for kind in self.work if kind.slack_h and kind.turn_class is SchedulingClass.INFERENCE]
        if immovable:
            raise ValueError(f"kind `{immovable[0]}`: inference runs immediately, so it has no slack")

    @property
    def deferrable_share(self) -> float:
        return sum(kind.share for kind in self.work if kind.slack_h > 0)

    @property
    def pinned_share(self) -> float:
        return sum(self.pinned.values())


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by its name, or a file. Raises HarchError E0202 (not readable) or E0201 (not a scenario)."""
    plain = _plain(name_or_path, depth=0)
    try:
        return msgspec.convert(plain, type=Scenario, strict=False)
    except msgspec.ValidationError as error:
        hint = "docs/guides/carbon.md describes every key"
        raise HarchError("E0201", f"{name_or_path}: {error}", hint=hint) from error


def with_days(scenario: Scenario, days: int) -> Scenario:
    """The same, shorter or longer: a look, not the scenario's own figures."""
    return msgspec.structs.replace(scenario, days=days)


def shipped_scenario_names() -> tuple[str, ...]:
    files = (file.name for file in resources.files("harch.simulate").joinpath("scenarios").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def _plain(name_or_path: str, *, depth: int) -> dict[str, object]:
    try:
        plain: dict[str, object] = tomllib.loads(_read(name_or_path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HarchError("E0202", f"{name_or_path} is not TOML: {error}") from error
    base = plain.pop("extends", None)
    if base is None:
        return plain
    if not isinstance(base, str) or depth >= EXTENDS_MAX:
        raise HarchError("E0201", f"{name_or_path}: `extends` takes one scenario, at most {EXTENDS_MAX} deep")
    return {**_plain(base, depth=depth + 1), **plain}


def _read(name_or_path: str) -> bytes:
    try:
        if name_or_path in shipped_scenario_names():
            return resources.files("harch.simulate").joinpath("scenarios", f"{name_or_path}.toml").read_bytes()
        with Path(name_or_path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise HarchError(
            "E0202",
            f"cannot read `{name_or_path}`: {(error.strerror or 'not a file').lower()}",
            hint=f"give the path of a scenario, or a built-in one: {', '.join(shipped_scenario_names())}",
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise HarchError("E0202", f"`{name_or_path}` is larger than {FILE_BYTES_MAX // 1024} KiB")
    return data


# Which jobs does a carbon scenario mean for this fleet? Drawn from one seed; shares and pins hold in GPU-hours.


GANG_OF_POOL_MAX = 0.25
CPUS_PER_GPU = 8.0
MEMORY_GB_PER_GPU = 48.0
JOBS_MAX = 2_000_000
_QUANTILES = 1000
ANYWHERE = ""


@dataclass(frozen=True, slots=True)
class CarbonJob:
    """One request with what a carbon planner must know of it."""

    request: PlacementRequest
    home: str
    kind: CarbonJobKind
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
    offered = utilisation * fleet.gpu_count * hours
    shares = {**scenario.pinned, ANYWHERE: 1.0 - scenario.pinned_share}
    drawn: list[tuple[float, CarbonJob]] = []
    for country, pinned in shares.items():
        hubs = [hub for hub in fleet.hubs if country in (ANYWHERE, hub.country)]
        if pinned > 0 and not hubs:
            raise HarchError("E0201", f"work is pinned to {country}, but no hub is there", field="pinned")
        for kind, share in _kinds_here(hubs, scenario, country):
            drawn += _of_kind(fleet, hubs, country, kind, scenario, offered * pinned * share, random)
            if len(drawn) > JOBS_MAX:
                raise HarchError("E0201", f"the scenario has more than {JOBS_MAX:,} jobs")
    drawn.sort(key=lambda pair: (pair[0], pair[1].home, pair[1].kind.name))
    return tuple(
        replace(job, request=structs.replace(job.request, id=f"job-{number:07d}"))
        for number, (_, job) in enumerate(drawn)
    )


def _places(hubs: list[Hub], kind: CarbonJobKind) -> list[tuple[Hub, str]]:
    return [
        (hub, model)
        for hub in hubs
        for model in hub.gpu_models
        if kind.gpus == 1 or kind.gpus <= GANG_OF_POOL_MAX * gpus_of(hub, model)
    ]


def _kinds_here(hubs: list[Hub], scenario: Scenario, country: str) -> list[tuple[CarbonJobKind, float]]:
    """Kinds with their shares. What is too large for these hubs leaves its share to work that may wait as long."""
    found: list[tuple[CarbonJobKind, float]] = []
    for deferrable in (False, True):
        kinds = [kind for kind in scenario.work if (kind.slack_h > 0) is deferrable]
        here = [kind for kind in kinds if _places(hubs, kind)]
        wanted, held = sum(kind.share for kind in kinds), sum(kind.share for kind in here)
        if wanted > 0 and held == 0:
            raise HarchError("E0201", f"hubs of `{country or 'any country'}` are too small for any kind of work")
        found += [(kind, kind.share * wanted / held) for kind in here]
    return found


def _of_kind(
    fleet: Fleet,
    hubs: list[Hub],
    country: str,
    kind: CarbonJobKind,
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


def _hours(kind: CarbonJobKind, z: float) -> float:
    return float(min(kind.hours_median * np.exp(kind.hours_sigma * z), kind.hours_max))


def _arrivals_s(arrivals: Arrivals, hours: float, quantiles: Floats) -> Floats:
    steps = np.linspace(0.0, hours, int(hours * 4) + 1)
    turn = 2 * np.pi / 24
    area = steps + arrivals.day_swing / turn * (
        np.sin(turn * (steps - arrivals.peak_hour_utc)) + np.sin(turn * arrivals.peak_hour_utc)
    )
    found: Floats = 3600.0 * np.interp(quantiles * area[-1], area, steps)
    return found


def _request(
    kind: CarbonJobKind, model: str, countries: tuple[str, ...], arrives_s: float, stated_s: float
) -> PlacementRequest:
    needs = Resources(
        gpus=kind.gpus_per_task,
        gpu_model=model,
        cpus=CPUS_PER_GPU * kind.gpus_per_task,
        memory_gb=MEMORY_GB_PER_GPU * kind.gpus_per_task,
    )
    return PlacementRequest(
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
