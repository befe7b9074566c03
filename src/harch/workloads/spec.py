"""What does somebody want to run, and what of its power?

The one specification behind YAML files, the API's dialects and the store, with its carbon preferences and the choice
that was made.
"""

# harch: pure

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

SLACK_S_MAX = 30 * 86400
CHECKPOINT_GB_MAX = 10**6

_Positive = Annotated[float, Meta(gt=0, le=1e15)]


class Resumes(StrEnum):
    """Where work goes on from what it saved when it is started again."""

    NO = "no"
    HERE = "here"  # its folder is at this hub
    ANYWHERE = "anywhere"  # its folder can be reached from every hub that may run it


class CarbonPreferences(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """When and where it may run for cleaner power, and how much it may emit. Grams are by location, with own plants."""

    aware: Annotated[
        bool | None,
        Meta(description="True: the plan chooses where it runs. False: it never does. Absent: the hub's setting."),
    ] = None
    slack_s: Annotated[
        float, Meta(ge=0, le=SLACK_S_MAX, description="How long its start may be delayed for cleaner power.")
    ] = 0
    finish_by: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Its start may be delayed as long as it can end by then; needs a duration."),
    ] = None
    duration_s: Annotated[
        Annotated[float, Meta(gt=0, le=366 * 86400)] | None,
        Meta(description="How long it is expected to run; `max_duration_s` if absent."),
    ] = None
    g_max: Annotated[_Positive | None, Meta(description="Grams of CO2 equivalent that it may emit: a hard limit.")] = (
        None
    )
    g_per_kwh_max: Annotated[
        _Positive | None, Meta(description="Runs only where and when a kWh emits no more, as forecast: a hard limit.")
    ] = None
    resumes: Annotated[
        Resumes,
        Meta(description="It checkpoints its work and resumes from there: it may be suspended (`here`) or also moved."),
    ] = Resumes.NO
    checkpoint_gb: Annotated[
        float, Meta(ge=0, le=CHECKPOINT_GB_MAX, description="Size of its checkpoint: moving it costs energy, too.")
    ] = 0

    def __post_init__(self) -> None:
        if self.aware is False and (self.may_wait or self.resumes is not Resumes.NO):
            raise ValueError("`carbon.aware: false` starts at once, so it excludes slack_s, finish_by and resumes")

    @property
    def may_wait(self) -> bool:
        return self.slack_s > 0 or self.finish_by is not None

    @property
    def wants_plan(self) -> bool:
        """It says itself that where or when it runs may depend on its power."""
        return bool(self.aware) or self.may_wait or self.resumes is not Resumes.NO

    @property
    def has_limit(self) -> bool:
        return self.g_max is not None or self.g_per_kwh_max is not None


# What does somebody want to run? The one specification behind YAML files, the API's dialects and the store.


GPUS_PER_TASK_MAX = 72
TASKS_MAX = 4096
DURATION_S_MAX = 366 * 86400
DATA_MAX = 64  # data objects that one workload reads, and that it produces

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._ -]*[a-zA-Z0-9])?$",
        description="Letters, digits, dots, dashes and underscores; unique among the unfinished work of a tenant.",
    ),
]
DataRef = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._ -]*[a-zA-Z0-9])?$",
        description="Name or id of a data object: letters, digits, dots, dashes and underscores.",
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


class SchedulingClass(StrEnum):
    """Whose turn it is: each class has a weight (by default 100, 10 and 1)."""

    INFERENCE = "inference"
    INTERACTIVE = "interactive"
    TRAINING = "training"


class Level(StrEnum):
    """How close together the GPUs of a workload stand, closest first."""

    ISLAND = "island"  # one NVLink island
    NODE = "node"
    RACK = "rack"
    ROW = "row"
    HUB = "hub"

    @property
    def rank(self) -> int:
        return _LEVELS[self]


_LEVELS = {level: rank for rank, level in enumerate(Level)}


class Strategy(StrEnum):
    """`pack` keeps nodes whole for others; `spread` puts tasks on as many nodes as it can, so that few share a fate."""

    PACK = "pack"
    SPREAD = "spread"


class RestartPolicy(StrEnum):
    """When is a workload started again? `on_loss`: only if its node or agent went away, not if it failed."""

    NEVER = "never"
    ON_LOSS = "on_loss"
    ON_FAILURE = "on_failure"


