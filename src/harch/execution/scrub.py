"""How is what a task wrote made to go away? Working folder and checkpoints, before anybody hears that it has ended.

A folder that the node shares is not the agent's to delete, and the log stays: it is the record of what ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from harch.execution.engine import EngineEvents
from harch.execution.preparation import StateFolder
from harch.execution.protocol import TaskEnded, TaskKey
from harch.execution.taskdir import TaskDir

log = logging.getLogger(__name__)


class Scrubber:
    """Deletes in a thread, because a task may have left a hundred thousand files. Needs a running event loop."""

    def __init__(self, state: StateFolder, events: EngineEvents) -> None:
        self._state, self._events = state, events
        self._ordered: set[TaskKey] = set()
        self._loop = asyncio.get_running_loop()
        self.at_work: set[TaskKey] = set()  # ended, and not yet told

    def order(self, key: TaskKey, task_dir: TaskDir) -> None:
        """To be scrubbed when it ends; the file is for the next agent, should this one die first."""
        self._ordered.add(key)
        with contextlib.suppress(OSError):  # a full disk takes no file, and excuses nothing
            task_dir.write_scrub()

    def tell(self, task_dir: TaskDir, end: TaskEnded, *, running: Collection[TaskKey]) -> None:
        """Tells the end; of a task that must be scrubbed, once that is done."""
        if end.key not in self._ordered and not task_dir.scrub_asked:
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
