"""Which fleet and which work shall a test use?

A fleet that fits on a screen, yet has two countries, three GPU models and an odd node; random specifications that use
every field, valid by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.workloads.spec import (
    Artifact,
    CarbonPreferences,
    Environment,
    Gang,
    Level,
    Priority,
    Resources,
    RestartPolicy,
    Resumes,
    SchedulingClass,
    Strategy,
    Topology,
    WorkloadSpec,
    WorkloadType,
)

TINY_FLEET_TOML = """\
name = "tiny"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[gpu_models.a100-80gb]
memory_gb = 80
power_w = 400
nvlink_gb_per_s = 600
pcie_gb_per_s = 64

[gpu_models.inference-card]
memory_gb = 48
power_w = 300
nvlink_gb_per_s = 0
pcie_gb_per_s = 64

[node_kinds.h100-8]
gpu_model = "h100-80gb"
gpus = 8
nvlink_island_size = 8
pcie_switch_size = 2
numa_nodes = 2
cpus = 112
memory_gb = 2048
storage_gb = 30000
host_power_w = 4600

[node_kinds.a100-4]
gpu_model = "a100-80gb"
gpus = 4
nvlink_island_size = 2
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 8000
host_power_w = 1200

[node_kinds.inference-6]
gpu_model = "inference-card"
gpus = 6
nvlink_island_size = 1
pcie_switch_size = 3
numa_nodes = 2
cpus = 72
memory_gb = 576
storage_gb = 15000
host_power_w = 1000

[[hubs]]
name = "Dakhla"
country = "MA"
grid_zone = "MA"
latitude = 23.7158
longitude = -15.9369
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 60

[[hubs.racks]]
count = 2
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{ kind = "h100-8", count = 2 }]

[[hubs.racks]]
row = "B"
cooling_zone = "hall-1"
power_kw_max = 12
nodes = [{ kind = "a100-4", count = 2 }]

[[hubs]]
name = "Dakar"
country = "SN"
grid_zone = "SN"
latitude = 14.7167
longitude = -17.4677
pue = 1.4

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 30

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{ kind = "h100-8" }, { kind = "inference-6" }]

[[links]]
between = ["Dakhla", "Dakar"]
rtt_ms = 14
bandwidth_gbps = 200
countries_crossed = ["MA", "MR", "SN"]
"""


def tiny_fleet() -> Fleet:
    """Dakhla (MA): 4 nodes of 8 H100 in two racks, 2 of 4 A100 in pairs. Dakar (SN): 8 H100 and 6 cards. 54 GPUs."""
    return parse_fleet(TINY_FLEET_TOML, "tiny.toml")


# Which work may somebody submit? Random specifications that use every field of the schema, valid by construction.
#
# `FIELDS` has a generator for each field of each part; a test compares it with the schema, so that a new field cannot
# be
# forgotten here.


TRIES_MAX = 1000  # most combinations are allowed; this many in a row that are not is a fault of `FIELDS`
DATA = ("known-data", "other-data")  # names that a test may register; unknown ones are refused at admission
_MODELS = ("h100-80gb", "a100-80gb", "inference-card")
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T", bound=Struct)
Draw = Callable[[Random], object]


def random_spec(random: Random, name: str, **fixed: object) -> WorkloadSpec:
    """A valid specification, some with hardly any field and some with nearly all; `fixed` ones are as given."""
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


def _artifact(random: Random) -> dict[str, object]:
    """What every artifact says."""
    return {name: FIELDS[Artifact][name](random) for name in ("name", "path")}


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
        "carbon": _part(CarbonPreferences),
        "code": _one_of(None, None, "code-1"),
        "environment": lambda random: random.choice((None, None, _drawn(random, Environment, {}))),
        "image": _one_of(None, "registry.example/train:1"),
        "artifacts": lambda random: random.choice(((), (), (_drawn(random, Artifact, _artifact(random)),))),
        "labels": _one_of({}, {"team": "a"}),
    },
    Environment: {
        "python": _one_of(None, "3.11"),
        "requirements": _one_of(None, "requirements.txt"),
        "lock": _one_of(None, "uv.lock"),
        "packages": _one_of((), ("numpy>=2",)),
        "index_url": _one_of(None, "https://index.example/simple"),
        "wheels": _one_of(None, "wheels"),
    },
    Artifact: {
        "name": lambda random: f"kept-{random.randrange(10**9)}",
        "path": _one_of("out", "out/model.pt"),
        "keep_days": _one_of(0.5, 30, 90),
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
    CarbonPreferences: {
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
