"""Disks for tests: one that does not wait for the medium, one that shows what crashes could leave, a full one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from harch.sentinel.store.disk import FileSystem


class QuickDisk(FileSystem):
    """Believes that everything is synced: what is tested is what was called, and waiting for a medium takes long."""

    def sync(self, file: BinaryIO) -> None:
        file.close()

    def sync_folder(self, path: Path) -> None:
        pass


class PowerCut(BaseException):
    """Nothing runs after it, so nothing may catch it."""


class WatchedDisk(QuickDisk):
    """Calls `before_each` before every operation, and knows what is not synced at that moment."""

    def __init__(self, before_each: Callable[[], None]) -> None:
        self._before_each = before_each
        self._unsynced: dict[Path, BinaryIO] = {}
        self._renames: list[tuple[Path, Path]] = []
        self._replaced: dict[Path, bytes] = {}  # what a file held before another took its name

    def make_folder(self, path: Path) -> None:
        self._before_each()
        super().make_folder(path)

    def create(self, path: Path) -> BinaryIO:
        self._before_each()
        file = super().create(path)
        self._unsynced[path] = file
        return file

    def write(self, file: BinaryIO, data: bytes) -> None:
        self._before_each()
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        self._before_each()
        super().sync(file)
        self._unsynced = {path: other for path, other in self._unsynced.items() if other is not file}

    def sync_folder(self, path: Path) -> None:
        self._before_each()
        self._renames = [(old, new) for old, new in self._renames if new.parent != path]
        self._replaced = {new: data for new, data in self._replaced.items() if new.parent != path}

    def rename(self, path: Path, to: Path) -> None:
        self._before_each()
        self._renames.append((path, to))
        if to.is_file():
            self._replaced.setdefault(to, to.read_bytes())
        super().rename(path, to)

    def remove_file(self, path: Path) -> None:
        self._before_each()
        super().remove_file(path)

    def remove_folder(self, path: Path) -> None:
        self._before_each()
        super().remove_folder(path)

    def copy_of_a_crash(self, folder: Path, copy: Path, *, loses_unsynced: bool) -> None:
        """What a crash at this moment leaves of the folder; at worst without anything that was not synced."""
        shutil.copytree(folder, copy)
        if not loses_unsynced:
            return
        for path in self._unsynced:
            cut = copy / path.relative_to(folder)
            if cut.exists():
                cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        for old, new in reversed(self._renames):
            before, after = copy / old.relative_to(folder), copy / new.relative_to(folder)
            if after.exists() and not before.exists():
                after.rename(before)
        for path, data in self._replaced.items():
            (copy / path.relative_to(folder)).write_bytes(data)


def stopping_after(operations: int) -> WatchedDisk:
    """A disk whose power fails after so many operations."""
    left = iter(range(operations))

    def count() -> None:
        if next(left, None) is None:
            raise PowerCut

    return WatchedDisk(count)


class FullDisk(QuickDisk):
    """Takes `room` bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: BinaryIO, data: bytes) -> None:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data)
        super().write(file, data)

    def free_bytes(self, path: Path) -> int:
        return self.room
