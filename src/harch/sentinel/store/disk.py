"""How do blocks reach the disk, and are they what was written?

Through few operations, so that a test can stop the power between any two; with CRC-32C by the processor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from harch.base.errors import HarchError


class FileSystem:
    """The real one. Every method is one operation that the system does or does not do."""

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> BinaryIO:
        return path.open("xb", buffering=0)

    def write(self, file: BinaryIO, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]

    def sync(self, file: BinaryIO) -> None:
        """What was written to the file is on the medium; the file is closed."""
        os.fsync(file.fileno())
        file.close()

    def sync_folder(self, path: Path) -> None:
        """What was created, renamed or removed in the folder is on the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, to: Path) -> None:
        path.rename(to)

    def remove_file(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def free_bytes(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def write_file(disk: FileSystem, path: Path, data: bytes) -> None:
    """A new file, durable; its name is so after the folder is synced."""
    file = disk.create(path)
    try:
        disk.write(file, data)
        disk.sync(file)
    finally:
        file.close()


def remove_tree(disk: FileSystem, path: Path) -> None:
    """A folder with all that is in it."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(disk, entry)
        else:
            disk.remove_file(entry)
    disk.remove_folder(path)


# Is this what was written? CRC-32C by the processor's own instruction.


try:
    from crc32c import crc32c
except ImportError as missing:
    raise HarchError("E0601", "crc32c") from missing

__all__ = ["crc32c"]
