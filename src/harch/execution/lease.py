"""How long may a task run that another hub owns? One deadline, and who may still move it. Standard library only.

All times are seconds of the node's boot clock, which also counts while the machine sleeps. The owner of the work may
start it elsewhere after the deadline, so the deadline is obeyed by whoever runs the task, with nobody's help.
"""

from __future__ import annotations


class TaskLease:
    """TERM `grace_s` before the deadline, so that the task can save its state; KILL at the deadline."""

    def __init__(self, until_s: float, grace_s: float) -> None:
        self.until_s, self.grace_s = until_s, grace_s
        self.stopping = False

    @property
    def stop_at_s(self) -> float:
        return self.until_s - self.grace_s

    def extend(self, until_s: float) -> None:
        """Never shortens, and is in vain once the task was told to stop: it has saved its state and wound up."""
        if not self.stopping and self.until_s < until_s < float("inf"):
            self.until_s = until_s

    def must_stop(self, now_s: float) -> bool:
        """Once true, true for good: who asks tells the task."""
        self.stopping = self.stopping or now_s >= self.stop_at_s
        return self.stopping

    def must_die(self, now_s: float) -> bool:
        return now_s >= self.until_s
