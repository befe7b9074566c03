"""What does the agent answer, and what can run a task?

Its core (messages in, messages and engine calls out, no I/O of its own) and the interface to its engines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import REGISTRY, HarchError
from harch.execution.admission import Premises, leaves_what_may_not_rest, refusal
from harch.execution.lease import TaskLease
from harch.execution.protocol import (
    PROTOCOL_VERSION,
    AgentHeartbeat,
    AgentHello,
    AgentMessage,
    AgentRefused,
    ExtendLease,
    FilesAnswer,
    Forget,
    HubMessage,
    KnownTask,
    PauseTask,
    PlaceFiles,
    ReadTaskLog,
    ResumeTask,
    SnapshotFiles,
    StartTask,
    StopTask,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    TaskPreparing,
    TaskSpec,
    TaskStarted,
)
from harch.execution.task_spans import TaskSpans
from harch.workloads.lifecycle import ExitReason


class EngineEvents(Protocol):
    """What an engine tells the agent; called from the event loop: `preparing` at any time before `started`, that before
    `ended`, and `ended` exactly once."""

    def task_preparing(self, message: TaskPreparing) -> None: ...

    def task_started(self, key: TaskKey, at: datetime) -> None: ...

    def task_ended(self, end: TaskEnded) -> None: ...


class TaskEngine(Protocol):
    """Runs tasks. Every refusal and every failure is reported as `task_ended`; no method raises for a bad task.

    Limit: a key that is not running is ignored by all but `start` and `forget`; the agent answers for those.
    """

    def start(self, task: TaskSpec) -> None: ...

    def stop(self, key: TaskKey, *, grace_s: float, reason: ExitReason, scrub: bool = False) -> None:
        """`scrub`: what it wrote to folders of the agent is deleted before its end is reported."""

    def pause(self, key: TaskKey) -> None: ...

    def resume(self, key: TaskKey) -> None: ...

    def extend_lease(self, key: TaskKey, until_s: float) -> None:
        """See `lease.Lease.extend` for what it cannot do."""

    def forget(self, key: TaskKey) -> None:
        """The end is safe at the hub: drop all but the log."""

    def running(self) -> list[KnownTask]: ...

    def is_running(self, key: TaskKey) -> bool: ...

    def close(self) -> None:
        """Stops watching. What runs in processes of its own goes on."""


# What does the agent answer? Its core: messages in, messages and engine calls out. It does no I/O of its own.
#
# Rules: an execution is handed to an engine at most once. An end is repeated after each `Hello` until the hub says
# `Forget`. What an agent refuses ends as `not_started`, with the reason; what it may do, but whose lease is over, as
# `lease_ended`, so that its owner gets it back instead of seeing it fail.


log = logging.getLogger(__name__)


class ProcessEngine(TaskEngine, Protocol):
    """An engine whose tasks have output and files. Answers about files come later, on the event loop."""

    def read_log(self, request: ReadTaskLog) -> TaskLogChunk: ...

    def snapshot_files(self, request: SnapshotFiles, answer: Callable[[FilesAnswer], None]) -> None: ...

    def place_files(self, request: PlaceFiles, answer: Callable[[FilesAnswer], None]) -> None: ...


class Agent:
    """One agent. `use` gives it its engines, `wake` is called when something waits in the outbox."""

    def __init__(self, premises: Premises, clock: Clock, spans: TaskSpans | None = None) -> None:
        self._premises, self._clock, self._spans = premises, clock, spans
        self._local: ProcessEngine | None = None
        self._engines: tuple[TaskEngine, ...] = ()
        self._ends: dict[TaskKey, TaskEnded] = {}  # reported, not yet acknowledged
        self._outbox: list[AgentMessage] = []
        self._preparing: dict[TaskKey, TaskPreparing] = {}  # the latest of each, not yet told
        self._connections = 0
        self._stopping = False
        self.wake: Callable[[], None] = lambda: None

    def use(self, local: ProcessEngine, modelled: TaskEngine) -> None:
        self._local, self._engines = local, (local, modelled)

    def hello(
        self, *, agent_id: str, process_slots: int, address: str, gang_ports: tuple[int, int], features: dict[str, str]
    ) -> AgentHello:
        ended = [KnownTask(key=key, running=False) for key in self._ends]
        return AgentHello(
            version=PROTOCOL_VERSION,
            agent_id=agent_id,
            country=self._premises.country,
            node_ids=tuple(sorted(self._premises.node_ids)),
            process_slots=process_slots,
            address=address,
            gang_ports=gang_ports,
            features=features,
            tasks=(*(task for engine in self._engines for task in engine.running()), *ended),
            boot_s=self._clock.boot_s(),
        )

    def heartbeat(self) -> AgentHeartbeat:
        return AgentHeartbeat(self._clock.boot_s())

    def connected(self) -> None:
        """A new connection: what was meant for the old one is void, and every end that is not safe is reported
        again."""
        self._outbox = list(self._ends.values())
        self._connections += 1
        self.wake()

    def take_outbox(self, count_max: int) -> list[AgentMessage]:
        taken, self._outbox = self._outbox[:count_max], self._outbox[count_max:]
        if not self._outbox:
            taken += self._preparing.values()
            self._preparing.clear()
        return taken

    @property
    def is_idle(self) -> bool:
        """Nothing runs and every end is safe at the hub."""
        return not self._ends and not any(engine.running() for engine in self._engines)

    @property
    def is_quiet(self) -> bool:
        return not any(engine.running() for engine in self._engines)

    def stop_everything(self, *, grace_s: float) -> None:
        """An orderly end: takes no new work and stops what runs."""
        self._stopping = True
        for engine in self._engines:
            for task in engine.running():
                engine.stop(task.key, grace_s=grace_s, reason=ExitReason.AGENT_SHUTDOWN)

    # What the hub says

    def handle(self, message: HubMessage) -> None:
        match message:
            case StartTask(task):
                self._start(task)
            case StopTask():
                self._stop(message)
            case PauseTask(key):
                for engine in self._engines:
                    engine.pause(key)
            case ResumeTask(key):
                for engine in self._engines:
                    engine.resume(key)
            case ExtendLease(leases):
                for key, until_s in leases:
                    if owner := self._owner(key):
                        owner.extend_lease(key, until_s)
            case Forget(key):
                if self._ends.pop(key, None) is not None:
                    for engine in self._engines:
                        engine.forget(key)
            case ReadTaskLog():
                self._read_log(message)
            case SnapshotFiles() | PlaceFiles():
                self._handle_files(message)
            case AgentRefused(code, text):
                raise HarchError(code if code in REGISTRY else "E1001", f"the hub refuses this agent: {text}")

    def _start(self, task: TaskSpec) -> None:
        if self._stopping or self._owner(task.key) is not None:
            return  # the hub repeats what it does not find in the next Hello
        if task.key in self._ends:
            self._say(self._ends[task.key])
        elif reason := refusal(task, self._premises):
            log.error("refused task %s attempt %s: %s", task.key.workload_id, task.key.attempt, reason)
            self._end_unstarted(task.key, ExitReason.NOT_STARTED, reason)
        elif self._lease_is_over(task):
            self._end_unstarted(task.key, ExitReason.LEASE_ENDED, "its lease ended before it started")
        else:
            if self._spans is not None:
                self._spans.ordered(task)
            if not task.scrub_after and leaves_what_may_not_rest(task, self._premises):
                task = replace(task, scrub_after=True)  # the hub sees it otherwise, and the stricter one is obeyed
            self._engines[0 if task.command else 1].start(task)

    def _stop(self, order: StopTask) -> None:
        key = order.key
        engine = self._owner(key)
        if engine is not None:
            engine.stop(key, grace_s=order.grace_s, reason=order.reason, scrub=order.scrub)
        elif key in self._ends:
            self._say(self._ends[key])
        else:
            self._end_unstarted(key, ExitReason.LOST, "this agent does not know the task")

    def _lease_is_over(self, task: TaskSpec) -> bool:
        """Also when nothing but its grace is left: it would be told to stop in the moment of its start."""
        until_s = task.lease_until_s
        return until_s is not None and TaskLease(until_s, task.stop_grace_s).must_stop(self._clock.boot_s())

    def _end_unstarted(self, key: TaskKey, reason: ExitReason, detail: str) -> None:
        self.task_ended(TaskEnded(key=key, reason=reason, at=self._clock.now(), detail=detail))

    def _read_log(self, request: ReadTaskLog) -> None:
        if self._local is not None:
            self._say(self._local.read_log(request))

    def _handle_files(self, request: SnapshotFiles | PlaceFiles) -> None:
        connection = self._connections

        def answer(answered: FilesAnswer) -> None:
            if connection == self._connections:  # on another one the number may be that of another question
                self._say(answered)

        if self._local is not None and isinstance(request, SnapshotFiles):
            self._local.snapshot_files(request, answer)
        elif self._local is not None and isinstance(request, PlaceFiles):
            self._local.place_files(request, answer)

    def _owner(self, key: TaskKey) -> TaskEngine | None:
        return next((engine for engine in self._engines if engine.is_running(key)), None)

    # What the engines say

    def task_preparing(self, message: TaskPreparing) -> None:
        self._preparing[message.key] = message
        self.wake()

    def task_started(self, key: TaskKey, at: datetime) -> None:
        self._preparing.pop(key, None)
        self._say(TaskStarted(key=key, at=at))

    def task_ended(self, end: TaskEnded) -> None:
        self._preparing.pop(end.key, None)
        self._ends[end.key] = end
        self._say(end)

    def _say(self, message: AgentMessage) -> None:
        if self._spans is not None:
            self._spans.record(message)
        self._outbox.append(message)
        self.wake()
