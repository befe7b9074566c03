"""What do people mean by "8 GPUs, same NVLink island, >= 40 GB, in MA"? The query language of requests.

    query     = clause { [","] clause }                      in any order, each at most once
    clause    = size | memory | share | level | models | countries | shape
    size      = N "tasks" ["of"] | N ["x"] "GPUs" | N ["x"] models | N "x" N "GPUs" | F "GPU"
              | N "cpus" | N unit "memory" | N unit "storage"
    memory    = (">=" | "at least") N unit                   of each GPU
    share     = "with" N unit                                what a share gets of the memory of its GPU
    level     = ("same" | "in one") domain | "prefer" domain
    domain    = ["NVLink"] "island" | "node" | "rack" | "row" | "hub"
    models    = ["any of" | "of" | "on"] model { "|" model } the first is the most welcome
    countries = "in" country { "|" country }                 ISO codes or names
    shape     = "spread" ["over" ("nodes" | "racks")] | "pack" | "exclusive" ["nodes"]
    unit      = "MB" | "GB" | "TB"

N is a number, F one below 1: a share of one GPU. `N GPUs` counts all of them: more than eight that need not share a
node become equal tasks of at most eight each (16 is 2 x 8, 12 is 2 x 6, 11 is 11 x 1). `N tasks of N GPUs` says it
exactly. Case does not matter, a plural may be singular, `or` may stand for `|`.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.placement.query_parser import mistake, parse_values
from harch.workloads.spec import Level, Resources, Strategy, Topology, WorkloadSpec

GPUS_PER_TASK = 8  # how a total is split into tasks: the size of the common node
_PARSED_MAX = 1024  # queries remembered: programs ask the same again and again

_RESOURCES = ("gpus", "gpu_fraction", "gpu_memory_gb", "gpu_memory_gb_min", "cpus", "memory_gb", "storage_gb")
_TOPOLOGY = ("required", "preferred", "strategy", "exclusive")
# What a query may say. Whoever changes one of these fields of a workload has given up its query.
QUERY_FIELDS = frozenset({"tasks", "resources", "topology", "countries_allowed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuery:
    """What a query says; None and empty for what it leaves open. Sizes are of each task."""

    tasks: int | None = None
    gpus: int | None = None
    gpu_fraction: float | None = None
    gpu_models: tuple[str, ...] = ()
    gpu_memory_gb: float | None = None
    gpu_memory_gb_min: float | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    storage_gb: float | None = None
    required: Level | None = None
    preferred: Level | None = None
    strategy: Strategy | None = None
    exclusive: bool | None = None
    countries: tuple[str, ...] = ()


@lru_cache(_PARSED_MAX)
def parse_query(text: str) -> ResourceQuery:
    """Raises E0201 with the position of the first mistake, what was expected there, and what may have been meant."""
    values = parse_values(text)
    gpus = values.pop("gpus", None)
    if isinstance(gpus, float):
        if 0 < gpus < 1:
            values |= {"gpus": 1, "gpu_fraction": gpus}
        else:
            values |= _split(int(gpus), values)
    query = msgspec.convert(values, ResourceQuery)
    if query.gpus is not None and query.tasks is None:
        query = msgspec.convert(values | {"tasks": 1}, ResourceQuery)
    if query.gpu_memory_gb is not None and query.gpus is not None and query.gpu_fraction is None:
        raise mistake(
            1, "`with 20 GB` is what a share gets, as in `0.25 GPU with 20 GB`; a whole GPU comes with all its memory"
        )
    if query.required in (Level.ISLAND, Level.NODE) and query.strategy is Strategy.SPREAD:
        raise mistake(1, f"`spread` needs several nodes, so it excludes `same {query.required}`")
    if query.required and query.preferred and query.preferred.rank > query.required.rank:
        raise mistake(1, f"prefers one {query.preferred} and requires one {query.required}, which is smaller")
    return query


def split_gpus(gpus_total: int) -> tuple[int, int]:
    """Tasks and GPUs of each: equal tasks of at most eight, the total kept exactly."""
    per_task = next((size for size in range(GPUS_PER_TASK, 0, -1) if gpus_total % size == 0), 1) if gpus_total else 0
    return (gpus_total // per_task if per_task else 1), per_task


def _split(gpus: int, values: dict[str, object]) -> dict[str, object]:
    if "tasks" in values or gpus <= GPUS_PER_TASK or values.get("required") in (Level.ISLAND, Level.NODE):
        return {"gpus": gpus}
    tasks, per_task = split_gpus(gpus)
    return {"tasks": tasks, "gpus": per_task}


def describe(query: ResourceQuery) -> str:
    """The same in the plainest words: `parse_query(describe(query)) == query`."""
    parts = []
    if query.gpus is not None:
        share = query.gpus if query.gpu_fraction is None else query.gpu_fraction
        gpus = f"{_number(share)} GPU{'s' * (share > 1 or share == 0)}"
        one = query.tasks in (None, 1)
        exact = query.gpus > GPUS_PER_TASK and query.required not in (Level.ISLAND, Level.NODE)
        parts.append(gpus if one and not exact else f"{query.tasks} task{'s' * (not one)} of {gpus}")
    elif query.tasks is not None:
        parts.append(f"{query.tasks} tasks")
    if query.gpu_models:
        parts.append(f"any of {'|'.join(query.gpu_models)}")
    for value, form in (
        (query.gpu_memory_gb, "with {} GB"),
        (query.gpu_memory_gb_min, ">= {} GB"),
        (query.cpus, "{} cpus"),
        (query.memory_gb, "{} GB memory"),
        (query.storage_gb, "{} GB storage"),
    ):
        if value is not None:
            parts.append(form.format(_number(value)))
    if query.required:
        parts.append(f"same {query.required}")
    if query.preferred:
        parts.append(f"prefer {query.preferred}")
    if query.strategy:
        parts.append(str(query.strategy))
    if query.exclusive:
        parts.append("exclusive")
    if query.countries:
        parts.append(f"in {'|'.join(query.countries)}")
    return ", ".join(parts)


def _number(value: float) -> str:
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# Into a workload, and out of it again


def apply_query(spec: WorkloadSpec) -> WorkloadSpec:
    """The specification with what its query says written into the fields; applying it again changes nothing.

    A field that says something else than the query is a mistake (E0201), except for countries: every rule holds, so
    those that both allow are left.
    """
    if spec.query is None:
        return spec
    query = parse_query(spec.query)
    resources: dict[str, object] = {"gpu_fraction": query.gpu_fraction} if query.gpus is not None else {}
    for name in _RESOURCES:
        if (value := getattr(query, name)) is not None:
            resources[name] = value
    _refuse_contradictions(spec.resources, Resources(), resources, "resources.")
    if query.gpu_models:
        if spec.resources.models_wanted not in ((), query.gpu_models):
            raise _contradiction("resources.gpu_models", " or ".join(spec.resources.models_wanted), query.gpu_models)
        alone = len(query.gpu_models) == 1
        resources["gpu_model"] = query.gpu_models[0] if alone else None
        resources["gpu_models"] = () if alone else query.gpu_models
    topology = {name: value for name in _TOPOLOGY if (value := getattr(query, name)) is not None}
    _refuse_contradictions(spec.topology, Topology(), topology, "topology.")
    if query.tasks is not None and spec.tasks not in (1, query.tasks):
        raise _contradiction("tasks", spec.tasks, query.tasks)
    try:
        applied = replace(
            spec,
            tasks=spec.tasks if query.tasks is None else query.tasks,
            resources=replace(spec.resources, **resources),
            topology=replace(spec.topology, **topology),
            countries_allowed=_countries(spec, query),
        )
        return msgspec.convert(msgspec.to_builtins(applied), WorkloadSpec)  # replacing checks no limits, reading does
    except (msgspec.ValidationError, ValueError) as error:
        raise HarchError("E0201", f"a number in the query is out of range: {error}", field="query") from None


def without_query(spec: WorkloadSpec) -> WorkloadSpec:
    """Takes out what the query put in, so that another one may be applied. Countries stay: no rule is ever loosened."""
    if spec.query is None:
        return spec
    query = parse_query(spec.query)
    sizes = {name: None for name in _RESOURCES if getattr(query, name) is not None}
    if query.gpu_fraction is not None:
        sizes["gpu_memory_gb"] = None  # has no meaning without a share
    if query.gpu_models:
        sizes |= {"gpu_model": None, "gpu_models": None}
    kept = {name: value for name, value in msgspec.to_builtins(spec.resources).items() if name not in sizes}
    preferences = [name for name in _TOPOLOGY if getattr(query, name) is not None]
    topology = {name: value for name, value in msgspec.to_builtins(spec.topology).items() if name not in preferences}
    return replace(
        spec,
        query=None,
        tasks=1 if query.tasks is not None else spec.tasks,
        resources=msgspec.convert(kept, Resources),
        topology=msgspec.convert(topology, Topology),
    )


def _countries(spec: WorkloadSpec, query: ResourceQuery) -> tuple[str, ...]:
    if not query.countries or not spec.countries_allowed:
        return query.countries or spec.countries_allowed
    both = tuple(code for code in query.countries if code in spec.countries_allowed)
    if not both:
        raise _contradiction("countries_allowed", ", ".join(spec.countries_allowed), query.countries)
    return both


def _refuse_contradictions(
    given: Resources | Topology, default: Resources | Topology, stated: dict[str, object], path: str
) -> None:
    for name, value in stated.items():
        if getattr(given, name) not in (getattr(default, name), value):
            raise _contradiction(path + name, getattr(given, name), value)


def _contradiction(path: str, given: object, stated: object) -> HarchError:
    words = ", ".join(stated) if isinstance(stated, tuple) else stated
    return HarchError(
        "E0201", f"the query gives {words} but `{path}` has {given}", hint="use only one of them", field=path
    )
