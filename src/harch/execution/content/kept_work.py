"""What is left of a task's working folder when the hub has its end? The folder, for a while, for people who want files.

STATE/work/WORKLOAD.ATTEMPT.RANK/: its time is that of the end. Oldest first out when there are too many, when they take
too much room, or after a day. What may not rest here never comes here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from harch.execution.content.cache import folder_bytes
from harch.execution.protocol import TaskKey
from harch.execution.taskdir import folder_name, key_of
from harch.execution.trash import Trash

FOLDERS_MAX = 200
AGE_S_MAX = 24 * 3600.0
_log = logging.getLogger(__name__)


class KeptWork:
    """From any thread."""

    def __init__(self, folder: Path, trash: Trash, now: Callable[[], datetime], *, bytes_max: int) -> None:
        self._folder, self._trash, self._now, self._bytes_max = folder, trash, now, bytes_max
        self._bytes: dict[str, int] = {}  # oldest first
        self._ended_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Finds what earlier agents have kept; how much room it takes is looked at in the background."""
        for entry in sorted(os.scandir(self._folder), key=lambda one: one.stat(follow_symlinks=False).st_mtime_ns):
            if key_of(entry.name) is None:
                self._trash.throw_away(Path(entry.path))
            else:
                self._ended_s[entry.name] = entry.stat(follow_symlinks=False).st_mtime
                self._bytes[entry.name] = 0
        self.make_room()
        self._measure_soon(list(self._bytes))

    def keep(self, key: TaskKey, work: Path) -> None:
        """Takes over a folder; an empty one is not worth it. Raises OSError."""
        name = folder_name(key)
        if not any(work.iterdir()):
            return
        target = self._folder / name
        work.rename(target)
        ended_s = self._now().timestamp()
        os.utime(target, (ended_s, ended_s))
        with self._lock:
            self._ended_s[name], self._bytes[name] = ended_s, 0
        self._measure_soon([name])

    def find(self, key: TaskKey) -> Path | None:
        self.make_room()
        with self._lock:
            name = folder_name(key)
            return self._folder / name if name in self._bytes else None

    def make_room(self) -> None:
        with self._lock:
            total, now_s = sum(self._bytes.values()), self._now().timestamp()
            for name in list(self._bytes):
                is_old = now_s - self._ended_s[name] > AGE_S_MAX
                if not is_old and total <= self._bytes_max and len(self._bytes) <= FOLDERS_MAX:
                    continue
                total -= self._bytes.pop(name)
                del self._ended_s[name]
                try:
                    self._trash.throw_away(self._folder / name)
                except OSError as error:
                    _log.warning("%s cannot be removed: %s", self._folder / name, error)

    def _measure_soon(self, names: list[str]) -> None:
        """In a thread: a task may have left a hundred thousand files."""
        if names:
            threading.Thread(target=self._measure, args=(names,), daemon=True, name="harch-kept-work").start()

    def _measure(self, names: list[str]) -> None:
        for name in names:
            size = folder_bytes(self._folder / name)
            with self._lock:
                if name in self._bytes:
                    self._bytes[name] = size
        self.make_room()
