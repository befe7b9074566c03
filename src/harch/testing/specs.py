"""Which work may somebody submit? Random specifications that use every field of the schema, valid by construction.

`FIELDS` has a generator for each field of each part; a test compares it with the schema, so that a new field cannot be
forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from harch.workloads.carbon import CarbonWishes, Resumes
from harch.workloads.spec import (
    Gang,
    Level,
    Priority,
    Resources,
    RestartPolicy,
    SchedulingClass,
    Strategy,
    Topology,
    WorkloadSpec,
    WorkloadType,
)

TRIES_MAX = 1000  # most combinations are allowed; this many in a row that are not is a fault of `FIELDS`
DATA = ("known-data", "other-data")  # names that a test may register; unknown ones are refused at admission
_MODELS = ("h100-80gb", "a100-80gb", "inference-card")
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T", bound=Struct)
Draw = Callable[[Random], object]


def random_spec(random: Random, name: str, **fixed: object) -> WorkloadSpec:
    """A valid specification, some with hardly any field and some with nearly all; `fixed` ones are as they are told."""
    return _drawn(random, WorkloadSpec, {"name": name, **fixed})


def _drawn(random: Random, part: type[T], fixed: Mapping[str, object]) -> T:
    for _ in range(TRIES_MAX):
        share = random.choice((0.2, 0.5, 0.8))
        values = {name: draw(random) for name, draw in FIELDS[part].items() if random.random() < share}
        try:
            return part(**{**values, **fixed})
        except ValueError:  # fields that exclude each other: drawn again
            continue
    raise ValueError(f"no valid {part.__name__} was drawn in {TRIES_MAX} tries")


def _one_of(*values: object) -> Draw:
    return lambda random: random.choice(values)


def _part(part: type[Struct]) -> Draw:
    return lambda random: _drawn(random, part, {})


def _some(values: tuple[str, ...], most: int) -> Draw:
    return lambda random: tuple(random.sample(values, random.randint(0, min(most, len(values)))))


FIELDS: Mapping[type[Any], Mapping[str, Draw]] = {
    WorkloadSpec: {
        "name": lambda random: f"job-{random.randrange(10**9)}",
        "type": _one_of(*WorkloadType),
        "command": _one_of((), (), ("true",), ("sh", "-c", "exit 1")),
        "tasks": _one_of(1, 1, 1, 2, 2, 3, 4, 6, 8, 12),
        "resources": _part(Resources),
        "env": _one_of({}, {"LEVEL": "1"}),
        "secrets": _one_of((), ("TOKEN",)),
        "working_dir": _one_of(None, "shared/run"),
        "data": _one_of((), (), (), DATA[:1], DATA),
        "outputs": _one_of((), ("made",)),
        "query": _one_of(None, "4 GPUs, same NVLink island"),
        "topology": _part(Topology),
        "gang": _part(Gang),
        "scheduling_class": _one_of(None, *SchedulingClass),
        "preemptible": _one_of(True, False),
        "priority": _one_of(*Priority),
        "countries_allowed": _one_of((), (), ("MA",), ("MA",), ("SN",), ("MA", "SN")),
        "max_duration_s": _one_of(None, 30.0, 3600.0, 5.5),
        "stop_grace_s": _one_of(0, 0.5, 10, 3600),
        "restart": _one_of(*RestartPolicy),
        "restarts_max": _one_of(0, 1, 3),
        "modelled_duration_s": _one_of(None, 60.0, 7200.0),
        "stay_home": _one_of(True, False),
        "carbon": _part(CarbonWishes),
        "image": _one_of(None, "registry.example/train:1"),
        "labels": _one_of({}, {"team": "a"}),
    },
    Resources: {
        "gpus": _one_of(0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 9),
        "gpu_model": _one_of(None, None, *_MODELS, "unheard-of"),
        "gpu_models": _some((*_MODELS, "unheard-of"), 4),
        "gpu_fraction": _one_of(None, 0.001, 0.25, 0.5, 0.999, 1.0),
        "gpu_memory_gb": _one_of(None, None, 0.001, 20, 33.3, 60, 80, 1000),
        "gpu_memory_gb_min": _one_of(0, 0, 40, 60.5, 80, 1000),
        "cpus": _one_of(0.001, 0.5, 1, 1, 2, 8, 8, 64, 112, 4096),
        "memory_gb": _one_of(0.0001, 0.5, 1, 1, 8, 256, 256, 2048, 65536),
        "storage_gb": _one_of(0, 0.5, 100, 10**7),
    },
    Topology: {
        "required": _one_of(*Level),
        "preferred": _one_of(*Level),
        "strategy": _one_of(*Strategy),
        "exclusive": _one_of(True, False, False),
    },
    Gang: {
        "tasks_min": _one_of(None, 1, 2, 3),
        "degrade_after_s": _one_of(0, 0.5, 30, 1000),
        "start_within_s": _one_of(None, 0.001, 60, 10_000),
    },
    CarbonWishes: {
        "aware": _one_of(None, True, False),
        "slack_s": _one_of(0, 1, 600, 86_400),
        "finish_by": lambda random: random.choice((None, _EPOCH + timedelta(hours=random.uniform(-1, 100)))),
        "duration_s": _one_of(None, 0.5, 600.0, 90_000.0),
        "g_max": _one_of(None, 0.001, 1e6),
        "g_per_kwh_max": _one_of(None, 1.0, 500.0),
        "resumes": _one_of(*Resumes),
        "checkpoint_gb": _one_of(0, 0.5, 100),
    },
}
