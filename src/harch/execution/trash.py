"""How is a folder deleted without waiting for it? Renamed at once, deleted by a thread: it may hold a million files."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path
from queue import SimpleQueue

PATH_CHARS_MAX = 2000  # the kernel takes twice as many; a task may have made folders that are deeper


class Trash:
    """Folders on their way out. What is left when the agent ends is deleted by the next one. From any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Path] = SimpleQueue()
        self._worker: threading.Thread | None = None

    def empty(self) -> None:
        """What an earlier agent has left."""
        for leftover in list(self._folder.iterdir()):
            self._delete_soon(leftover)

    def throw_away(self, folder: Path) -> None:
        """It is gone from its place on return. Raises OSError unless it was gone before."""
        with self._lock:
            self._count += 1
            target = self._folder / f"{self._count}-{os.getpid()}-{folder.name}"
        try:
            try:
                folder.rename(target)
            except PermissionError:  # a folder that is read-only cannot be moved
                folder.chmod(stat.S_IRWXU)
                folder.rename(target)
        except FileNotFoundError:
            return
        self._delete_soon(target)

    def _delete_soon(self, folder: Path) -> None:
        self._waiting.put(folder)
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, daemon=True, name="harch-trash")
                self._worker.start()

    def _work(self) -> None:
        while True:
            delete(self._waiting.get())


def delete(folder: Path) -> None:
    """All of it that can be deleted, however deep and however read-only. Links are deleted, never followed."""
    if folder.is_symlink() or not folder.is_dir():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    emptied, waiting = [], [str(folder)]
    while waiting:
        path = waiting.pop()
        emptied.append(path)
        with contextlib.suppress(OSError):
            os.chmod(path, stat.S_IRWXU)
            with os.scandir(path) as entries:
                waiting += [inner for entry in entries if (inner := _unlinked(entry, folder, len(waiting)))]
    for path in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _unlinked(entry: os.DirEntry[str], top: Path, number: int) -> str:
    """Deletes what is no folder; of a folder, gives its path, which is another one if it was too long."""
    with contextlib.suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            return ""
        if len(entry.path) > PATH_CHARS_MAX:
            nearer = f"{top}/{number}-{entry.inode()}"
            os.chmod(entry.path, stat.S_IRWXU)
            os.rename(entry.path, nearer)
            return nearer
        return entry.path
    return ""
