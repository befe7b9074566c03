"""What comes to a fleet, when and where, and what does running it mean? The values that a replay is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.placement.request import Request
from harch.workloads.spec import SchedulingClass


@dataclass(frozen=True, slots=True)
class Job:
    """One request, where it came in, and how long it works when it has all its tasks; `submitted_s` is its arrival."""

    request: Request
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
class Workload:
    """All jobs in the order of their arrival."""

    name: str
    jobs: tuple[Job, ...]
    hours: float
    running: RunModel = field(default_factory=RunModel)
