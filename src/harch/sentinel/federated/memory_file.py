"""Where does the memory of what was told abroad survive a restart? In one file, written before an answer goes out.

A record is its length, its checksum and its bytes. One that was cut off by a crash belongs to an answer that never left
and is dropped; damage anywhere else means that nobody knows any more what was told, so nothing is told abroad until an
operator has looked at it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.owning.memory import Memory

REWRITE_BYTES = 16 << 20  # a file that has grown so large is written anew, without what is forgotten
RECORD_BYTES_MAX = 256 << 20
_HEAD = struct.Struct("<II")


class MemoryFile:
    """Opens or makes the file. Raises E0698 if it is damaged or cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.memory = Memory()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            raw = path.read_bytes() if path.exists() else b""
            sound = self._replay(raw)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, sound)
            os.lseek(self._file, sound, os.SEEK_SET)
        except OSError as problem:
            raise _unusable(path, problem.strerror or str(problem)) from problem
        self._size, self._torn = sound, False

    def keep(self) -> None:
        """Writes down what was told since the last call. Raises E0698; then the answer must not go out."""
        records = self.memory.take_records()
        if not records and not self._torn:
            return
        try:
            if self._torn or self._size > REWRITE_BYTES:
                self._rewrite()
            else:
                self._append(self._file, records)
                self._size += _HEAD.size + len(records)
            self._torn = False
        except OSError as problem:
            self._torn = True  # nobody knows how much of it is on disk: the next one writes everything anew
            raise _unusable(self._path, problem.strerror or str(problem)) from problem

    def close(self) -> None:
        os.close(self._file)

    def _replay(self, raw: bytes) -> int:
        """How many bytes are whole records."""
        at = 0
        while at + _HEAD.size <= len(raw):
            size, checksum = _HEAD.unpack_from(raw, at)
            body = raw[at + _HEAD.size : at + _HEAD.size + size]
            if len(body) < size:
                break  # the last one, cut off
            if size > RECORD_BYTES_MAX or zlib.crc32(body) != checksum:
                if at + _HEAD.size + size == len(raw):
                    break  # the last one, half of it on disk
                raise _unusable(self._path, f"damaged at byte {at}")
            try:
                self.memory.replay(body)
            except msgspec.DecodeError as problem:
                raise _unusable(self._path, f"not readable at byte {at}: {problem}") from problem
            at += _HEAD.size + size
        return at

    def _append(self, file: int, records: bytes) -> None:
        body = _HEAD.pack(len(records), zlib.crc32(records)) + records
        while body:
            body = body[os.write(file, body) :]
        os.fdatasync(file)

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            dump = self.memory.dump()
            self._append(file, dump)
            fresh.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size = file, _HEAD.size + len(dump)


def _unusable(path: Path, why: str) -> HarchError:
    return HarchError(
        "E0698",
        f"{path} cannot be used: {why}",
        hint="nothing is told abroad without it; if its loss is acceptable, move it away and start SENTINEL again",
    )
