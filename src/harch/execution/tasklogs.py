"""Whose output is still kept? Logs of running, ended and forgotten tasks, with a limit on the last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harch.execution.preparation import StateFolder
from harch.execution.protocol import TaskKey
from harch.execution.spool import read_spool
from harch.execution.taskdir import folder_name

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

    def read(self, key: TaskKey, offset: int, bytes_max: int) -> tuple[int, bytes, int]:
        """(offset of the data, data, offset of the log's end so far)."""
        name = folder_name(key)
        folder = self._state.logs / name if name in self._kept else self._state.tasks / name / "log"
        return read_spool(str(folder), offset, max(0, min(bytes_max, READ_BYTES_MAX)))


def _folder_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))
