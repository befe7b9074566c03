"""What does placement need to know of a workload? Its shape, its wishes, whose it is; nothing of what it does."""

# harch: pure

from __future__ import annotations

from typing import Self

from msgspec import Struct

from harch.base.counting import counted
from harch.workloads.spec import Level, Resources, SchedulingClass, Strategy, Topology, WorkloadSpec


class PlacementRequest(Struct, frozen=True, kw_only=True, gc=False):
    """`tasks` equal tasks, placed all together (or `tasks_min` of them, once `degrade_after_s` have passed)."""

    id: str
    tenant: str
    turn_class: SchedulingClass
    priority: int  # larger is more urgent, inside a class and tenant
    needs: Resources  # of each task
    tasks: int
    topology: Topology
    countries_allowed: tuple[str, ...]
    runs_process: bool
    submitted_s: float  # seconds on whatever clock the caller uses throughout
    tasks_min: int
    degrade_after_s: float
    duration_s_max: float | None  # an upper bound that somebody promised; None: unknown
    preemptible: bool
    stop_grace_s: float = 10.0
    hubs_allowed: tuple[str, ...] | None = None  # where the tags of its data let it run; None: it names no data

    @classmethod
    def of(
        cls,
        workload_id: str,
        spec: WorkloadSpec,
        *,
        tenant: str = "",
        submitted_s: float = 0.0,
        hubs_allowed: tuple[str, ...] | None = None,
    ) -> PlacementRequest:
        return cls(
            id=workload_id,
            tenant=tenant,
            turn_class=spec.turn_class,
            priority=spec.priority.rank,
            needs=spec.resources,
            tasks=spec.tasks,
            topology=spec.topology,
            countries_allowed=spec.countries_allowed,
            runs_process=spec.runs_process,
            submitted_s=submitted_s,
            tasks_min=spec.gang.tasks_min or spec.tasks,
            degrade_after_s=spec.gang.degrade_after_s,
            duration_s_max=spec.modelled_duration_s or spec.max_duration_s,
            preemptible=spec.preemptible,
            stop_grace_s=spec.stop_grace_s,
            hubs_allowed=hubs_allowed,
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Nothing of it ever changes, and a preview of a round copies thousands."""
        return self

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal shapes fit or fail alike, so a failed shape need not be tried twice in one round."""
        return (
            self.needs,
            self.tasks,
            self.tasks_min,
            self.topology,
            self.countries_allowed,
            self.hubs_allowed,
            self.runs_process,
        )

    @property
    def gpu_milli_total(self) -> int:
        """The compute that it asks for: a measure of its size. What it takes of a hub is the room's to say."""
        return self.tasks * self.needs.gpus * self.needs.gpu_milli

    def describe(self) -> str:
        needs = self.needs
        model = " or ".join(needs.models_wanted) or "any GPU"
        each = f"{needs.gpus} x {model}" if needs.gpus else "no GPU"
        if needs.gpu_fraction is not None:
            each = f"{needs.gpu_fraction:g} of one {model}"
            each += f" with {needs.gpu_memory_gb:g} GB of its memory" if needs.gpu_memory_gb is not None else ""
        text = f"{each}, {counted(needs.cpus, 'CPU')}, {needs.memory_gb:g} GB"
        text += f", {needs.storage_gb:g} GB of storage" if needs.storage_gb else ""
        text = f"{self.tasks} tasks of {text}" if self.tasks > 1 else text
        topology = self.topology
        if topology.required is not Level.HUB:
            text += f", all in one {topology.required}"
        if topology.strategy is Strategy.SPREAD:
            text += ", spread"
        return f"{text}, exclusive nodes" if topology.exclusive else text
