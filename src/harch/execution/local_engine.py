"""How does a task run as a process on this machine?

Through a supervisor of its own, which outlives the agent; its output is kept within a limit, and what it wrote is
scrubbed before its end is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import InvariantBroken
from harch.execution import kernel
from harch.execution.agent import EngineEvents
from harch.execution.preparation import Preparation, StateFolder, identity
from harch.execution.protocol import KnownTask, ReadTaskLog, TaskEnded, TaskKey, TaskLogChunk, TaskSpec
from harch.execution.spool import offset_since, read_spool
from harch.execution.taskdir import EndRecord, StopOrder, SupervisorLine, TaskDir, folder_name, key_of, standing
from harch.workloads.lifecycle import ExitReason

# How is what a task wrote made to go away? Working folder and checkpoints, before anybody hears that it has ended.
#
# A folder that the node shares is not the agent's to delete, and the log stays: it is the record of what ran.


class Scrubber:
    """Deletes in a thread, because a task may have left a hundred thousand files. Needs a running event loop."""

    def __init__(self, state: StateFolder, events: EngineEvents) -> None:
        self._state, self._events = state, events
        self._ordered: set[TaskKey] = set()
        self._loop = asyncio.get_running_loop()
        self.at_work: set[TaskKey] = set()  # ended, and not yet reported

    def order(self, key: TaskKey, task_dir: TaskDir) -> None:
        """To be scrubbed when it ends; the file is for the next agent, should this one die first."""
        self._ordered.add(key)
        with contextlib.suppress(OSError):  # a full disk takes no file, and excuses nothing
            task_dir.write_scrub()

    def report_end(self, task_dir: TaskDir, end: TaskEnded, *, running: Collection[TaskKey]) -> None:
        """Tells the end; of a task that must be scrubbed, once that is done."""
        if end.key not in self._ordered and not task_dir.scrub_requested:
            self._events.task_ended(end)
            return
        folders = [task_dir.path / "work"]
        if not any(other.workload_id == end.key.workload_id for other in running):  # else they still use it
            folders.append(self._state.checkpoint(end.key))
        self.at_work.add(end.key)
        deletion = self._loop.run_in_executor(None, _delete, folders)
        deletion.add_done_callback(lambda _: self._deleted(folders, end))

    def _deleted(self, folders: list[Path], end: TaskEnded) -> None:
        self._ordered.discard(end.key)
        self.at_work.discard(end.key)
        gone = not any(folder.exists() for folder in folders)
        if not gone:
            log.error("what task %s wrote could not be deleted", end.key)
        self._events.task_ended(replace(end, scrubbed=gone))


def _delete(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


# Whose output is still kept? Logs of running, ended and forgotten tasks, with a limit on the last.


LOGS_MAX = 1_000
LOG_BYTES_MAX = 4 * 1024**3
READ_BYTES_MAX = 1024 * 1024


class TaskLogs:
    """Logs of forgotten tasks go oldest first, when there are too many or they grow too large."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        found = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(state.logs))
        self._kept = {name: _folder_bytes(state.logs / name) for _, name in found}  # oldest first
        self._bytes = sum(self._kept.values())

    def was_forgotten(self, key: TaskKey) -> bool:
        return folder_name(key) in self._kept

    def keep(self, key: TaskKey, log: Path) -> Iterator[Path]:
        """Takes over the log of a task that is being forgotten; yields the folders to delete instead."""
        name = folder_name(key)
        if log.is_dir():
            log.rename(self._state.logs / name)
        else:  # also an empty one is remembered: its key must never start again
            (self._state.logs / name).mkdir(exist_ok=True)
        self._kept[name] = _folder_bytes(self._state.logs / name)
        self._bytes += self._kept[name]
        while len(self._kept) > LOGS_MAX or (self._bytes > LOG_BYTES_MAX and len(self._kept) > 1):
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest)
            yield self._state.logs / oldest

    def read(self, key: TaskKey, offset: int, bytes_max: int, since_s: float | None) -> tuple[int, bytes, int]:
        """(offset of the data, data, offset of the log's end so far)."""
        name = folder_name(key)
        folder = self._state.logs / name if name in self._kept else self._state.tasks / name / "log"
        if since_s is not None:
            offset = max(offset, offset_since(str(folder), since_s))
        return read_spool(str(folder), offset, max(0, min(bytes_max, READ_BYTES_MAX)))


