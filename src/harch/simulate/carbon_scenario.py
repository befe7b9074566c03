"""Which fleet, plants, weather and work does a carbon replay assume? The TOML behind `harch simulate carbon`, checked.

docs/guides/carbon.md describes every key; `scenarios/onsite-124.toml` is a complete example, and other files may say
`extends` and replace some of its tables.
"""

from __future__ import annotations

import tomllib
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from harch.base.errors import HarchError
from harch.workloads.spec import GPUS_PER_TASK_MAX, TASKS_MAX, SchedulingClass

FILE_BYTES_MAX = 1 << 20
DAYS_MAX = 366
EXTENDS_MAX = 4
SHARES_ROUNDING = 1e-6
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class Case(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class Kind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    cases: Annotated[tuple[Case, ...], Meta(min_length=1, max_length=64)]
    pinned: dict[str, Share]
    weather: Weather
    moving: Moving
    arrivals: Arrivals
    work: Annotated[tuple[Kind, ...], Meta(min_length=1, max_length=256)]

    def __post_init__(self) -> None:
        if abs(sum(kind.share for kind in self.work) - 1) > SHARES_ROUNDING:
            raise ValueError("the `share` of all kinds of work must add up to 1")
        if sum(self.pinned.values()) > 1 + SHARES_ROUNDING:
            raise ValueError("`pinned` shares add up to more than 1")
        if len({kind.name for kind in self.work}) < len(self.work):
            raise ValueError("two kinds of work have the same name")
        immovable = [kind.name for kind in self.work if kind.slack_h and kind.turn_class is SchedulingClass.INFERENCE]
        if immovable:
            raise ValueError(f"kind `{immovable[0]}`: inference answers now, so it has no slack")

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
        raise HarchError("E0201", f"{name_or_path}: `extends` names one scenario, at most {EXTENDS_MAX} deep")
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
            hint=f"give the path of a scenario, or one that is shipped: {', '.join(shipped_scenario_names())}",
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise HarchError("E0202", f"`{name_or_path}` is larger than {FILE_BYTES_MAX // 1024} KiB")
    return data
