"""When is the end of a task told whose results have to stay? When the hub has them, however long that takes.

The end is on disk already, and so is the working folder: an agent that comes after a crash goes on with the upload. A
task whose results are on their way counts as running. A stop gives the results up; the end of the agent does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.content.node import NodeContent
from harch.execution.protocol import KnownTask, TaskEnded, TaskKey
from harch.execution.taskdir import ArtifactsKept, TaskDir
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Artifact

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Upload:
    started_at: datetime | None
    cancellation: Cancellation = field(default_factory=Cancellation)


class ArtifactUploads:
    """Needs a running event loop, and is used from it only."""

    def __init__(self, content: NodeContent, report: Callable[[TaskDir, TaskEnded], None]) -> None:
        self._content, self._report = content, report
        self._loop = asyncio.get_running_loop()
        self._at_work: dict[TaskKey, _Upload] = {}

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._at_work

    def running(self) -> list[KnownTask]:
        return [KnownTask(key=key, running=True, started_at=one.started_at) for key, one in self._at_work.items()]

    def report_end(self, task_dir: TaskDir, end: TaskEnded, started_at: datetime | None) -> None:
        """At once, unless there is something to keep. What must be scrubbed is never kept."""
        is_clean = end.reason is ExitReason.EXITED and end.exit_code == 0 and end.key.rank == 0
        wanted = task_dir.artifacts_wanted() if is_clean and not task_dir.scrub_requested else ()
        kept = task_dir.artifacts_kept() if wanted else None
        if not wanted or kept is not None:
            self._report(task_dir, _with(end, kept or ArtifactsKept()))
            return
        spec = task_dir.launch_spec()
        work = Path(spec.cwd) if spec is not None else task_dir.work
        one = self._at_work[end.key] = _Upload(started_at)
        arguments = (one, task_dir, end, work, wanted)
        threading.Thread(target=self._keep, args=arguments, daemon=True, name="harch-artifacts").start()

    def stop(self, key: TaskKey) -> None:
        self._at_work[key].cancellation.cancel()

    def close(self) -> None:
        """Reports nothing: the next agent goes on."""
        tasks, self._at_work = self._at_work, {}
        for one in tasks.values():
            one.cancellation.cancel()

    def _keep(self, one: _Upload, task_dir: TaskDir, end: TaskEnded, work: Path, wanted: tuple[Artifact, ...]) -> None:
        try:
            kept = self._content.keep_artifacts(end.key, work, wanted, one.cancellation)
        except Cancelled:
            kept = _lost(wanted, "the task was stopped before it was kept")
        except Exception as error:
            log.exception("artifacts of task %s could not be kept", end.key)
            kept = _lost(wanted, f"E1113 {type(error).__name__}: {error}"[:300])
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            self._loop.call_soon_threadsafe(self._kept, one, task_dir, end, kept)

    def _kept(self, one: _Upload, task_dir: TaskDir, end: TaskEnded, kept: ArtifactsKept) -> None:
        if self._at_work.get(end.key) is not one:
            return
        with contextlib.suppress(OSError):  # a full disk; the next agent would upload what is missing, which is nothing
            task_dir.write_artifacts_kept(kept)
        del self._at_work[end.key]
        self._report(task_dir, _with(end, kept))


def _lost(wanted: tuple[Artifact, ...], why: str) -> ArtifactsKept:
    return ArtifactsKept(lost=tuple(f"{artifact.name}: {why}" for artifact in wanted))


def _with(end: TaskEnded, kept: ArtifactsKept) -> TaskEnded:
    return replace(end, artifacts=kept.artifacts, artifacts_lost=kept.lost)
