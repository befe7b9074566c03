"""What does a task leave, and what becomes of that? Its log is kept; what may not rest here is scrubbed first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from harch.execution.agent import EngineEvents
from harch.execution.preparation import StateFolder
from harch.execution.protocol import TaskEnded, TaskKey
from harch.execution.spool import offset_since, read_spool
from harch.execution.taskdir import PREPARATION, TaskDir, folder_name
from harch.execution.trash import delete

log = logging.getLogger(__name__)

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
        folders = [task_dir.work, task_dir.content, task_dir.data]
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
        delete(folder)


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

    def read(
        self, key: TaskKey, offset: int, bytes_max: int, since_s: float | None, *, preparation: bool = False
    ) -> tuple[int, bytes, int]:
        """(offset of the data, data, offset of the log's end so far)."""
        name = folder_name(key)
        folder = self._state.logs / name if name in self._kept else self._state.tasks / name / "log"
        if preparation:
            folder /= PREPARATION
        if since_s is not None:
            offset = max(offset, offset_since(str(folder), since_s))
        return read_spool(str(folder), offset, max(0, min(bytes_max, READ_BYTES_MAX)))


def _folder_bytes(folder: Path) -> int:
    found = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(path).st_size for path in found)
