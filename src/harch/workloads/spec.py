"""What does somebody want to run? The one specification behind YAML files, the API's dialects and the store."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

GPUS_PER_TASK_MAX = 72
TASKS_MAX = 4096
DURATION_S_MAX = 366 * 86400

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._ -]*[a-zA-Z0-9])?$",
        description="Letters, digits, dots, dashes and underscores; unique among the unfinished work of a tenant.",
    ),
]
Country = Annotated[str, Meta(pattern="^[A-Z]{2}$", description="ISO 3166-1 alpha-2 code, e.g. MA, SN, CI.")]
EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Seconds = Annotated[float, Meta(gt=0, le=DURATION_S_MAX)]


class WorkloadType(StrEnum):
    TRAINING = "training"
    INFERENCE = "inference"
    FINE_TUNING = "fine_tuning"
    EVALUATION = "evaluation"
    DATA_PIPELINE = "data_pipeline"
    BATCH = "batch"


class Priority(StrEnum):
    """Order inside the queue; `critical` first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {Priority.LOW: 0, Priority.NORMAL: 1, Priority.HIGH: 2, Priority.CRITICAL: 3}


class RestartPolicy(StrEnum):
    """When is a workload started again? `on_loss`: only if its node or agent went away, not if it failed."""

    NEVER = "never"
    ON_LOSS = "on_loss"
    ON_FAILURE = "on_failure"


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What **each task** gets."""

    gpus: Annotated[int, Meta(ge=0, le=GPUS_PER_TASK_MAX, description="GPUs of each task, all on one node.")] = 0
    gpu_model: Annotated[str | None, Meta(description="e.g. h100-80gb; any model if absent.")] = None
    gpu_memory_gb_min: Annotated[float, Meta(ge=0, description="Least memory of each GPU.")] = 0
    cpus: Annotated[float, Meta(gt=0, le=4096, description="CPU cores of each task.")] = 1
    memory_gb: Annotated[float, Meta(gt=0, le=65536, description="Main memory of each task.")] = 1
    storage_gb: Annotated[float, Meta(ge=0, le=10**7, description="Scratch space of each task.")] = 0


class WorkloadSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A piece of work. Without a command it is a reservation: it holds its GPUs until it is stopped."""

    name: Name
    type: Annotated[WorkloadType, Meta(description="What kind of work it is.")] = WorkloadType.BATCH
    command: Annotated[
        tuple[str, ...],
        Meta(max_length=1024, description="Program and arguments; no shell is involved. Empty: a reservation."),
    ] = ()
    tasks: Annotated[
        int, Meta(ge=1, le=TASKS_MAX, description="A gang of so many tasks, started all together or not at all.")
    ] = 1
    resources: Annotated[Resources, Meta(description="What each task gets.")] = Resources()
    env: Annotated[
        dict[EnvName, str], Meta(max_length=512, description="Environment variables. Never secrets: use `secrets`.")
    ] = {}
    secrets: Annotated[
        tuple[EnvName, ...],
        Meta(max_length=64, description="Names of stored secrets; each task finds them as files in $HARCH_SECRETS."),
    ] = ()
    working_dir: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(description="A folder that the node shares; a fresh one if absent."),
    ] = None
    priority: Annotated[Priority, Meta(description="Order inside the queue.")] = Priority.NORMAL
    countries_allowed: Annotated[
        tuple[Country, ...], Meta(max_length=250, description="Where it may run: a hard rule. Empty: anywhere.")
    ] = ()
    max_duration_s: Annotated[Seconds | None, Meta(description="Stopped, as failed, when it runs longer.")] = None
    stop_grace_s: Annotated[
        float, Meta(ge=0, le=3600, description="Time between the polite signal (TERM) and the final one (KILL).")
    ] = 10
    restart: Annotated[RestartPolicy, Meta(description="When it is started again.")] = RestartPolicy.ON_LOSS
    restarts_max: Annotated[int, Meta(ge=0, le=1000, description="Limit on those restarts.")] = 3
    modelled_duration_s: Annotated[
        Seconds | None,
        Meta(description="Runs no process: its GPUs are held for so long. Labelled `modelled` wherever it is shown."),
    ] = None
    image: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Kept for the public clients; the local engine runs no images."),
    ] = None
    labels: Annotated[dict[str, str], Meta(max_length=64, description="For finding work again.")] = {}

    def __post_init__(self) -> None:
        if self.modelled_duration_s is not None and self.command:
            raise ValueError("`modelled_duration_s` runs no process, so it excludes `command`")
        if any("\0" in part for part in self.command) or any("\0" in value for value in self.env.values()):
            raise ValueError("`command` and `env` must not contain NUL characters")
        if self.command and not self.command[0]:
            raise ValueError("`command` starts with an empty word")

    @property
    def gpus_total(self) -> int:
        return self.tasks * self.resources.gpus

    @property
    def is_reservation(self) -> bool:
        return not self.command and self.modelled_duration_s is None

    @property
    def runs_process(self) -> bool:
        return bool(self.command)


def fingerprint(spec: WorkloadSpec) -> bytes:
    """Equal for equal specifications: tells a retried submission from another one of the same name."""
    return msgspec.json.encode(spec, order="sorted")
