"""An agent without processes: speaks the real protocol, survives the hub's crashes, and remembers its orders."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from harch.execution.lease import TaskLease
from harch.execution.protocol import (
    PROTOCOL_VERSION,
    AgentHeartbeat,
    AgentHello,
    AgentMessage,
    ExtendLease,
    Forget,
    HubMessage,
    KnownTask,
    StartTask,
    StopTask,
    TaskEnded,
    TaskKey,
    TaskSpec,
    TaskStarted,
)
from harch.testing.clock import START
from harch.workloads.lifecycle import ExitReason


class SimAgent:
    """What a node does, as far as its hub can tell. `starts` counts how often each execution really began.

    Its boot clock reads `boot_offset_s` at `harch.testing.clock.START` and runs `boot_rate` times as fast as the world.
    Its tasks are the worst that a lease can meet: they ignore TERM and run up to the very deadline.
    """

    def __init__(
        self,
        agent_id: str,
        country: str,
        node_ids: tuple[str, ...] = (),
        process_slots: int = 64,
        *,
        boot_offset_s: float = 0.0,
        boot_rate: float = 1.0,
        features: dict[str, str] | None = None,
    ) -> None:
        self.features = features if features is not None else {"environments": "simulated", "images": "simulated"}
        self.agent_id, self.country, self.node_ids, self.process_slots = agent_id, country, node_ids, process_slots
        self._boot_offset_s, self._boot_rate = boot_offset_s, boot_rate
        self._now = START
        self.running: dict[TaskKey, TaskSpec] = {}
        self.leases: dict[TaskKey, TaskLease] = {}  # of those that run under one
        self.ended: dict[TaskKey, TaskEnded] = {}  # until the hub says `Forget`
        self.starts: Counter[TaskKey] = Counter()
        self.outbox: list[AgentMessage] = []

    def boot_s(self) -> float:
        """Its own clock, at the latest moment that it has heard of."""
        return self._boot_offset_s + self._boot_rate * (self._now - START).total_seconds()

    def tick(self, now: datetime) -> None:
        """Time has passed: what its lease no longer covers ends here, whether or not a hub is there to see it."""
        self._now = max(self._now, now)
        for key, lease in list(self.leases.items()):
            if lease.must_stop(self.boot_s()) and lease.must_die(self.boot_s()):
                self.end(key, ExitReason.LEASE_ENDED, now=now)

    def heartbeat(self, now: datetime) -> AgentHeartbeat:
        self.tick(now)
        return AgentHeartbeat(self.boot_s())

    def hello(self, *, now: datetime | None = None) -> AgentHello:
        """The first message of every connection; ends that the hub has not confirmed follow it.

        Without `now`, its boot clock is read as of the last call: too early, which a hub must bear anyway.
        """
        if now is not None:
            self.tick(now)
        known = [KnownTask(key=key, running=True) for key in self.running]
        known += [KnownTask(key=key, running=False) for key in self.ended]
        self.outbox = list(self.ended.values())
        return AgentHello(
            version=PROTOCOL_VERSION,
            agent_id=self.agent_id,
            country=self.country,
            node_ids=self.node_ids,
            process_slots=self.process_slots,
            address="127.0.0.1",
            gang_ports=(20000, 20099),
            features=self.features,
            tasks=tuple(known),
            boot_s=self.boot_s(),
        )

    def receive(self, message: HubMessage, *, now: datetime) -> None:
        self.tick(now)
        match message:
            case StartTask(task):
                self._start(task, now)
            case ExtendLease(leases):
                for key, until_s in leases:
                    if key in self.leases:
                        self.leases[key].extend(until_s)
            case StopTask(key, _, reason):
                if key in self.running:
                    self.end(key, reason, now=now)
                elif key not in self.ended:
                    self.outbox.append(TaskEnded(key=key, reason=ExitReason.LOST, at=now))
            case Forget(key):
                self.ended.pop(key, None)
            case _:
                pass

    def _start(self, task: TaskSpec, now: datetime) -> None:
        if task.key in self.running or task.key in self.ended:
            return
        lease = None if task.lease_until_s is None else TaskLease(task.lease_until_s, task.stop_grace_s)
        if lease is not None and lease.must_stop(self.boot_s()):
            self.ended[task.key] = TaskEnded(key=task.key, reason=ExitReason.LEASE_ENDED, at=now)
            self.outbox.append(self.ended[task.key])
            return
        self.starts[task.key] += 1
        self.running[task.key] = task
        if lease is not None:
            self.leases[task.key] = lease
        self.outbox.append(TaskStarted(key=task.key, at=now))

    def end(self, key: TaskKey, reason: ExitReason, *, now: datetime, exit_code: int | None = None) -> None:
        del self.running[key]
        self.leases.pop(key, None)
        self.ended[key] = TaskEnded(key=key, reason=reason, at=now, exit_code=exit_code)
        self.outbox.append(self.ended[key])

    def take_outbox(self) -> list[AgentMessage]:
        messages, self.outbox = self.outbox, []
        return messages