class Resources(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, cache_hash=True
):
    """What **each task** gets."""

    gpus: Annotated[int, Meta(ge=0, le=GPUS_PER_TASK_MAX, description="GPUs of each task, all on one node.")] = 0
    gpu_model: Annotated[str | None, Meta(description="e.g. h100-80gb; any model if absent.")] = None
    gpu_models: Annotated[
        tuple[str, ...],
        Meta(max_length=16, description="Any of these models, in order of preference; excludes `gpu_model`."),
    ] = ()
    gpu_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="A share of one GPU, e.g. 0.25; needs `gpus: 1`. Shares are counted in thousandths."),
    ] = None
    gpu_memory_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Memory of its GPU that a share gets; its fraction of it if absent; needs `gpu_fraction`."),
    ] = None
    gpu_memory_gb_min: Annotated[float, Meta(ge=0, description="Minimum memory of each GPU.")] = 0
    cpus: Annotated[float, Meta(gt=0, le=4096, description="CPU cores of each task.")] = 1
    memory_gb: Annotated[float, Meta(gt=0, le=65536, description="Main memory of each task.")] = 1
    storage_gb: Annotated[float, Meta(ge=0, le=10**7, description="Scratch space of each task.")] = 0

    def __post_init__(self) -> None:
        if self.gpu_model is not None and self.gpu_models:
            raise ValueError("`gpu_model` and `gpu_models` exclude each other")
        if self.gpu_fraction is not None and self.gpus != 1:
            raise ValueError("`gpu_fraction` is a share of one GPU, so it needs `gpus: 1`")
        if self.gpu_memory_gb is not None and self.gpu_fraction is None:
            raise ValueError(
                "`gpu_memory_gb` is for a share, so it needs `gpu_fraction`: a whole GPU comes with all its memory, "
                "and `gpu_memory_gb_min` requests one that has enough"
            )

    @property
    def gpu_milli(self) -> int:
        """Thousandths of the compute of each GPU. What is taken of one also depends on its memory: `gpu_milli_of`."""
        return 1000 if self.gpu_fraction is None else max(1, round(self.gpu_fraction * 1000))

    @property
    def gpu_memory_gb_needed(self) -> float:
        """Least memory of each GPU, for what it is given of it and for what it asks of the whole."""
        return max(self.gpu_memory_gb_min, self.gpu_memory_gb or 0)

    def gpu_milli_of(self, memory_gb: float) -> int:
        """Thousandths that it takes of each GPU with so much memory: the larger of its compute and its memory."""
        if self.gpu_memory_gb is None:
            return self.gpu_milli
        if self.gpu_memory_gb >= memory_gb:
            return 1000
        # Rounded up, so that memory is never given twice; in decimals, as floats make 806 of 64.4 of 80 GB.
        return max(self.gpu_milli, math.ceil(Fraction(repr(self.gpu_memory_gb)) * 1000 / Fraction(memory_gb)))

    @property
    def models_wanted(self) -> tuple[str, ...]:
        """The models that will do, most welcome first; empty for any."""
        return (self.gpu_model,) if self.gpu_model is not None else self.gpu_models


class Topology(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, cache_hash=True
):
    """How the GPUs of **all tasks together** must stand, and how they would like to."""

    required: Annotated[Level, Meta(description="All of its GPUs inside one such domain, or it waits.")] = Level.HUB
    preferred: Annotated[Level, Meta(description="Tried first; then the next larger domain.")] = Level.ISLAND
    strategy: Annotated[Strategy, Meta(description="pack or spread.")] = Strategy.PACK
    exclusive: Annotated[bool, Meta(description="No other workload on its nodes (security class).")] = False

    def __post_init__(self) -> None:
        if self.strategy is Strategy.SPREAD and self.required in (Level.ISLAND, Level.NODE):
            raise ValueError("`spread` needs several nodes, so `required` must be rack, row or hub")


class Gang(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, cache_hash=True
):
    """What a gang accepts when it cannot have all its tasks."""

    tasks_min: Annotated[
        Annotated[int, Meta(ge=1, le=TASKS_MAX)] | None,
        Meta(description="Minimum tasks to start with after `degrade_after_s`; all if absent."),
    ] = None
    degrade_after_s: Annotated[
        float, Meta(ge=0, le=DURATION_S_MAX, description="How long it waits for all of them.")
    ] = 30
    start_within_s: Annotated[Seconds | None, Meta(description="Fails if it has not started by then.")] = None


PACKAGES_MAX = 256
IMAGE_DATA_PREFIX = "data:"
ARTIFACTS_MAX = 64
KEEP_DAYS_DEFAULT, KEEP_DAYS_MAX = 30.0, 3660.0

_InCode = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        pattern=r"^(?!/)(?!(.*/)?\.\.(/|$))[^\x00]+$",
        description="A path inside the working folder: relative, and without `..`.",
    ),
]


