"""What comes to a fleet, when and where, and what does running it mean?

The values that a replay is made of, and the reader of `--workload trace.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harch.base.errors import HarchError
from harch.fleet.model import Fleet
from harch.placement.request import PlacementRequest
from harch.workloads.spec import Priority, Resources, SchedulingClass, Topology


@dataclass(frozen=True, slots=True)
class Job:
    """One request, where it came in, and how long it works when it has all its tasks; `submitted_s` is its arrival."""

    request: PlacementRequest
    home: str  # id of the hub that it came to
    duration_s: float
    kind: str = ""

    @property
    def gpu_seconds(self) -> float:
        return self.request.gpu_milli_total * self.duration_s / 1000


@dataclass(frozen=True, slots=True)
class RunModel:
    """Assumptions about running work that a simulation needs and nothing measures."""

    busy_share: dict[SchedulingClass, float] = field(
        default_factory=lambda: {
            SchedulingClass.INFERENCE: 0.6,
            SchedulingClass.INTERACTIVE: 0.4,
            SchedulingClass.TRAINING: 0.95,
        }
    )
    checkpoint_every_s: float = 1800.0
    restart_s: float = 120.0
    stop_s: float = 10.0


@dataclass(frozen=True)
class ReplayWorkload:
    """All jobs in the order of their arrival."""

    name: str
    jobs: tuple[Job, ...]
    hours: float
    running: RunModel = field(default_factory=RunModel)


# What jobs does a trace file list? The reader of `--workload trace.csv`.
#
# Columns that every row needs: `arrival_s, duration_s, gpus`. Others may be missing or empty: `id, home` (a hub;
# without
# it jobs go round the hubs in proportion to their GPUs), `tenant, class, tasks, tasks_min, degrade_after_s,
# gpu_fraction,
# gpu_memory_gb, gpu_models` and `countries` (joined by `|`), `cpus, memory_gb, duration_s_max, preemptible`.


ROWS_MAX = 5_000_000
COLUMNS_NEEDED = ("arrival_s", "duration_s", "gpus")
COLUMNS = (
    *COLUMNS_NEEDED,
    "id",
    "home",
    "tenant",
    "class",
    "tasks",
    "tasks_min",
    "degrade_after_s",
    "gpu_fraction",
    "gpu_memory_gb",
    "gpu_models",
    "countries",
    "cpus",
    "memory_gb",
    "duration_s_max",
    "preemptible",
)
_HINT = "docs/guides/simulate.md describes the columns"
T = TypeVar("T")


def read_trace(path: Path, fleet: Fleet, *, hours: float | None) -> ReplayWorkload:
    """Jobs sorted by arrival; those after `hours` are left out. Raises HarchError E0202 with the line at fault."""
    homes = _Homes({hub.id: hub.gpu_count for hub in fleet.hubs})
    jobs: list[Job] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            if missing := [name for name in COLUMNS_NEEDED if name not in columns]:
                raise HarchError("E0202", f"`{path}` has no column `{missing[0]}`", hint=_HINT)
            if unknown := [name for name in columns if name not in COLUMNS]:
                raise HarchError("E0202", f"`{path}` has a column `{unknown[0]}`, which is unknown", hint=_HINT)
            for line, row in enumerate(reader, start=2):
                if len(jobs) >= ROWS_MAX:
                    raise HarchError("E0202", f"`{path}` has more than {ROWS_MAX:,} rows")
                jobs.append(_job(_Row(path, line, row), fleet, homes))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise HarchError("E0202", f"cannot read `{path}`: {problem}", hint=_HINT) from problem
    jobs.sort(key=lambda job: (job.request.submitted_s, job.request.id))
    if len({job.request.id for job in jobs}) != len(jobs):
        raise HarchError("E0202", f"`{path}` uses an id twice", hint="omit the column to number lines")
    until_h = hours if hours is not None else max((job.request.submitted_s for job in jobs), default=0.0) / 3600
    kept = tuple(job for job in jobs if job.request.submitted_s <= until_h * 3600)
    if not kept:
        raise HarchError("E0202", f"`{path}` lists no job within {until_h:g} hours", hint=_HINT)
    return ReplayWorkload(path.stem, kept, until_h)


@dataclass
class _Homes:
    """Deals jobs out so that each hub's share of them follows its share of the GPUs."""

    gpus: dict[str, int]
    dealt: dict[str, int] = field(default_factory=dict)

    def next(self) -> str:
        home = min(self.gpus, key=lambda hub: (self.dealt.get(hub, 0) + 1) / self.gpus[hub])
        self.dealt[home] = self.dealt.get(home, 0) + 1
        return home


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: dict[str, str]

    def get(self, column: str, convert: Callable[[str], T], default: T) -> T:
        text = (self.cells.get(column) or "").strip()
        if not text:
            return default
        try:
            return convert(text)
        except (ValueError, OverflowError):
            raise self.wrong(f"`{column}` is invalid: `{text}`") from None

    def wrong(self, why: str) -> HarchError:
        return HarchError("E0202", f"`{self.path}`, line {self.line}: {why}", hint=_HINT)


def _job(row: _Row, fleet: Fleet, homes: _Homes) -> Job:
    home = row.get("home", str.lower, "") or homes.next()
    if fleet.hub(home) is None:
        raise row.wrong(f"no hub in the fleet is named `{home}`")
    arrival_s, duration_s = row.get("arrival_s", float, -1.0), row.get("duration_s", float, 0.0)
    tasks = row.get("tasks", int, 1)
    tasks_min = row.get("tasks_min", int, tasks)
    if not (0 <= arrival_s < float("inf") and 0 < duration_s < float("inf") and 1 <= tasks_min <= tasks):
        raise row.wrong("a job needs an arrival >= 0, a duration > 0 and 1 <= tasks_min <= tasks")
    none: tuple[str, ...] = ()
    models = row.get("gpu_models", _words, none)
    try:
        needs = Resources(
            gpus=row.get("gpus", int, 0),
            gpu_model=models[0] if len(models) == 1 else None,
            gpu_models=models if len(models) > 1 else (),
            gpu_fraction=row.get("gpu_fraction", float, None),
            gpu_memory_gb=row.get("gpu_memory_gb", _gigabytes, None),
            cpus=row.get("cpus", float, 1.0),
            memory_gb=row.get("memory_gb", float, 1.0),
        )
    except ValueError as problem:
        raise row.wrong(str(problem)) from problem
    request = PlacementRequest(
        id=row.get("id", str, f"line-{row.line:07d}"),
        tenant=row.get("tenant", str, "default"),
        turn_class=row.get("class", SchedulingClass, SchedulingClass.TRAINING),
        priority=Priority.NORMAL.rank,
        needs=needs,
        tasks=tasks,
        topology=Topology(),
        countries_allowed=row.get("countries", _words, none),
        runs_process=False,
        submitted_s=arrival_s,
        tasks_min=tasks_min,
        degrade_after_s=row.get("degrade_after_s", float, 30.0),
        duration_s_max=row.get("duration_s_max", float, None),
        preemptible=row.get("preemptible", _truth, True),
    )
    return Job(request, home, duration_s)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split("|") if word.strip())


def _gigabytes(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


def _truth(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]
