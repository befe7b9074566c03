"""Which tasks are being prepared, and what becomes of them? Each in a thread of its own; the event loop only listens.

A task is prepared between its order and its start. Until then nothing of it runs, so a stop, the end of its lease or of
the agent only call the thread off; after a crash its folder is voided, and the hub orders it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.execution import kernel
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.content.node import NodeContent
from harch.execution.lease import TaskLease
from harch.execution.preparation import PreparedContent, identity
from harch.execution.protocol import TaskKey, TaskPreparing, TaskSpec
from harch.execution.spool import TaskLogSpool
from harch.execution.taskdir import TaskDir
from harch.workloads.lifecycle import ExitReason

REPORT_S = 2.0
LOOK_S = 0.5  # at leases: the event loop's timers stand still while the machine sleeps, and leases do not
CLOSE_S_MAX = 2.0
LOG_SEGMENT_BYTES, LOG_SEGMENTS_MAX = 1024 * 1024, 4
DETAIL_CHARS_MAX = 1500
log = logging.getLogger(__name__)


class PreparingEvents(Protocol):
    """What becomes of a task that was prepared: exactly one of `prepared` and `not_started`, on the event loop."""

    def progressed(self, message: TaskPreparing) -> None: ...

    def prepared(self, task: TaskSpec, task_dir: TaskDir, content: PreparedContent) -> None: ...

    def not_started(self, key: TaskKey, task_dir: TaskDir, reason: ExitReason, detail: str) -> None: ...


@dataclass(slots=True)
class _Preparing:
    """One task. `content`: it is ready, but paused."""

    task: TaskSpec
    task_dir: TaskDir
    cgroups: list[str]
    lease: TaskLease | None
    cancellation: Cancellation = field(default_factory=Cancellation)
    step: str = ""
    detail: str = ""
    is_paused: bool = False
    content: PreparedContent | None = None
    ends_as: tuple[ExitReason, str] | None = None
    thread: threading.Thread | None = None


class PreparingTasks:
    """Must be made inside a running event loop, and is used from it only."""

    def __init__(self, content: NodeContent, events: PreparingEvents, clock: Clock) -> None:
        self._content, self._events, self._clock = content, events, clock
        self._tasks: dict[TaskKey, _Preparing] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._report_at_s = 0.0

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._tasks

    @property
    def keys(self) -> list[TaskKey]:
        return list(self._tasks)

    def begin(self, task: TaskSpec, task_dir: TaskDir, cgroups: list[str]) -> None:
        lease = None if task.lease_until_s is None else TaskLease(task.lease_until_s, task.stop_grace_s)
        one = self._tasks[task.key] = _Preparing(task, task_dir, cgroups, lease)
        one.thread = threading.Thread(target=self._work, args=(one,), daemon=True, name="harch-preparing")
        one.thread.start()
        if self._timer is None:
            self._look()

    def stop(self, key: TaskKey, reason: ExitReason, detail: str = "stopped before it started") -> None:
        """Its end is reported when its thread has let go of its folder, which takes less than a second."""
        one = self._tasks[key]
        if one.ends_as is None:
            one.ends_as = (reason, detail)
        one.cancellation.cancel()
        if one.content is not None:
            self._end(one)

    def pause(self, key: TaskKey) -> None:
        """It is prepared all the same, and does not start."""
        self._tasks[key].is_paused = True

    def resume(self, key: TaskKey) -> None:
        one = self._tasks[key]
        one.is_paused = False
        if one.content is not None:
            self._end(one)

    def extend_lease(self, key: TaskKey, until_s: float) -> None:
        if lease := self._tasks[key].lease:
            lease.extend(until_s)

    def close(self) -> None:
        """Calls all off and reports nothing: their folders are voided by the next agent."""
        if self._timer is not None:
            self._timer.cancel()
        tasks, self._tasks = list(self._tasks.values()), {}
        for one in tasks:
            one.cancellation.cancel()
        give_up_at_s = self._clock.monotonic_s() + CLOSE_S_MAX
        for one in tasks:
            if one.thread is not None:
                one.thread.join(max(0.0, give_up_at_s - self._clock.monotonic_s()))

    # On the event loop

    def _finished(self, one: _Preparing, outcome: PreparedContent | tuple[ExitReason, str]) -> None:
        if self._tasks.get(one.task.key) is not one:
            return  # the agent ends
        if isinstance(outcome, PreparedContent):
            one.content = outcome
        elif one.ends_as is None:
            one.ends_as = outcome
        if one.is_paused and one.ends_as is None:
            one.step, one.detail = "paused", ""
            self._report(one)
        else:
            self._end(one)

    def _end(self, one: _Preparing) -> None:
        key = one.task.key
        del self._tasks[key]
        if one.ends_as is not None or one.content is None:
            reason, detail = one.ends_as or (ExitReason.NOT_STARTED, "E1113 it was not prepared")
            self._events.not_started(key, one.task_dir, reason, detail)
            return
        until_s = None if one.lease is None else one.lease.until_s
        self._events.prepared(replace(one.task, lease_until_s=until_s), one.task_dir, one.content)

    def _look(self) -> None:
        self._timer = None
        for one in list(self._tasks.values()):
            if one.lease is not None and one.lease.must_stop(self._clock.boot_s()):
                self.stop(one.task.key, ExitReason.LEASE_ENDED, "its lease ended before it started")
        now_s = self._clock.monotonic_s()
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_S
            for one in self._tasks.values():
                self._report(one)
        if self._tasks:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _report(self, one: _Preparing) -> None:
        if one.step and self._tasks.get(one.task.key) is one:
            self._events.progressed(TaskPreparing(key=one.task.key, step=one.step, detail=one.detail))

    # In the threads

    def _work(self, one: _Preparing) -> None:
        outcome = self._outcome(one)
        if not isinstance(outcome, PreparedContent):
            _kill_builds(one)
        self._soon(self._finished, one, outcome)

    def _outcome(self, one: _Preparing) -> PreparedContent | tuple[ExitReason, str]:
        """What it is, or how the task ends."""
        try:
            spool = TaskLogSpool(str(one.task_dir.preparation_log), LOG_SEGMENT_BYTES, LOG_SEGMENTS_MAX)
            with contextlib.closing(spool):
                report = _Report(one, spool, lambda: self._soon(self._report, one))
                try:
                    return self._content.prepare(one.task, one.task_dir, one.cgroups, report, one.cancellation)
                except (HarchError, OSError) as error:
                    report.write(f"{error}\n".encode())
                    raise
        except Cancelled:
            return ExitReason.STOPPED, "stopped before it started"
        except HarchError as error:
            return ExitReason.NOT_STARTED, f"{error.code} {error.message}"[:DETAIL_CHARS_MAX]
        except OSError as error:
            code = "E1002" if error.errno == errno.ENOSPC else "E1113"
            return ExitReason.NOT_STARTED, f"{code} it could not be prepared: {error}"[:DETAIL_CHARS_MAX]
        except Exception as error:  # a thread that dies unseen would leave its task waiting for ever
            log.exception("task %s could not be prepared", one.task.key)
            return ExitReason.NOT_STARTED, f"E1113 it could not be prepared: {type(error).__name__}"

    def _soon(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Report:
    """What the thread of one task says, in the log and to the hub."""

    def __init__(self, one: _Preparing, spool: TaskLogSpool, announce: Callable[[], None]) -> None:
        self._one, self._spool, self._announce = one, spool, announce
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        self._one.detail, self._one.step = "", name
        self._announce()

    def detail(self, text: str) -> None:
        self._one.detail = text

    def write(self, data: bytes) -> None:
        with self._lock:
            self._spool.write(data)


def _kill_builds(one: _Preparing) -> None:
    """What a build has put into the background, out of its process group, does not outlive it either."""
    if one.task.environment is None:
        return
    kernel.kill_cgroups(one.cgroups)
    for pid in kernel.processes_with_env(f"{name}={value}".encode() for name, value in identity(one.task.key).items()):
        kernel.kill_process(pid, signal.SIGKILL)
