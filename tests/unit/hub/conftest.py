"""A hub's machine with agents that are not there, driven by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harch.carbon.planning.settings import PlanSettings
from harch.execution.protocol import HubMessage, StartTask, StopTask, TaskEnded, TaskKey
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.sovereignty.audit.chain import POLICY_BUILTIN
from harch.testing.agents import SimAgent
from harch.testing.samples import tiny_fleet
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
        self.records: list[fx.Record] = []
        self.count = 0
        self.limits, self.power, self.policy_version = ev.JobLimits(), ev.BidPower(), POLICY_BUILTIN

    @property
    def context(self) -> EventContext:
        return EventContext(now=self.now, policy_version=self.policy_version, limits=self.limits, power=self.power)

    def plan_by(self, settings: PlanSettings) -> None:
        self.limits = ev.JobLimits(carbon=settings)

    def handle(self, event: ev.Event) -> list[fx.Effect]:
        effects = self.machine.apply(event, self.context)
        self.sent = [effect.message for effect in effects if isinstance(effect, fx.Send)]
        self.records += [effect for effect in effects if isinstance(effect, fx.Record)]
        return effects

    def join(self) -> None:
        self.handle(ev.AgentJoined(self.agent.hello(), 1))

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
        event = ev.Submitted(f"wl_{self.count}_{len(self.records)}", "t", spec, {}, key)
        self.handle(event)
        registry = self.machine.state.registry
        found = registry.workloads.get(event.workload_id)
        return found or registry.workloads[registry.earlier_submission(event, self.context) or ""]

    def place(self) -> list[StartTask]:
        self.handle(ev.PlacementDue())
        return [message for message in self.sent if isinstance(message, StartTask)]

    def run(self, workload: Workload) -> None:
        self.place()
        for task in workload.placement:
            self.handle(ev.TaskStartSeen(TaskKey(workload.id, workload.attempt, task.rank)))

    def end(
        self, workload: Workload, rank: int = 0, reason: ExitReason = ExitReason.EXITED, code: int | None = 0
    ) -> None:
        key = TaskKey(workload.id, workload.attempt, rank)
        self.handle(ev.TaskEndSeen("agent", TaskEnded(key=key, reason=reason, at=self.now, exit_code=code)))

    def stops_sent(self) -> set[int]:
        return {message.key.rank for message in self.sent if isinstance(message, StopTask)}

    def later(self, **delta: float) -> None:
        self.now += timedelta(**delta)

    @property
    def gpus_held(self) -> int:
        running = self.machine.state.scheduler.running.values()
        return sum(len(slot.devices) for held in running for slot in held.slots)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.join()
    return made
