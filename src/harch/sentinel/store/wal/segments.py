"""Which files make up the log? Segments, numbered in the order of writing; each can be read without the others."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from harch.sentinel.store.checksum import crc32c

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
