"""What does placement need to know of a workload? Nothing but its shape and where it may run."""

from __future__ import annotations

from dataclasses import dataclass

from harch.workloads.spec import Resources, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Request:
    """`tasks` equal tasks, all placed or none."""

    id: str
    needs: Resources
    tasks: int
    countries_allowed: tuple[str, ...]
    runs_process: bool

    @classmethod
    def of(cls, workload_id: str, spec: WorkloadSpec) -> Request:
        return cls(
            id=workload_id,
            needs=spec.resources,
            tasks=spec.tasks,
            countries_allowed=spec.countries_allowed,
            runs_process=spec.runs_process,
        )

    @property
    def shape(self) -> tuple[Resources, int, tuple[str, ...], bool]:
        """Equal shapes fit or fail alike, so a failed shape need not be tried twice in one round."""
        return self.needs, self.tasks, self.countries_allowed, self.runs_process

    def describe(self) -> str:
        needs = self.needs
        each = f"{needs.gpus} x {needs.gpu_model or 'any GPU'}" if needs.gpus else "no GPU"
        text = f"{each}, {needs.cpus:g} cpus, {needs.memory_gb:g} GB"
        return f"{self.tasks} tasks of {text}" if self.tasks > 1 else text