def _folder_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


# How does a task run as a process on this machine? Through a supervisor of its own, which outlives the agent.


SUPERVISOR = Path(__file__).with_name("supervisor.py")
ADOPT_TRIES_MAX, ADOPT_RETRY_S = 200, 0.01
STARTING_POLL_S = 0.02  # only for a task that was adopted in the very moment of its start
log = logging.getLogger(__name__)
_decode_line = msgspec.json.Decoder(SupervisorLine).decode


@dataclass(slots=True)
class _Live:
    """A task whose supervisor we watch; `process` only if we are its parent."""

    task_dir: TaskDir
    pidfd: int
    process: subprocess.Popen[bytes] | None = None
    started_at: datetime | None = None
    signals_waiting: list[signal.Signals] = field(default_factory=list)
    buffered: bytes = b""
    end: EndRecord | None = None


class LocalEngine:
    """Limits: `process_slots` tasks at a time. Must be made, and `recover`ed, inside a running event loop."""

    def __init__(self, preparation: Preparation, events: EngineEvents, clock: Clock, *, process_slots: int) -> None:
        self._preparation, self._events, self._clock = preparation, events, clock
        self._state, self._process_slots = preparation.state, process_slots
        self._live: dict[TaskKey, _Live] = {}
        self._scrubber = Scrubber(self._state, events)
        self._logs = TaskLogs(self._state)
        self._loop = asyncio.get_running_loop()
        self._trashed = 0

    def recover(self) -> None:
        """Adopts what an earlier agent left: watches what lives, tells what ended, voids what never started."""
        names = sorted(entry.name for entry in os.scandir(self._state.tasks) if entry.is_dir())
        for name in names:
            key = key_of(name)
            if key is None:
                self._throw_away(self._state.tasks / name)
            else:
                self._recover_task(key, TaskDir(self._state.tasks / name))
        for name in set(self._preparation.cgroups.leftovers()) - set(names):
            kernel.remove_cgroups(self._preparation.cgroups.folders_of(name))
        for folder in (*self._state.trash.iterdir(),):
            self._delete(folder)

    def start(self, task: TaskSpec) -> None:
        key = task.key
        if self._logs.was_forgotten(key):
            self._refuse(key, ExitReason.LOST, "it has run and ended before, and the hub has acknowledged that")
            return
        if len(self._live) >= self._process_slots:
            self._refuse(key, ExitReason.NOT_STARTED, f"E0307 all {self._process_slots} process slots are in use")
            return
        task_dir = self._state.task(key)
        if task_dir.path.exists():
            return  # it has started already; the agent asks us only once, and this is the second lock on the door
        try:
            self._preparation.prepare(task)
            self._launch(key, task_dir)
        except OSError as error:
            code = "E1002" if error.errno == errno.ENOSPC else "E0307"
            self._preparation.clear(key)
            self._throw_away(task_dir.path)
            self._refuse(key, ExitReason.NOT_STARTED, f"{code} it could not be prepared: {error}")

    def stop(self, key: TaskKey, *, grace_s: float, reason: ExitReason, scrub: bool = False) -> None:
        live = self._live.get(key)
        if live is None:
            return
        if scrub:
            self._scrubber.order(key, live.task_dir)
        with contextlib.suppress(OSError):  # on a full disk the bare signal must do: it stops with the task's own grace
            live.task_dir.write_stop(StopOrder(reason, grace_s))
        self._signal(live, signal.SIGTERM)

    def pause(self, key: TaskKey) -> None:
        if live := self._live.get(key):
            self._signal(live, signal.SIGUSR1)

    def resume(self, key: TaskKey) -> None:
        if live := self._live.get(key):
            self._signal(live, signal.SIGUSR2)

    def extend_lease(self, key: TaskKey, until_s: float) -> None:
        if live := self._live.get(key):
            try:
                live.task_dir.extend_lease(until_s)
            except OSError as error:  # e.g. a full disk; the task stops at the deadline that it knows
                log.error("the lease of task %s cannot be extended: %s", key, error)

    def forget(self, key: TaskKey) -> None:
        task_dir = self._state.task(key)
        if key in self._live or not task_dir.path.is_dir():
            return
        self._preparation.clear(key)
        # The ranks of a gang share the folder, and those that are starting need it. Whoever comes last removes it,
        # unless a task has put something there for the next attempt.
        if all(other.workload_id != key.workload_id for other in self._live):
            with contextlib.suppress(OSError):
                self._state.checkpoint(key).rmdir()
        try:
            for folder in self._logs.keep(key, task_dir.path / "log"):
                self._throw_away(folder)
            self._throw_away(task_dir.path)
        except OSError as error:  # the next agent start finds it as an ended task, tells it again, and tries again
            log.warning("%s could not be removed: %s", task_dir.path, error)

    def running(self) -> list[KnownTask]:
        known = {key: live.started_at for key, live in self._live.items()} | dict.fromkeys(self._scrubber.at_work)
        return [KnownTask(key=key, running=True, started_at=started_at) for key, started_at in known.items()]

    def is_running(self, key: TaskKey) -> bool:
        return key in self._live or key in self._scrubber.at_work

    def read_log(self, request: ReadTaskLog) -> TaskLogChunk:
        ended = request.key not in self._live  # asked before reading: what was written until then is all there
        offset, data, end = self._logs.read(request.key, request.offset, request.bytes_max, request.since_s)
        eof = ended and offset + len(data) >= end
        return TaskLogChunk(request_id=request.request_id, offset=offset, data=data, eof=eof)

    def close(self) -> None:
        for live in self._live.values():
            self._unwatch(live)
        self._live.clear()

    def _recover_task(self, key: TaskKey, task_dir: TaskDir) -> None:
        for _ in range(ADOPT_TRIES_MAX):  # it may start, or end, while we look
            facts = task_dir.facts()
            if not facts.started and facts.ended is None and task_dir.void():
                self._preparation.clear(key)
                self._throw_away(task_dir.path)
                return
            lock_held = task_dir.lock_held()
            found = standing(key, facts if lock_held else task_dir.facts(), lock_held=lock_held, now=self._clock.now())
            if isinstance(found, TaskEnded):
                self._conclude(key, task_dir, found)
                return
            if found is not None and self._adopt(key, task_dir, found):
                return
            time.sleep(ADOPT_RETRY_S)
        raise InvariantBroken("a held lock names its supervisor", task_dir.path)

    def _adopt(self, key: TaskKey, task_dir: TaskDir, known: KnownTask) -> bool:
        try:
            pidfd = os.pidfd_open(task_dir.supervisor_pid())
        except OSError:
            return False
        if not task_dir.lock_held():  # it has just died, and the pid may already be another's
            os.close(pidfd)
            return False
        live = self._live[key] = _Live(task_dir, pidfd, started_at=known.started_at)
        if task_dir.stop_requested:  # the former agent may have died between the order and the signal
            live.signals_waiting.append(signal.SIGTERM)
        self._loop.add_reader(pidfd, self._on_exit, key)
        self._poll_start(key)
        return True

    def _poll_start(self, key: TaskKey) -> None:
        live = self._live.get(key)
        if live is None:
            return
        running = live.task_dir.facts().running
        if running is None:
            self._loop.call_later(STARTING_POLL_S, self._poll_start, key)
        else:
            self._has_started(key, live, running.started_at)

    def _launch(self, key: TaskKey, task_dir: TaskDir) -> None:
        with open(task_dir.path / "supervisor.err", "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(task_dir.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={},
                start_new_session=True,
                bufsize=0,
            )
        pidfd = os.pidfd_open(process.pid)
        self._live[key] = _Live(task_dir, pidfd, process)
        self._loop.add_reader(pidfd, self._on_exit, key)
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            self._loop.add_reader(process.stdout.fileno(), self._on_word, key)

    def _on_word(self, key: TaskKey) -> None:
        """The supervisor said something; each line is whole, because it is written in one piece."""
        live = self._live[key]
        if live.process is None or live.process.stdout is None:
            return
        data = live.process.stdout.read(65536)
        if not data:
            self._loop.remove_reader(live.process.stdout.fileno())
            return
        *lines, live.buffered = (live.buffered + data).split(b"\n")
        for line in lines:
            buffered = _decode_line(line)
            if buffered.state == "running":
                self._has_started(key, live, buffered.started_at)
            else:
                live.end = msgspec.convert(buffered, EndRecord, from_attributes=True)

    def _has_started(self, key: TaskKey, live: _Live, started_at_s: float) -> None:
        live.started_at = datetime.fromtimestamp(started_at_s, UTC)
        self._events.task_started(key, live.started_at)
        for signum in live.signals_waiting:
            _send(live.pidfd, signum)
        live.signals_waiting.clear()

    def _signal(self, live: _Live, signum: signal.Signals) -> None:
        """A supervisor that is still starting has no handlers yet: it would die of the signal instead of obeying."""
        if live.started_at is None:
            live.signals_waiting.append(signum)
        else:
            _send(live.pidfd, signum)

    def _on_exit(self, key: TaskKey) -> None:
        self._on_word(key)
        live = self._live.pop(key)
        self._unwatch(live)
        facts = live.task_dir.facts()
        if facts.ended is None and live.task_dir.lock_held():
            # A supervisor of a former agent, late but first: it has the task, ours stood back.
            if not self._adopt(key, live.task_dir, KnownTask(key=key, running=True)):
                self._live[key] = live
                self._loop.call_later(STARTING_POLL_S, self._on_exit, key)
            return
        if facts.ended is None and live.end is not None:  # the disk is full; the line on the pipe has it
            self._conclude(key, live.task_dir, live.end.message(key))
            return
        found = standing(key, facts, lock_held=False, now=self._clock.now())
        if not isinstance(found, TaskEnded):
            words = kernel.read_text(str(live.task_dir.path / "supervisor.err")).strip().splitlines()
            detail = f"E0307 its supervisor did not start: {words[-1] if words else 'no reason given'}"
            found = TaskEnded(key=key, reason=ExitReason.NOT_STARTED, at=self._clock.now(), detail=detail)
        self._conclude(key, live.task_dir, found)

    def _conclude(self, key: TaskKey, task_dir: TaskDir, end: TaskEnded) -> None:
        """Whatever the end was: nothing of the task goes on, and the end is on disk before it is reported."""
        if end.reason is ExitReason.LOST:
            kernel.kill_cgroups(self._preparation.cgroups_of(key))
            for pid in kernel.processes_with_env(f"{name}={value}".encode() for name, value in identity(key).items()):
                kernel.kill_process(pid, signal.SIGKILL)
        if not (task_dir.path / "ended.json").exists():
            with contextlib.suppress(OSError):  # a full disk; the hub hears of it all the same
                task_dir.write_end(end)
        self._preparation.clear(key)
        self._scrubber.report_end(task_dir, end, running=self._live)

    def _refuse(self, key: TaskKey, reason: ExitReason, detail: str) -> None:
        self._events.task_ended(TaskEnded(key=key, reason=reason, at=self._clock.now(), detail=detail))

    def _unwatch(self, live: _Live) -> None:
        self._loop.remove_reader(live.pidfd)
        os.close(live.pidfd)
        if live.process is not None:
            if live.process.stdout is not None:
                self._loop.remove_reader(live.process.stdout.fileno())
                live.process.stdout.close()
            live.process.poll()

    def _throw_away(self, folder: Path) -> None:
        """Renames at once, deletes in a thread: a task may have left a hundred thousand files."""
        self._trashed += 1
        target = self._state.trash / f"{self._trashed}-{os.getpid()}-{folder.name}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(target)
            self._delete(target)

    def _delete(self, folder: Path) -> None:
        self._loop.run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))


def _send(pidfd: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)
