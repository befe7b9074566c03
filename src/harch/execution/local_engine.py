"""How does a task run as a process on this machine?

Prepared first, if it needs anything, and then through a supervisor of its own, which outlives the agent. Its end is
told when its results are at the hub, and what may not rest here is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.execution import kernel
from harch.execution.agent import EngineEvents
from harch.execution.content.artifact_uploads import ArtifactUploads
from harch.execution.content.cancellation import Cancellation
from harch.execution.content.node import NodeContent
from harch.execution.content.preparing_tasks import PreparingTasks
from harch.execution.content.work_requests import WorkRequests, failed
from harch.execution.preparation import Preparation, PreparedContent, identity
from harch.execution.protocol import (
    FilesAnswer,
    KnownTask,
    PlaceFiles,
    ReadTaskLog,
    SnapshotFiles,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    TaskPreparing,
    TaskSpec,
)
from harch.execution.task_leftovers import Scrubber, TaskLogs
from harch.execution.taskdir import EndRecord, StopOrder, SupervisorLine, TaskDir, key_of, standing
from harch.execution.trash import Trash
from harch.workloads.lifecycle import ExitReason

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

    def __init__(
        self,
        preparation: Preparation,
        content: NodeContent,
        events: EngineEvents,
        clock: Clock,
        trash: Trash,
        *,
        process_slots: int,
    ) -> None:
        self._preparation, self._content, self._events, self._clock = preparation, content, events, clock
        self._state, self._trash, self._process_slots = preparation.state, trash, process_slots
        self._live: dict[TaskKey, _Live] = {}
        self._preparing = PreparingTasks(content, self, clock)
        self._uploads = ArtifactUploads(content, self._report_end)
        self._scrubber = Scrubber(self._state, events)
        self._logs = TaskLogs(self._state)
        self._files = WorkRequests()
        self._loop = asyncio.get_running_loop()

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

    def start(self, task: TaskSpec) -> None:
        key = task.key
        if self._logs.was_forgotten(key):
            self._refuse(key, ExitReason.LOST, "it has run and ended before, and the hub has acknowledged that")
            return
        if len(self._live) + len(self._preparing.keys) >= self._process_slots:
            self._refuse(key, ExitReason.NOT_STARTED, f"E0307 all {self._process_slots} process slots are in use")
            return
        task_dir = self._state.task(key)
        if task_dir.path.exists():
            return  # it has started already; the agent asks us only once, and this is the second lock on the door
        try:
            self._preparation.make_folder(task)
            if task.needs_preparation:
                self._preparing.begin(task, task_dir, self._preparation.limit(task))
                return
            self._preparation.complete(task, task_dir)
            self._launch(key, task_dir)
        except OSError as error:
            self._preparation.clear(key)
            self._throw_away(task_dir.path)
            self._refuse(key, ExitReason.NOT_STARTED, _cannot_prepare(error))

    def stop(self, key: TaskKey, *, grace_s: float, reason: ExitReason, scrub: bool = False) -> None:
        if scrub and self.is_running(key):
            self._scrubber.order(key, self._state.task(key))
        if key in self._preparing:
            self._preparing.stop(key, reason)
        elif key in self._uploads and reason is not ExitReason.AGENT_SHUTDOWN:
            self._uploads.stop(key)
        live = self._live.get(key)
        if live is None:
            return
        with contextlib.suppress(OSError):  # on a full disk the bare signal must do: it stops with the task's own grace
            live.task_dir.write_stop(StopOrder(reason, grace_s))
        self._signal(live, signal.SIGTERM)

    def pause(self, key: TaskKey) -> None:
        if key in self._preparing:
            self._preparing.pause(key)
        if live := self._live.get(key):
            self._signal(live, signal.SIGUSR1)

    def resume(self, key: TaskKey) -> None:
        if key in self._preparing:
            self._preparing.resume(key)
        elif live := self._live.get(key):
            self._signal(live, signal.SIGUSR2)

    def extend_lease(self, key: TaskKey, until_s: float) -> None:
        if key in self._preparing:
            self._preparing.extend_lease(key, until_s)
        elif live := self._live.get(key):
            try:
                live.task_dir.extend_lease(until_s)
            except OSError as error:  # e.g. a full disk; the task stops at the deadline that it knows
                log.error("the lease of task %s cannot be extended: %s", key, error)

    def forget(self, key: TaskKey) -> None:
        task_dir = self._state.task(key)
        if self.is_running(key) or not task_dir.path.is_dir():
            return
        self._preparation.clear(key)
        # The ranks of a gang share the folder, and those that are starting need it. Whoever comes last removes it,
        # unless a task has put something there for the next attempt.
        if all(other.workload_id != key.workload_id for other in self._with_folders):
            with contextlib.suppress(OSError):
                self._state.checkpoint(key).rmdir()
        try:
            for folder in self._logs.keep(key, task_dir.path / "log"):
                self._throw_away(folder)
            if (task_dir.path / "started").exists() and not task_dir.scrub_requested and task_dir.work.is_dir():
                self._content.kept_work.keep(key, task_dir.work)
            self._throw_away(task_dir.path)
        except OSError as error:  # the next agent start finds it as an ended task, tells it again, and tries again
            log.warning("%s could not be removed: %s", task_dir.path, error)

    def running(self) -> list[KnownTask]:
        known = {key: live.started_at for key, live in self._live.items()} | dict.fromkeys(self._scrubber.at_work)
        return [
            *(KnownTask(key=key, running=True, started_at=started_at) for key, started_at in known.items()),
            *(KnownTask(key=key, running=True, preparing=True) for key in self._preparing.keys),
            *self._uploads.running(),
        ]

    def is_running(self, key: TaskKey) -> bool:
        return key in self._live or key in self._preparing or key in self._uploads or key in self._scrubber.at_work

    def read_log(self, request: ReadTaskLog) -> TaskLogChunk:
        key, preparation = request.key, request.preparation
        # Asked before reading: what was written until then is all there.
        ended = key not in self._preparing and (preparation or key not in self._live)
        offset, data, end = self._logs.read(
            key, request.offset, request.bytes_max, request.since_s, preparation=preparation
        )
        eof = ended and offset + len(data) >= end
        return TaskLogChunk(request_id=request.request_id, offset=offset, data=data, eof=eof)

    def snapshot_files(self, request: SnapshotFiles, answer: Callable[[FilesAnswer], None]) -> None:
        number, key = request.request_id, request.key
        try:
            work = self._work_of(key)
        except HarchError as error:
            answer(failed(number, error))
            return

        def snapshot(cancellation: Cancellation) -> FilesAnswer:
            packed = self._content.snapshot(key, work, request.path, cancellation)
            return FilesAnswer(
                request_id=number, digest=packed.digest, size_bytes=packed.size_bytes, files=packed.files
            )

        self._files.submit(number, snapshot, answer)

    def place_files(self, request: PlaceFiles, answer: Callable[[FilesAnswer], None]) -> None:
        number, key = request.request_id, request.key
        live = self._live.get(key)
        spec = live.task_dir.launch_spec() if live is not None and live.started_at is not None else None
        if spec is None:
            hint = "files can be put into the working folder of a task while it runs"
            answer(failed(number, HarchError("E0304", "the task does not run", hint=hint)))
            return
        work = Path(spec.cwd)

        def place(cancellation: Cancellation) -> FilesAnswer:
            size, files = self._content.place(key, work, request.path, request.ref, request.digest, cancellation)
            return FilesAnswer(request_id=number, digest=request.digest, size_bytes=size, files=files)

        self._files.submit(number, place, answer)

    def close(self) -> None:
        self._preparing.close()
        self._uploads.close()
        self._files.close()
        for live in self._live.values():
            self._unwatch(live)
        self._live.clear()

    # What becomes of tasks that are prepared

    def progressed(self, message: TaskPreparing) -> None:
        self._events.task_preparing(message)

    def prepared(self, task: TaskSpec, task_dir: TaskDir, content: PreparedContent) -> None:
        try:
            self._preparation.complete(task, task_dir, content)
            self._launch(task.key, task_dir)
        except OSError as error:
            self.not_started(task.key, task_dir, ExitReason.NOT_STARTED, _cannot_prepare(error))
        except (HarchError, InvariantBroken) as error:
            log.error("task %s cannot be started as it was prepared: %s", task.key, error)
            detail = f"{error.code} {error.message}" if isinstance(error, HarchError) else f"E0307 {error}"
            self.not_started(task.key, task_dir, ExitReason.NOT_STARTED, detail)

    def not_started(self, key: TaskKey, task_dir: TaskDir, reason: ExitReason, detail: str) -> None:
        self._conclude(key, task_dir, TaskEnded(key=key, reason=reason, at=self._clock.now(), detail=detail))

    def _work_of(self, key: TaskKey) -> Path:
        """Where the files of a task are, running or ended. Raises E1111, E1112 and E0907."""
        task_dir = self._state.task(key)
        if key in self._preparing:
            raise HarchError("E1111", "the task is being prepared and has no files yet", hint="wait until it runs")
        if task_dir.scrub_requested:
            hint = "read them where they are, or write results that may rest here"
            raise HarchError("E0907", "what the task read may not rest here, so its files are not copied", hint=hint)
        spec = task_dir.launch_spec()
        work = Path(spec.cwd) if spec is not None else self._content.kept_work.find(key)
        if work is None:
            raise HarchError(
                "E1112",
                "the node does not have the files of the task any more",
                hint="declare what must stay as `artifacts`",
            )
        return work

    @property
    def _with_folders(self) -> list[TaskKey]:
        """Tasks that use, or are about to use, the folders of their workload."""
        return [*self._live, *self._preparing.keys]

    def _recover_task(self, key: TaskKey, task_dir: TaskDir) -> None:
        for _ in range(ADOPT_TRIES_MAX):  # it may start, or end, while we look
            facts = task_dir.facts()
            if not facts.started and facts.ended is None and task_dir.void():
                kernel.kill_cgroups(
                    self._preparation.cgroups_of(key)
                )  # a build may have outlived its agent for a moment
                self._preparation.clear(key)
                self._throw_away(task_dir.path)
                return
            lock_held = task_dir.lock_held()
            found = standing(key, facts if lock_held else task_dir.facts(), lock_held=lock_held, now=self._clock.now())
            if isinstance(found, TaskEnded):
                self._conclude(key, task_dir, found, facts.running.started if facts.running is not None else None)
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
        self._content.reclaim(key, task_dir)
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
            self._conclude(key, live.task_dir, live.end.message(key), live.started_at)
            return
        found = standing(key, facts, lock_held=False, now=self._clock.now())
        if not isinstance(found, TaskEnded):
            words = kernel.read_text(str(live.task_dir.path / "supervisor.err")).strip().splitlines()
            detail = f"E0307 its supervisor did not start: {words[-1] if words else 'no reason given'}"
            found = TaskEnded(key=key, reason=ExitReason.NOT_STARTED, at=self._clock.now(), detail=detail)
        self._conclude(key, live.task_dir, found, live.started_at)

    def _conclude(self, key: TaskKey, task_dir: TaskDir, end: TaskEnded, started_at: datetime | None = None) -> None:
        """Whatever the end was: nothing of the task goes on, and the end is on disk before it is reported."""
        if end.reason is ExitReason.LOST:
            kernel.kill_cgroups(self._preparation.cgroups_of(key))
            for pid in kernel.processes_with_env(f"{name}={value}".encode() for name, value in identity(key).items()):
                kernel.kill_process(pid, signal.SIGKILL)
        if not (task_dir.path / "ended.json").exists():
            with contextlib.suppress(OSError):  # a full disk; the hub hears of it all the same
                task_dir.write_end(end)
        self._preparation.clear(key)
        self._content.release(key)
        self._uploads.report_end(task_dir, end, started_at)

    def _report_end(self, task_dir: TaskDir, end: TaskEnded) -> None:
        self._scrubber.report_end(task_dir, end, running=self._with_folders)

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
        self._trash.throw_away(folder)


def _cannot_prepare(error: OSError) -> str:
    return f"{'E1002' if error.errno == errno.ENOSPC else 'E0307'} it could not be prepared: {error}"


def _send(pidfd: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)
