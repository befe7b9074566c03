"""How does a task run that is only modelled? The engine keeps its time and its lease, and nothing else."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from datetime import datetime

from harch.base.clock import Clock
from harch.execution.agent import EngineEvents
from harch.execution.lease import TaskLease
from harch.execution.protocol import KnownTask, TaskEnded, TaskKey, TaskSpec
from harch.workloads.lifecycle import ExitReason


class LeaseBook:
    """An extension is only written down; it is noticed when the former moment comes, so that renewing costs nothing."""

    def __init__(self) -> None:
        self._leases: dict[TaskKey, TaskLease] = {}
        self._heap: list[tuple[float, int, TaskKey]] = []
        self._turns = 0

    def add(self, key: TaskKey, lease: TaskLease) -> None:
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
        """The tasks that must stop now, each once."""
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

    def _push(self, key: TaskKey, lease: TaskLease) -> None:
        self._turns += 1  # keys have no order of their own
        heapq.heappush(self._heap, (lease.stop_at_s, self._turns, key))


# How does a task run that is only modelled? The engine keeps time for it, and nothing else.
#
# The rule after a restart of the agent: it remembers no modelled task, so the hub's repeated `StartTask` starts it anew
# with its full time. That harms nobody, because a modelled task runs nothing. Its lease goes on, since the agent starts
# nothing whose lease is over.


TASKS_MAX = 50_000  # an inventory of so many still fits into one frame
LEASE_LOOK_S = 0.5  # the event loop's timers stand still while the machine sleeps, and leases do not
STALE_MAX = 1_000  # heap items of stopped or paused tasks; beyond so many more than there are tasks, it is rebuilt


@dataclass(slots=True)
class _Entry:
    started_at: datetime
    ends_as: ExitReason
    left_s: float | None  # None: a reservation, until stopped
    due_s: float = 0.0  # monotonic; valid while it counts down
    turn: int = 0  # which heap item is the valid one


class ModelledEngine:
    """One heap and one timer for all: thousands of starts and ends per second cost little."""

    def __init__(self, events: EngineEvents, clock: Clock) -> None:
        self._events, self._clock = events, clock
        self._entries: dict[TaskKey, _Entry] = {}
        self._heap: list[tuple[float, int, TaskKey]] = []
        self._turns = 0
        self._leases = LeaseBook()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    def start(self, task: TaskSpec) -> None:
        now = self._clock.now()
        if len(self._entries) >= TASKS_MAX:
            detail = f"this agent keeps time for {TASKS_MAX} modelled tasks already"
            self._events.task_ended(TaskEnded(key=task.key, reason=ExitReason.NOT_STARTED, at=now, detail=detail))
            return
        left_s, ends_as = task.modelled_duration_s, ExitReason.EXITED
        if task.max_duration_s is not None and (left_s is None or task.max_duration_s < left_s):
            left_s, ends_as = task.max_duration_s, ExitReason.TIMEOUT
        entry = self._entries[task.key] = _Entry(now, ends_as, left_s)
        if task.lease_until_s is not None:
            self._leases.add(task.key, TaskLease(task.lease_until_s, task.stop_grace_s))
        self._events.task_started(task.key, now)
        self._count_down(task.key, entry)
        self._set_timer()

    def stop(self, key: TaskKey, *, grace_s: float, reason: ExitReason, scrub: bool = False) -> None:
        if key in self._entries:
            self._end(key, reason, scrubbed=scrub)  # it wrote nothing

    def pause(self, key: TaskKey) -> None:
        entry = self._entries.get(key)
        if entry and entry.left_s is not None and entry.turn:
            entry.left_s, entry.turn = max(0.0, entry.due_s - self._clock.monotonic_s()), 0

    def resume(self, key: TaskKey) -> None:
        entry = self._entries.get(key)
        if entry and not entry.turn:
            self._count_down(key, entry)
            self._set_timer()

    def extend_lease(self, key: TaskKey, until_s: float) -> None:
        self._leases.extend(key, until_s)

    def forget(self, key: TaskKey) -> None:
        pass  # an ended task left nothing behind

    def running(self) -> list[KnownTask]:
        return [KnownTask(key=key, running=True, started_at=entry.started_at) for key, entry in self._entries.items()]

    def is_running(self, key: TaskKey) -> bool:
        return key in self._entries

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end_due(self) -> None:
        """Ends all tasks whose time or lease is over, and sets the timer for the next one."""
        for key in self._leases.take_due(self._clock.boot_s()):
            self._end(key, ExitReason.LEASE_ENDED, detail="it is modelled and was stopped as ordered")
        now_s = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now_s:
            _, turn, key = heapq.heappop(self._heap)
            entry = self._entries.get(key)
            if entry is not None and entry.turn == turn:
                self._end(key, entry.ends_as)
        self._timer = None
        self._set_timer()

    def _count_down(self, key: TaskKey, entry: _Entry) -> None:
        if entry.left_s is None:
            return
        self._turns += 1
        entry.turn, entry.due_s = self._turns, self._clock.monotonic_s() + entry.left_s
        heapq.heappush(self._heap, (entry.due_s, entry.turn, key))
        if len(self._heap) > 2 * len(self._entries) + STALE_MAX:
            self._heap = [(item.due_s, item.turn, name) for name, item in self._entries.items() if item.turn]
            heapq.heapify(self._heap)

    def _end(self, key: TaskKey, reason: ExitReason, *, scrubbed: bool = False, detail: str = "") -> None:
        del self._entries[key]
        self._leases.drop(key)
        now, code = self._clock.now(), 0 if reason is ExitReason.EXITED else None
        end = TaskEnded(key=key, reason=reason, at=now, exit_code=code, scrubbed=scrubbed, detail=detail)
        self._events.task_ended(end)

    def _set_timer(self) -> None:
        now_s = self._clock.monotonic_s()
        dues_s = [self._heap[0][0]] if self._heap else []
        lease_wait_s = self._leases.wait_s(self._clock.boot_s())
        if lease_wait_s is not None:
            dues_s.append(now_s + min(lease_wait_s, LEASE_LOOK_S))
        if not dues_s:
            return
        due_s = min(dues_s)
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self.end_due)