class Environment(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, cache_hash=True
):
    """Which Python and packages it runs with. Built once per node for equal contents, and kept."""

    python: Annotated[
        Annotated[str, Meta(pattern=r"^3\.[0-9]{1,2}(\.[0-9]{1,3})?$", description="A version, e.g. 3.12.")] | None,
        Meta(description="Version that the node must have; that of its agent if absent."),
    ] = None
    requirements: Annotated[_InCode | None, Meta(description="A requirements file in the code.")] = None
    lock: Annotated[
        _InCode | None, Meta(description="A `uv.lock` in the code, beside its pyproject.toml: exactly these packages.")
    ] = None
    packages: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][^\x00-\x1f]*$")], ...],
        Meta(max_length=PACKAGES_MAX, description="Requirements in words, e.g. `numpy>=2`."),
    ] = ()
    index_url: Annotated[
        Annotated[str, Meta(max_length=2048, pattern="^https?://[^\\s]+$", description="An http(s) URL.")] | None,
        Meta(description="Package index in place of the node's own."),
    ] = None
    wheels: Annotated[_InCode | None, Meta(description="A folder of wheels in the code: no index is asked.")] = None

    def __post_init__(self) -> None:
        if self.lock is not None and (self.requirements is not None or self.packages):
            raise ValueError("`environment.lock` names every package, so it excludes `requirements` and `packages`")
        if self.wheels is not None and self.index_url is not None:
            raise ValueError("`environment.wheels` and `environment.index_url` exclude each other")


