"""What is being fetched or built for work that has not started? As its agents last said; nothing of it is stored."""

from __future__ import annotations

from harch.execution.protocol import TaskKey, TaskPreparing
from harch.workloads.lifecycle import State, Workload

TASKS_MAX = 10_000  # the newest; whoever is forgotten is told of again within seconds
DETAIL_LENGTH_MAX = 200


class Preparations:
    """By task. What has started or ended is dropped when that is reported."""

    def __init__(self) -> None:
        self._reported: dict[TaskKey, str] = {}

    def note(self, message: TaskPreparing) -> None:
        self._reported.pop(message.key, None)
        self._reported[message.key] = ": ".join(part for part in (message.step, message.detail) if part)[
            :DETAIL_LENGTH_MAX
        ]
        while len(self._reported) > TASKS_MAX:
            del self._reported[next(iter(self._reported))]

    def drop(self, key: TaskKey) -> None:
        self._reported.pop(key, None)

    def of(self, workload: Workload) -> str:
        """Of its lowest rank that is still being prepared; empty if none is."""
        if workload.state not in (State.SCHEDULED, State.PAUSED):
            return ""
        for task in workload.placement:
            reported = self._reported.get(TaskKey(workload.id, workload.attempt, task.rank))
            if reported and task.rank not in workload.ranks_running:
                return reported
        return ""
