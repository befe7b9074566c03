"""When does a batch run, and with whom? A queue per model, without I/O: requests and the time come in, batches go out.

A batch runs as soon as one of these holds: a preferred size is there, the oldest request has waited `delay_ms_max`, or
a deadline would be missed by waiting longer. Lower numbers are served first; within a priority, first come, first
served. Where urgent work leaves no room, the rest waits until its deadline and is then given back as late, never run.
"""

# harch: pure

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.think.settings import PRIORITIES, PRIORITY_DEFAULT, BatchingSettings

REQUESTS_MAX = 65_536  # rows are limited by the settings; this bounds requests of few rows
RUN_S_MIN = 0.0005  # no driver is quicker: who is woken at a deadline is late

Payload = TypeVar("Payload")


class QueuedRequest(Struct, Generic[Payload], frozen=True, kw_only=True):
    """Rows that belong together. `deadline_s` is on the same clock as `now_s`."""

    payload: Payload
    rows: int
    priority: int
    arrived_s: float
    deadline_s: float


class Batcher(Generic[Payload]):
    """The queue of one model. Every request that was taken leaves once: in a batch, or as late."""

    def __init__(self, settings: BatchingSettings) -> None:
        self._settings = settings
        self._queues: tuple[deque[QueuedRequest[Payload]], ...] = tuple(deque() for _ in range(PRIORITIES))
        self._deadline_s_first = math.inf  # no deadline in the queue is before it; may be too early, never too late
        self.rows_waiting = 0
        self.run_s_expected = RUN_S_MIN  # how long a batch takes; a deadline is served so much earlier

    @property
    def requests_waiting(self) -> int:
        return sum(len(queue) for queue in self._queues)

    def offer(
        self,
        payload: Payload,
        rows: int,
        *,
        now_s: float,
        priority: int = PRIORITY_DEFAULT,
        deadline_s: float | None = None,
    ) -> Rejection | None:
        """Takes a request, or says why not; what was refused is not kept."""
        if not 0 <= priority < PRIORITIES:
            return Rejection(
                "request", "priority", f"{priority} is not a priority", f"use 0 (first) to {PRIORITIES - 1} (last)"
            )
        if not 1 <= rows <= self._settings.rows_max:
            return Rejection(
                "request", "rows", f"{rows} rows; a batch holds 1 to {self._settings.rows_max}", "split the request"
            )
        if self.rows_waiting + rows > self._settings.queue_rows_max or self.requests_waiting >= REQUESTS_MAX:
            return Rejection(
                "queue",
                "full",
                f"{self.rows_waiting} of {self._settings.queue_rows_max} rows wait in {self.requests_waiting} requests",
                "send less, or add a worker",
            )
        timeout_s = self._settings.timeout_ms / 1000
        deadline = now_s + timeout_s if deadline_s is None else deadline_s
        if deadline <= now_s:
            return Rejection("request", "deadline", f"passed {now_s - deadline:.3f} s ago", "send it earlier")
        request = QueuedRequest(payload=payload, rows=rows, priority=priority, arrived_s=now_s, deadline_s=deadline)
        self._queues[priority].append(request)
        self._deadline_s_first = min(self._deadline_s_first, deadline)
        self.rows_waiting += rows
        return None

    def take_late(self, now_s: float) -> list[QueuedRequest[Payload]]:
        """Those whose deadline has passed, out of the queue. Whoever drives the batcher owes each of them an answer."""
        late: list[QueuedRequest[Payload]] = []
        if self._first_deadline_s(now_s) > now_s:
            return late
        for queue in self._queues:
            late += [request for request in queue if request.deadline_s <= now_s]
            kept = [request for request in queue if request.deadline_s > now_s]
            queue.clear()
            queue.extend(kept)
        self.rows_waiting -= sum(request.rows for request in late)
        return late

    def take_batch(self, now_s: float) -> list[QueuedRequest[Payload]]:
        """The next batch, or nothing while it is better to wait. Late requests must have been taken out before."""
        limit = self._rows_due(now_s)
        batch: list[QueuedRequest[Payload]] = []
        room = limit
        for queue in self._queues:
            # Only from the head, so that order holds; a lower priority may fill room that the higher cannot use.
            while queue and queue[0].rows <= room:
                request = queue.popleft()
                if request.deadline_s <= now_s:
                    raise InvariantBroken("a late request would run", request.deadline_s, now_s)
                batch.append(request)
                room -= request.rows
        self.rows_waiting -= limit - room
        return batch

    def wake_s(self, now_s: float) -> float | None:
        """When to look again without a new request: now if a batch is due, None if nothing waits."""
        if self.rows_waiting == 0:
            return None
        if self._rows_due(now_s):
            return now_s
        first = min(queue[0].arrived_s for queue in self._queues if queue)
        urgent = self._first_deadline_s(math.inf) - self._ahead_s
        return max(now_s, min(first + self._settings.delay_ms_max / 1000, urgent))

    def _rows_due(self, now_s: float) -> int:
        """How many rows may run now; 0 while waiting is better."""
        if self.rows_waiting == 0:
            return 0
        if self.rows_waiting >= self._settings.rows_max or self._must_run(now_s):
            return self._settings.rows_max
        # The largest preferred size that is there; requests that overlap it come with the next batch.
        sizes = [size for size in self._settings.preferred_rows if size <= self.rows_waiting]
        head = max((queue[0].rows for queue in self._queues if queue), default=0)
        return max(max(sizes), head) if sizes else 0

    def _must_run(self, now_s: float) -> bool:
        waits_s = self._settings.delay_ms_max / 1000
        for queue in self._queues:
            # Written as in `wake_s`: another rounding would let a driver wake up to find that nothing is due.
            if queue and queue[0].arrived_s + waits_s <= now_s:
                return True
        return self._first_deadline_s(now_s + 2 * self._ahead_s) - self._ahead_s <= now_s

    @property
    def _ahead_s(self) -> float:
        return max(self.run_s_expected, RUN_S_MIN)

    def _first_deadline_s(self, until_s: float) -> float:
        """Exact if it is not after `until_s`. The queue is looked through only when the known bound has come up."""
        if self._deadline_s_first <= until_s:
            waiting = (request.deadline_s for queue in self._queues for request in queue)
            self._deadline_s_first = min(waiting, default=math.inf)
        return self._deadline_s_first