class Artifact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Files that are kept when it has ended well, by their hash, with the tags of all that was read."""

    name: Annotated[DataRef, Meta(description="Name of the data object that it becomes.")]
    path: Annotated[_InCode, Meta(description="A file or folder in the working folder.")]
    keep_days: Annotated[Annotated[float, Meta(gt=0, le=KEEP_DAYS_MAX)], Meta(description="How long it is kept.")] = (
        KEEP_DAYS_DEFAULT
    )


class WorkloadSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A piece of work. Without a command it is a reservation: it holds its GPUs until it is stopped."""

    name: Name
    type: Annotated[WorkloadType, Meta(description="What kind of work it is.")] = WorkloadType.BATCH
    command: Annotated[
        tuple[str, ...],
        Meta(max_length=1024, description="Program and arguments; no shell is involved. Empty: a reservation."),
    ] = ()
    tasks: Annotated[
        int, Meta(ge=1, le=TASKS_MAX, description="Size of the gang, started all together or not at all.")
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
        Meta(description="Folder shared by the node (default: a fresh one)."),
    ] = None
    data: Annotated[
        tuple[DataRef, ...],
        Meta(
            max_length=DATA_MAX,
            description="Names or ids of the data that it reads; their tags say where it may run. Empty: none.",
        ),
    ] = ()
    outputs: Annotated[
        tuple[DataRef, ...],
        Meta(
            max_length=DATA_MAX,
            description="Names of what it produces; each becomes a data object with the tags of all that was read.",
        ),
    ] = ()
    query: Annotated[
        Annotated[str, Meta(max_length=500)] | None,
        Meta(description="GPUs in words, e.g. `8 GPUs, same NVLink island, >= 40 GB, in MA`; excludes what it says."),
    ] = None
    topology: Annotated[Topology, Meta(description="Placement of its GPUs relative to each other.")] = Topology()
    gang: Annotated[Gang, Meta(description="What it accepts when it cannot have all its tasks.")] = Gang()
    scheduling_class: Annotated[
        SchedulingClass | None, Meta(description="Scheduling class; by default it follows from `type`.")
    ] = None
    preemptible: Annotated[
        bool, Meta(description="A higher class may take its GPUs: TERM, grace, then it is requeued.")
    ] = True
    priority: Annotated[Priority, Meta(description="Order inside its class and tenant.")] = Priority.NORMAL
    countries_allowed: Annotated[
        tuple[Country, ...], Meta(max_length=250, description="Where it may run: a hard rule. Empty: anywhere.")
    ] = ()
    max_duration_s: Annotated[Seconds | None, Meta(description="Time limit; it fails when it runs longer.")] = None
    stop_grace_s: Annotated[float, Meta(ge=0, le=3600, description="Time between SIGTERM and SIGKILL.")] = 10
    restart: Annotated[RestartPolicy, Meta(description="When it is started again.")] = RestartPolicy.ON_LOSS
    restarts_max: Annotated[int, Meta(ge=0, le=1000, description="Limit on those restarts.")] = 3
    modelled_duration_s: Annotated[
        Seconds | None,
        Meta(description="Runs no process: its GPUs are held for this time. Always labelled `modelled`."),
    ] = None
    stay_home: Annotated[
        bool, Meta(description="Never goes to another hub, even if it waits. Work that uses `secrets` never does.")
    ] = False
    carbon: Annotated[CarbonPreferences, Meta(description="When and where it may run for cleaner power.")] = (
        CarbonPreferences()
    )
    code: Annotated[
        DataRef | None,
        Meta(description="Uploaded code that its working folder begins with; `harch run` packs and names it."),
    ] = None
    environment: Annotated[
        Environment | None, Meta(description="Python and packages; those of the node's agent if absent.")
    ] = None
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        Meta(description="OCI image that it runs in: `registry/name:tag`, `…@sha256:…`, or `data:NAME`."),
    ] = None
    artifacts: Annotated[
        tuple[Artifact, ...],
        Meta(max_length=ARTIFACTS_MAX, description="What is kept of its working folder when it has ended well."),
    ] = ()
    labels: Annotated[dict[str, str], Meta(max_length=64, description="Key-value pairs to filter workloads by.")] = {}

    def __post_init__(self) -> None:
        if self.modelled_duration_s is not None and self.command:
            raise ValueError("`modelled_duration_s` runs no process, so it excludes `command`")
        if any("\0" in part for part in self.command) or any("\0" in value for value in self.env.values()):
            raise ValueError("`command` and `env` must not contain NUL characters")
        if self.gang.tasks_min is not None and not 1 <= self.gang.tasks_min <= self.tasks:
            raise ValueError("`gang.tasks_min` must be from 1 to `tasks`")
        if self.command and not self.command[0]:
            raise ValueError("`command` starts with an empty word")
        if self.outputs and not self.data:
            raise ValueError("`outputs` carry the tags of what was read, so they need `data`")
        if len(set(self.outputs)) < len(self.outputs):
            raise ValueError("`outputs` has a duplicate name")
        kept = [artifact.name for artifact in self.artifacts]
        if len({*kept, *self.outputs}) < len(kept) + len(self.outputs):
            raise ValueError("`artifacts` and `outputs` have a duplicate name")
        if self.code is not None and self.working_dir is not None:
            raise ValueError("`code` is the beginning of a fresh working folder, so it excludes `working_dir`")
        wanted = self.environment
        if wanted is not None and self.image is not None:
            raise ValueError("`image` brings its own packages, so it excludes `environment`")
        if wanted is not None and self.code is None and (wanted.requirements or wanted.lock or wanted.wheels):
            raise ValueError("`environment.requirements`, `lock` and `wheels` are files of the code: give `code`")
        if self.artifacts and not self.command:
            raise ValueError("`artifacts` are files of a process, so they need a `command`")
        if self.carbon.may_wait:
            if self.turn_class is not SchedulingClass.TRAINING:
                raise ValueError(f"work of class {self.turn_class} never waits for power: leave slack and deadline out")
            if self.carbon.finish_by is not None and self.expected_s is None:
                raise ValueError("`carbon.finish_by` needs to know how long it runs: give `carbon.duration_s`")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names or ids of every data object that it is given: its data, its code, and the image if that is one."""
        extra = [ref for ref in (self.code, self.image_data) if ref is not None]
        return (*self.data, *extra) if extra else self.data

    @property
    def image_data(self) -> str | None:
        """The data object that holds its image, if one does."""
        if self.image is None or not self.image.startswith(IMAGE_DATA_PREFIX):
            return None
        return self.image.removeprefix(IMAGE_DATA_PREFIX)

    @property
    def gpus_total(self) -> int:
        return self.tasks * self.resources.gpus

    @property
    def turn_class(self) -> SchedulingClass:
        return self.scheduling_class or _CLASS_OF_TYPE.get(self.type, SchedulingClass.TRAINING)

    @property
    def expected_s(self) -> float | None:
        """How long it runs, as it says; at most, if that is all that it says."""
        return self.carbon.duration_s or self.modelled_duration_s or self.max_duration_s

    @property
    def is_reservation(self) -> bool:
        return not self.command and self.modelled_duration_s is None

    @property
    def runs_process(self) -> bool:
        return bool(self.command)


_CLASS_OF_TYPE = {
    WorkloadType.INFERENCE: SchedulingClass.INFERENCE,
    WorkloadType.EVALUATION: SchedulingClass.INTERACTIVE,
    WorkloadType.DATA_PIPELINE: SchedulingClass.INTERACTIVE,
}


def fingerprint(spec: WorkloadSpec) -> bytes:
    """Equal for equal specifications: tells a retried submission from another one of the same name."""
    return msgspec.json.encode(spec, order="sorted")
