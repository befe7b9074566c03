"""How does a supervisor keep the lease of its task, when agent, hub and network may all be gone? By this and its clock.

Standard library only. The first deadline is in `spec.json`. The agent puts later ones into the file `lease`, which it
replaces as a whole; no file, or one that cannot be read, changes nothing, so that every failure ends in a stop.
"""

from __future__ import annotations

import _thread
import time

from harch.execution import kernel
from harch.execution.lease import TaskLease

TYPE_CHECKING = False  # spares the import of `typing` at each start
if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_FILE = "lease"
LOOK_S = 0.5  # also the longest that a task goes on after its machine slept through the deadline: poll() slept with it
LEAD_S = 0.05  # everything happens so much earlier, because a KILL takes a moment and the deadline is not ours to miss
KILL_AGAIN_S = 0.02


class LeaseWatch:
    """The lease of the task in the current folder; without `until_s`, it has none and nothing is ever due."""

    def __init__(self, until_s: float | None, grace_s: float, *, boot_s: Callable[[], float] = kernel.boot_s) -> None:
        self._lease = None if until_s is None else TaskLease(until_s - LEAD_S, grace_s)
        self._boot_s = boot_s
        self._look_at_s = 0.0

    def stop_falls_due(self) -> bool:
        """True once: the task must be told to stop now. The file is read again before anything is said."""
        lease = self._lease
        if lease is None or lease.stopping:
            return False
        now_s = self._boot_s()
        if now_s >= min(self._look_at_s, lease.stop_at_s):
            self._look_at_s = now_s + LOOK_S
            lease.extend(later_deadline(kernel.read_text(LEASE_FILE)) - LEAD_S)
        return lease.must_stop(self._boot_s())  # reading may have taken long

    def must_die(self) -> bool:
        """From the deadline on, always true: what survives a KILL is killed again."""
        return self._lease is not None and self._lease.stopping and self._lease.must_die(self._boot_s())

    def guard(self, kill: Callable[[], None]) -> None:
        """Calls `kill` at the deadline from a thread of its own, again and again, as long as this process lives.

        The supervisor writes logs and reads files, and may hang in a disk that the same cut has taken away.
        """
        if self._lease is not None:
            _thread.start_new_thread(self._guard, (self._lease, kill))

    def left_s(self) -> float:
        """Until it must die."""
        return 0.0 if self._lease is None else max(0.0, self._lease.until_s - self._boot_s())

    def wait_s(self) -> float | None:
        """How long the supervisor may sleep; None: forever."""
        if self._lease is None:
            return None
        if not self._lease.stopping:
            return min(LOOK_S, max(0.0, self._lease.stop_at_s - self._boot_s()))
        return min(LOOK_S, self.left_s() or KILL_AGAIN_S)

    def _guard(self, lease: TaskLease, kill: Callable[[], None]) -> None:
        while True:
            left_s = lease.until_s + LEAD_S - self._boot_s()  # at the very deadline: the supervisor was to be earlier
            if left_s <= 0:
                kill()
            time.sleep(min(left_s, LOOK_S) if left_s > 0 else KILL_AGAIN_S)


def later_deadline(text: str) -> float:
    """What the file says; nonsense is a deadline that is over and so extends nothing."""
    try:
        return float(text)
    except ValueError:
        return 0.0
