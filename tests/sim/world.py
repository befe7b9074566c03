"""A hub with the real machine and the real store, agents without processes, and a hand that pulls the plug.

The plug is pulled at a store boundary: before a commit (the transaction is gone), after it but before anything was
sent (on disk, but nobody knows), or after some of the messages went out.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harch.base.errors import HarchError
from harch.execution.protocol import TaskEnded, TaskStarted
from harch.fleet.model import Fleet
from harch.hub.audit import table
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store import rows
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.placement.policy.shapes import GPU_MILLI
from harch.sovereignty.audit.chain import link
from harch.testing.agents import SimAgent
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Resources, RestartPolicy, WorkloadSpec


class Crash(Exception):
    """The hub process is gone."""


class World:
    def __init__(self, fleet: Fleet, folder: Path, seed: int, crash_at: int) -> None:
        self.fleet, self.hub = fleet, fleet.hubs[0]
        self.random = random.Random(seed)
        self.database = Database(folder / "hub.db")
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        half = len(self.hub.nodes) // 2
        nodes = [node.id for node in self.hub.nodes]
        self.agents = {
            agent.agent_id: agent
            for agent in (
                SimAgent("one", self.hub.country, tuple(nodes[:half])),
                SimAgent("two", self.hub.country, tuple(nodes[half:])),
            )
        }
        self.connected: set[str] = set()
        self.acknowledged: set[str] = set()
        self.boundaries = 0
        self.crash_at = crash_at
        self.crashes = 0
        self.sessions = 0
        self.submitted = 0
        self.story: list[str] = []
        self.start_hub()

    # The hub process

    def start_hub(self) -> None:
        self.machine = JobMachine(self.fleet, self.hub)
        workloads = self.database.workloads_to_restore(self.now - timedelta(minutes=10))
        effects = self.machine.restore(
            workloads, self.database.idempotency_keys(self.now), context=EventContext(now=self.now)
        )
        self.seq = self.database.last_event()
        self.audit_head = table.head(self.database)
        self.connected = set()
        self.carry_out(effects)

    def handle(self, event: ev.Event) -> None:
        self.carry_out(self.machine.apply(event, EventContext(now=self.now)))

    def carry_out(self, effects: list[fx.Effect]) -> None:
        statements: list[Statement] = []
        sends: list[fx.Send] = []
        for effect in effects:
            match effect:
                case fx.Save(workload):
                    statements.append(rows.save_workload(workload))
                case fx.Record():
                    self.seq += 1
                    event = EventRecord(
                        seq=self.seq,
                        at=self.now,
                        kind=effect.kind,
                        subject=effect.subject,
                        tenant=effect.tenant,
                        message=effect.message,
                        data=effect.data,
                    )
                    statements.append(rows.save_event(event))
                case fx.Audit(draft):
                    linked = link(self.audit_head, draft, hub=self.hub.id, at=self.now.isoformat())
                    self.audit_head = linked.head
                    statements += table.save(linked)
                case fx.Send():
                    sends.append(effect)
        self.boundaries += 1
        dying = self.boundaries == self.crash_at
        how = self.random.choice(["before", "after", "halfway"]) if dying else ""
        self.database.begin()
        self.database.execute(statements)
        if how == "before":
            self.database.rollback()
            raise Crash(how)
        self.database.commit()
        if how == "after":
            raise Crash(how)
        for number, send in enumerate(sends):
            if how == "halfway" and number >= len(sends) // 2:
                break
            if send.agent_id in self.connected:
                self.agents[send.agent_id].receive(send.message, now=self.now)
        if dying:
            raise Crash(how)

    def survive(self, step: str) -> None:
        """Runs one step; if the hub dies in it, starts it again. Then checks what must always hold."""
        self.story.append(step)
        try:
            getattr(self, step)()
        except Crash as crash:
            self.crashes += 1
            self.story.append(f"CRASH {crash} at boundary {self.boundaries}")
            self.start_hub()
        self.check()

    # Steps

    def submit(self) -> None:
        self.submitted += 1
        workload_id = f"wl_{self.submitted:05d}"
        spec = WorkloadSpec(
            name=f"job-{self.submitted}",
            command=("true",),
            tasks=self.random.choice([1, 1, 1, 2, 3]),
            resources=Resources(gpus=self.random.choice([0, 1, 2, 4, 8])),
            restart=self.random.choice(list(RestartPolicy)),
        )
        try:
            self.handle(ev.Submitted(workload_id, "t", spec))
        except HarchError as error:
            if error.code != "E0303":
                raise
            return
        self.acknowledged.add(workload_id)

    def place(self) -> None:
        self.handle(ev.PlacementDue())

    def connect(self) -> None:
        for agent_id in sorted(set(self.agents) - self.connected):
            self.sessions += 1
            hello = self.agents[agent_id].hello()
            self.connected.add(agent_id)
            self.handle(ev.AgentJoined(hello, self.sessions))

    def cut(self) -> None:
        if self.connected:
            agent_id = self.random.choice(sorted(self.connected))
            self.connected.discard(agent_id)
            session = self.machine.state.agents.agents[agent_id].session
            self.handle(ev.AgentLeft(agent_id, session, "cut"))

    def work(self) -> None:
        """Some running tasks end."""
        for agent in self.agents.values():
            for key in list(agent.running):
                if self.random.random() < 0.4:
                    reason = self.random.choices([ExitReason.EXITED, ExitReason.LOST], [9, 1])[0]
                    agent.end(key, reason, now=self.now, exit_code=self.random.choice([0, 0, 0, 1]))

    def report(self) -> None:
        for agent_id in sorted(self.connected):
            for message in self.agents[agent_id].take_outbox():
                if isinstance(message, TaskStarted):
                    self.handle(ev.TaskStartSeen(message.key))
                elif isinstance(message, TaskEnded):
                    self.handle(ev.TaskEndSeen(agent_id, message))

    def stop(self) -> None:
        waiting = [w for w in self.machine.state.registry.workloads.values() if not w.state.is_final]
        if waiting:
            self.handle(ev.StopRequested(self.random.choice(waiting).id, "asked"))

    def time(self) -> None:
        self.now += timedelta(seconds=self.random.choice([1, 30, 400]))

    STEPS = ("submit", "submit", "place", "connect", "work", "report", "report", "stop", "cut", "time")

    def drain(self) -> None:
        """Everything feasible must end."""
        for _ in range(400):
            for step in ("connect", "report", "place", "report"):
                self.survive(step)
            for agent in self.agents.values():
                for key in list(agent.running):
                    agent.end(key, ExitReason.EXITED, now=self.now, exit_code=0)
            if (
                not self.machine.state.scheduler.queue
                and not self.machine.state.scheduler.running
                and not any(agent.ended or agent.running for agent in self.agents.values())
            ):
                return
        raise AssertionError(f"work is left over: {self.story[-20:]}")

    # What must always hold

    def check(self) -> None:
        running: dict[str, int] = {}
        gpus: dict[str, str] = {}
        for agent in self.agents.values():
            for key, task in agent.running.items():
                assert agent.starts[key] == 1, f"{key} was started twice"
                assert running.setdefault(key.workload_id, key.attempt) == key.attempt, f"{key} runs in two attempts"
                for gpu in task.gpu_ids:
                    assert gpus.setdefault(gpu, key.workload_id) == key.workload_id, f"{gpu} serves two workloads"
        scheduler = self.machine.state.scheduler
        held = {
            (task.node_id, gpu)
            for workload in self.machine.state.registry.workloads.values()
            if workload.is_placed
            for task in workload.placement
            for gpu in task.gpu_ids
        }
        booked = {
            (self.hub.nodes[slot.row].id, self.hub.nodes[slot.row].gpus[device].id)
            for running in scheduler.running.values()
            for slot in running.slots
            for device in slot.devices
        }
        assert held == booked, "the book and the workloads disagree"
        free = int((scheduler.room.arrays.gpu_milli_free == GPU_MILLI).sum())
        assert free + len(held) == self.hub.gpu_count
        assert int(scheduler.room.arrays.gpu_milli_free_sum.sum()) == free * GPU_MILLI
