"""A hub's machine with agents that are not there, driven by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harch.execution.protocol import HubMessage, StartTask, StopTask, TaskEnded, TaskKey
from harch.hub import happenings as h
from harch.hub.machine import JobMachine
from harch.testing.agents import SimAgent
from harch.testing.fleets import tiny_fleet
from harch.workloads.lifecycle import ExitReason, Workload
from harch.workloads.spec import Resources, WorkloadSpec


class Bench:
    """The machine, its agent, and what was sent last."""

    def __init__(self) -> None:
        fleet = tiny_fleet()
        self.hub = fleet.hubs[0]
        self.machine = JobMachine(fleet, self.hub)
        self.agent = SimAgent("agent", self.hub.country)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.sent: list[HubMessage] = []
        self.records: list[h.Record] = []
        self.count = 0

    def handle(self, event: h.Event) -> list[h.Effect]:
        effects = self.machine.handle(event, now=self.now)
        self.sent = [effect.message for effect in effects if isinstance(effect, h.Send)]
        self.records += [effect for effect in effects if isinstance(effect, h.Record)]
        return effects

    def join(self) -> None:
        self.handle(h.AgentJoined(self.agent.hello(), 1))

    def submit(
        self, *, gpus: int = 1, tasks: int = 1, name: str = "", key: str | None = None, **fields: object
    ) -> Workload:
        self.count += 1
        spec = WorkloadSpec(
            name=name or f"job-{self.count}",
            command=("true",),
            tasks=tasks,
            resources=Resources(gpus=gpus),
            **fields,  # type: ignore[arg-type]
        )
        return self.submit_spec(spec, key=key)

    def submit_spec(self, spec: WorkloadSpec, *, key: str | None = None) -> Workload:
        event = h.Submitted(f"wl_{self.count}_{len(self.records)}", "t", spec, {}, key)
        self.handle(event)
        registry = self.machine.desk.registry
        found = registry.workloads.get(event.workload_id)
        return found or registry.workloads[registry.earlier_submission(event, self.now) or ""]

    def place(self) -> list[StartTask]:
        self.handle(h.PlacementDue())
        return [message for message in self.sent if isinstance(message, StartTask)]

    def run(self, workload: Workload) -> None:
        self.place()
        for task in workload.placement:
            self.handle(h.TaskStartSeen(TaskKey(workload.id, workload.attempt, task.rank)))

    def end(
        self, workload: Workload, rank: int = 0, reason: ExitReason = ExitReason.EXITED, code: int | None = 0
    ) -> None:
        key = TaskKey(workload.id, workload.attempt, rank)
        self.handle(h.TaskEndSeen("agent", TaskEnded(key=key, reason=reason, at=self.now, exit_code=code)))

    def stops_sent(self) -> set[int]:
        return {message.key.rank for message in self.sent if isinstance(message, StopTask)}

    def later(self, **delta: float) -> None:
        self.now += timedelta(**delta)

    @property
    def gpus_held(self) -> int:
        running = self.machine.desk.scheduler.running.values()
        return sum(len(slot.devices) for held in running for slot in held.slots)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.join()
    return made
