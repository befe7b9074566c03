"""Which files make up the log, and how are they written?

Segments, numbered in the order of writing; bytes at a place of a file are durable on return.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Protocol

from harch.sentinel.store.disk import crc32c

MAGIC = b"HSWAL\x00\x00\x01"
FRAME = struct.Struct("<II")  # bytes of the payload, its CRC-32C
_SUFFIX = ".log"


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{_SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    names = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(int(name) for name in names if name.isdigit())


def frame(payload: memoryview) -> bytes:
    """The head that stands before a payload."""
    return FRAME.pack(len(payload), crc32c(payload))


def frame_end(data: memoryview, offset: int) -> int:
    """Where the frame at this offset ends; -1 if none is there, or one that is not as it was written."""
    start = offset + FRAME.size
    if start > len(data):
        return -1
    length, checksum = FRAME.unpack_from(data, offset)
    if length == 0 or length > len(data) - start or crc32c(data[start : start + length]) != checksum:
        return -1
    return int(start + length)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a new file whose name is lost is lost."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What does the log ask of a disk? Bytes at a place of a file, durable on return. Tests use a full one.


class LogDisk(Protocol):
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
