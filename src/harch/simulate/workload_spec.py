"""What mix of work is asked for? The TOML file behind `--workload gen:SPEC`, as checked values.

docs/guides/simulate.md describes every key; `shipped/saturated.toml` is a complete example.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.workloads.spec import GPUS_PER_TASK_MAX, TASKS_MAX, SchedulingClass

FILE_BYTES_MAX = 1 << 20
DAYS_MAX = 366
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Weighted = Annotated[tuple[tuple[Positive, Positive], ...], Meta(min_length=1, max_length=64)]


class ModelChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Models that will do, most welcome first; none: any."""

    weight: Positive
    models: tuple[str, ...] = ()


class Kind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class Running(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    running: Running
    kinds: Annotated[tuple[Kind, ...], Meta(min_length=1, max_length=256)]

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
                raise ValueError(f"kind `{kind.name}` needs classes that the file describes")
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
            hint=f"give `gen:` and the path of a mix, or one that is shipped: {shipped}",
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
