"""What does the log ask of a disk? Bytes at a place of a file, durable on return. Tests use a full one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from harch.sentinel.store.wal.segments import sync_folder


class Disk(Protocol):
    def open(self, path: Path) -> int:
        """A new, empty file, whose name is durable."""
        ...

    def write(self, file: int, parts: list[memoryview | bytes], offset: int) -> None:
        """Writes all parts one behind the other and makes them durable. Raises OSError where it cannot."""
        ...

    def shorten(self, file: int, size: int) -> None: ...

    def close(self, file: int) -> None: ...


class SystemDisk:
    def open(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            sync_folder(path.parent)
        except OSError:
            os.close(file)
            raise
        return file

    def write(self, file: int, parts: list[memoryview | bytes], offset: int) -> None:
        waiting = [memoryview(part) for part in parts]
        while waiting:
            written = os.pwritev(file, waiting[:64], offset)
            offset += written
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:
                waiting[0] = waiting[0][written:]
        os.fdatasync(file)

    def shorten(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)
