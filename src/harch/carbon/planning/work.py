"""What work is to be planned? Jobs with their slack, and the classes that a linear program can hold.

A class is all work that may run at the same hubs on the same GPU model. Allowed hubs come in as a set, from
sovereignty; nothing here ever widens it.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from harch.carbon.planning.outlook import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexibleWork:
    """One job, waiting or running. Times are hours from now."""

    id: str
    hubs: frozenset[str]  # where it may run, checkpoints included
    model: str
    gpus: float  # all tasks together: a gang starts whole; of a shared GPU, the share
    hours_left: float  # as it states
    wait_h_max: float = 0.0  # it keeps its promise if it waits no longer; 0: it cannot wait
    tenant: str = ""
    home: str = ""
    running_at: str | None = None
    movable: bool = False
    checkpoint_gb: float = 0.0
    g_max: float | None = None  # what is left of its own carbon limit
    g_per_kwh_max: float | None = None  # its ceiling

    @property
    def class_key(self) -> ClassKey:
        return ClassKey(self.hubs, self.model, self.wait_h_max > 0)


@dataclass(frozen=True, slots=True)
class ClassKey:
    """What a class has in common."""

    hubs: frozenset[str]
    model: str
    deferrable: bool

    def __str__(self) -> str:
        return f"{'+'.join(sorted(self.hubs))} {self.model} {'deferrable' if self.deferrable else 'urgent'}"


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """Work of a class that has not come yet: how much per hour, how long each lasts, how long it may wait."""

    gpu_hours_per_hour: float
    hours_mean: float
    wait_h_max: float = 0.0


@dataclass(frozen=True, eq=False)
class JobClass:
    """Cumulative GPU-hours by the end of each step: at least `due` are done, no more than `available` can be."""

    key: ClassKey
    due: Floats
    available: Floats
    jobs: int = 0
    waiting_gpu_hours: float = 0.0
    gpus_expected: float = 0.0  # that work to come will use, on average

    def __post_init__(self) -> None:
        if (self.due > self.available + 1e-9).any():
            raise ValueError(f"class {self.key} is due before it arrives")


@dataclass
class _Sum:
    due: Floats
    available: Floats
    jobs: int = 0
    waiting: float = 0.0
    expected: float = 0.0


@dataclass(frozen=True)
class WorkDemand:
    """Everything that is to be planned: jobs that are here, and what is expected of each class."""

    waiting: tuple[FlexibleWork, ...]
    expected: dict[ClassKey, ExpectedWork] = field(default_factory=dict)


def classes_of(demand: WorkDemand, steps: int, step_h: float = 1.0) -> tuple[JobClass, ...]:
    """Here and to come, in one pass over the jobs: a class of thousands is as small as one of two."""
    sums: defaultdict[ClassKey, _Sum] = defaultdict(lambda: _Sum(np.zeros(steps), np.zeros(steps)))
    ends = step_h * np.arange(1, steps + 1, dtype=np.float64)
    for key, members in _by_class(demand.waiting).items():
        gpus = np.array([work.gpus for work in members], dtype=np.float64)
        lasts = np.array([work.hours_left for work in members])
        waits = np.array([work.wait_h_max for work in members])
        total = sums[key]
        # A gang cannot run faster than itself, and must run through once its slack has ended.
        total.available += np.clip(ends[:, None], 0.0, lasts) @ gpus
        total.due += np.clip(ends[:, None] - waits, 0.0, lasts) @ gpus
        total.jobs, total.waiting = len(members), float(gpus @ lasts)
    for key, expected in demand.expected.items():
        if expected.gpu_hours_per_hour > 0:
            total = sums[key]
            total.available += expected_gpu_hours(ends, expected)
            total.due += expected_gpu_hours(ends - expected.wait_h_max, expected)
            total.expected = expected.gpu_hours_per_hour
    for total in sums.values():
        total.due = np.minimum(total.due, total.available)
    return tuple(
        JobClass(key, one.due, one.available, one.jobs, one.waiting, one.expected) for key, one in sums.items()
    )


def _by_class(members: Iterable[FlexibleWork]) -> dict[ClassKey, list[FlexibleWork]]:
    found: defaultdict[ClassKey, list[FlexibleWork]] = defaultdict(list)
    for work in members:
        found[work.class_key].append(work)
    return found


def expected_gpu_hours(ends: Floats, expected: ExpectedWork) -> Floats:
    """GPU-hours done by then if work comes evenly, starts at once and lasts exponentially long."""
    elapsed, mean = np.maximum(ends, 0.0), expected.hours_mean
    done: Floats = expected.gpu_hours_per_hour * (elapsed - mean * (1.0 - np.exp(-elapsed / mean)))
    return done
