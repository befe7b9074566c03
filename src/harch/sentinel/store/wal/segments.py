"""Which files make up the log? Segments, numbered in the order of writing; each can be read without the others."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from harch.sentinel.store.checksum import crc32c

MAGIC = b"HSWAL\x00\x00\x01"
_FRAME = struct.Struct("<II")  # bytes of the payload, its CRC-32C
_SUFFIX = ".log"


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{_SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    names = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(int(name) for name in names if name.isdigit())


def frame(payload: memoryview) -> bytes:
    """The head that stands before a payload."""
    return _FRAME.pack(len(payload), crc32c(payload))


def frames(data: memoryview) -> Iterator[tuple[int, int]]:
    """Start and end of each payload that is whole; ends at the first that is not."""
    offset = len(MAGIC)
    if bytes(data[:offset]) != MAGIC:
        return
    while offset + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, offset)
        start = offset + _FRAME.size
        if length == 0 or length > len(data) - start or crc32c(data[start : start + length]) != checksum:
            return
        offset = start + length
        yield start, offset


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable: a new file whose name is lost is lost."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
