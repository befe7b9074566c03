"""Where does the record of disclosures survive a restart? In one file, written before an answer goes out.

A record is its length, its checksum and its bytes. One that was cut off by a crash belongs to an answer that never left
and is dropped. Damage is put right with the guard beside the file, as in the logs of the store; where that cannot be,
nobody knows any more what was disclosed, so nothing is disclosed until an operator has looked at it.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np

from harch.base.errors import HarchError
from harch.base.state_files import SUFFIX
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.wal.salvage import GuardWriter, SegmentGuard, guard_path, read_guard

REWRITE_BYTES = 16 << 20  # a file that has grown so large is written anew, without what is forgotten
RECORD_BYTES_MAX = 256 << 20
_HEAD = struct.Struct("<II")

_log = logging.getLogger("harch.damage")


class MemoryFile:
    """Opens or makes the file. Raises E0698 if it is damaged or cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.memory = Memory()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            raw = path.read_bytes() if path.exists() else b""
            content = _restored(path, raw)
            sound = self._replay(content)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if content != raw:
                path.with_name(f"{path.name}{SUFFIX}").write_bytes(raw)
                os.pwrite(self._file, content, 0)
                os.fdatasync(self._file)
                _log.error("E0698: %s was damaged and has been repaired", path)
            os.ftruncate(self._file, sound)
            os.lseek(self._file, sound, os.SEEK_SET)
            self._guard = _guard_of(path, content[:sound])
        except OSError as problem:
            raise _unusable(path, problem.strerror or str(problem)) from problem
        self._size, self._torn = sound, False

    def keep(self) -> None:
        """Writes down what was disclosed since the last call. Raises E0698; then the answer must not go out."""
        records = self.memory.take_records()
        if not records and not self._torn:
            return
        try:
            if self._torn or self._size > REWRITE_BYTES:
                self._rewrite()
            else:
                body = self._append(self._file, records)
                self._guard.cover([body], self._size)
                self._size += len(body)
            self._torn = False
        except OSError as problem:
            self._torn = True  # nobody knows how much of it is on disk: the next one writes everything anew
            raise _unusable(self._path, problem.strerror or str(problem)) from problem

    def close(self) -> None:
        os.close(self._file)
        self._guard.close()

    def _replay(self, raw: bytes) -> int:
        """How many bytes are whole records."""
        at = 0
        while (end := _record_end(raw, at)) > 0:
            try:
                self.memory.replay(raw[at + _HEAD.size : end])
            except msgspec.DecodeError as problem:
                raise _unusable(self._path, f"not readable at byte {at}: {problem}") from problem
            at = end
        return at

    def _append(self, file: int, records: bytes) -> bytes:
        body = _HEAD.pack(len(records), zlib.crc32(records)) + records
        left = memoryview(body)
        while left:
            left = left[os.write(file, left) :]
        os.fdatasync(file)
        return body

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            body = self._append(file, self.memory.dump())
            guard_path(self._path).unlink(missing_ok=True)  # before: that of the old file would tell of a loss
            fresh.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            guard = _guard_of(self._path, body)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._guard.close()
        self._file, self._guard, self._size = file, guard, len(body)


def _restored(path: Path, raw: bytes) -> bytes:
    """The file as it was written. Raises E0698 where that cannot be had."""
    guard = read_guard(path)
    synced = guard.synced_bytes if guard else 0
    data = np.zeros(max(len(raw), synced), np.uint8)
    data[: len(raw)] = np.frombuffer(raw, np.uint8)
    at = 0
    while at < len(data):
        end = _record_end(data.data, at)
        if end < 0 and at < synced and guard is not None and _restore(guard, data, at):
            end = _record_end(data.data, at)
        if end < 0 and (at < synced or not _is_torn(data, at)):
            raise _unusable(path, f"damaged at byte {at}")
        if end < 0:
            return data[: len(raw)].tobytes()
        at = end
    return data.tobytes()


def _restore(guard: SegmentGuard, data: Array, at: int) -> bool:
    size = _HEAD.unpack_from(data, at)[0] if at + _HEAD.size <= len(data) else 0
    end = min(at + _HEAD.size + size, len(data))
    return guard.restore(data, at, end, lambda: _record_end(data.data, at) > 0)


def _record_end(raw: bytes | memoryview, at: int) -> int:
    """Where the record that begins here ends; -1 if it is not whole."""
    if at + _HEAD.size > len(raw):
        return -1
    size, checksum = _HEAD.unpack_from(raw, at)
    end = at + _HEAD.size + int(size)
    if not 0 < size <= RECORD_BYTES_MAX or end > len(raw) or zlib.crc32(raw[at + _HEAD.size : end]) != checksum:
        return -1
    return end


def _is_torn(data: Array, at: int) -> bool:
    """Whether a crash can have left this at the end: shorter than it says, or empty."""
    if at + _HEAD.size > len(data):
        return True
    size, _ = _HEAD.unpack_from(data, at)
    return bool(at + _HEAD.size + size > len(data)) if size else not data[at:].any()


def _guard_of(path: Path, content: bytes) -> GuardWriter:
    guard = GuardWriter(path)
    guard.cover([content], 0)
    return guard


def _unusable(path: Path, why: str) -> HarchError:
    return HarchError(
        "E0698",
        f"{path} cannot be used: {why}",
        hint="without it, other countries get no answers; if its loss is acceptable, move it away and restart SENTINEL",
    )
