"""What can run a task? The interface between the agent and its engines."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from harch.execution.protocol import KnownTask, TaskEnded, TaskKey, TaskSpec
from harch.workloads.lifecycle import ExitReason


class EngineEvents(Protocol):
    """What an engine tells the agent; called from the event loop, `started` before `ended`, `ended` exactly once."""

    def task_started(self, key: TaskKey, at: datetime) -> None: ...

    def task_ended(self, end: TaskEnded) -> None: ...


class Engine(Protocol):
    """Runs tasks. Every refusal and every failure is told as `task_ended`; no method raises for a bad task.

    Limit: a key that is not running is ignored by all but `start` and `forget`; the agent answers for those.
    """

    def start(self, task: TaskSpec) -> None: ...

    def stop(self, key: TaskKey, *, grace_s: float, reason: ExitReason, scrub: bool = False) -> None:
        """`scrub`: what it wrote to folders of the agent is deleted before its end is told."""

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
