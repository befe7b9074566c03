"""An agent without processes: speaks the real protocol, survives the hub's crashes, and remembers what it was told."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from harch.execution.protocol import (
    PROTOCOL_VERSION,
    AgentMessage,
    Forget,
    Hello,
    HubMessage,
    KnownTask,
    StartTask,
    StopTask,
    TaskEnded,
    TaskKey,
    TaskSpec,
    TaskStarted,
)
from harch.workloads.lifecycle import ExitReason


class SimAgent:
    """What a node does, as far as its hub can tell. `starts` counts how often each execution really began."""

    def __init__(self, agent_id: str, country: str, node_ids: tuple[str, ...] = (), process_slots: int = 64) -> None:
        self.agent_id, self.country, self.node_ids, self.process_slots = agent_id, country, node_ids, process_slots
        self.running: dict[TaskKey, TaskSpec] = {}
        self.ended: dict[TaskKey, TaskEnded] = {}  # until the hub says `Forget`
        self.starts: Counter[TaskKey] = Counter()
        self.outbox: list[AgentMessage] = []

    def hello(self) -> Hello:
        """The first message of every connection; ends that the hub has not confirmed follow it."""
        known = [KnownTask(key=key, running=True) for key in self.running]
        known += [KnownTask(key=key, running=False) for key in self.ended]
        self.outbox = list(self.ended.values())
        return Hello(
            version=PROTOCOL_VERSION,
            agent_id=self.agent_id,
            country=self.country,
            node_ids=self.node_ids,
            process_slots=self.process_slots,
            address="127.0.0.1",
            gang_ports=(20000, 20099),
            features={},
            tasks=tuple(known),
        )

    def receive(self, message: HubMessage, *, now: datetime) -> None:
        match message:
            case StartTask(task):
                if task.key in self.running or task.key in self.ended:
                    return
                self.starts[task.key] += 1
                self.running[task.key] = task
                self.outbox.append(TaskStarted(key=task.key, at=now))
            case StopTask(key, _, reason):
                if key in self.running:
                    self.end(key, reason, now=now)
                elif key not in self.ended:
                    self.outbox.append(TaskEnded(key=key, reason=ExitReason.LOST, at=now))
            case Forget(key):
                self.ended.pop(key, None)
            case _:
                pass

    def end(self, key: TaskKey, reason: ExitReason, *, now: datetime, exit_code: int | None = None) -> None:
        del self.running[key]
        self.ended[key] = TaskEnded(key=key, reason=reason, at=now, exit_code=exit_code)
        self.outbox.append(self.ended[key])

    def take_outbox(self) -> list[AgentMessage]:
        messages, self.outbox = self.outbox, []
        return messages
