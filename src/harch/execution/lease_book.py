"""Which of many leases ends next? For tasks without a process, whose leases the agent itself must keep."""

from __future__ import annotations

import heapq

from harch.execution.lease import Lease
from harch.execution.protocol import TaskKey

STALE_MAX = 1_000  # heap items of tasks that are gone; beyond so many more than there are leases, it is rebuilt


class LeaseBook:
    """An extension is only written down; it is noticed when the former moment comes, so that renewing costs nothing."""

    def __init__(self) -> None:
        self._leases: dict[TaskKey, Lease] = {}
        self._heap: list[tuple[float, int, TaskKey]] = []
        self._turns = 0

    def add(self, key: TaskKey, lease: Lease) -> None:
        self._leases[key] = lease
        self._push(key, lease)
        if len(self._heap) > 2 * len(self._leases) + STALE_MAX:
            self._heap.clear()
            for name, held in self._leases.items():
                self._push(name, held)

    def extend(self, key: TaskKey, until_s: float) -> None:
        if key in self._leases:
            self._leases[key].extend(until_s)

    def drop(self, key: TaskKey) -> None:
        self._leases.pop(key, None)

    def take_due(self, now_s: float) -> list[TaskKey]:
        """The tasks that must stop now, each told once."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            key = heapq.heappop(self._heap)[2]
            lease = self._leases.get(key)
            if lease is None:
                continue
            if lease.must_stop(now_s):
                del self._leases[key]
                due.append(key)
            else:
                self._push(key, lease)
        return due

    def wait_s(self, now_s: float) -> float | None:
        """Until the next lease may have ended; None: there is none."""
        return max(0.0, self._heap[0][0] - now_s) if self._heap else None

    def _push(self, key: TaskKey, lease: Lease) -> None:
        self._turns += 1  # keys have no order of their own
        heapq.heappush(self._heap, (lease.stop_at_s, self._turns, key))
