"""Where do the digests of a database's pages stand? In `NAME-sums`: records that are appended, and two small heads.

The head of the log's position is written after every commit and not synced; that of the records is. Records are
appended before their pages may change, and written anew, beside themselves, when they have become many.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from harch.base.sqlite_wal import WalPosition

DIGEST_BYTES = 8
_PIECE_BYTES = 2047  # hashlib keeps the interpreter for so many
UNKNOWN = bytes(DIGEST_BYTES)
_MAGIC = b"HDBSUM\x00\x01"
_POSITION = struct.Struct("<8s8sIIII16s")  # magic, salts, frames, of these in the database, checksum, boot
_STATE = struct.Struct("<8sIIQQQI")  # magic, page size, pages, time of change, begin and end of records, generation
_CRC = struct.Struct("<I")
_STATE_AT = 512
_RECORDS_AT = 4096
_RECORD = struct.Struct("<II")  # entries, checksum
_ENTRY = 4 + DIGEST_BYTES
_GROWTH_MIN = 1 << 20  # records are not written anew before they take so many bytes more than they need


def digest_of(content: bytes | bytearray) -> bytes:
    """In pieces: for more than that at once, hashlib lets other threads run and waits for its turn again.

    Thousands of pages are digested in a row: beside a busy thread that took seconds instead of 20 ms.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    with memoryview(content) as view:
        for at in range(0, len(view), _PIECE_BYTES):
            digest.update(view[at : at + _PIECE_BYTES])
    return digest.digest()


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


class SumsFile:
    """Held by every process that has the database open. `is_only_user`: nobody else has it."""

    def __init__(self, database: Path, boot: bytes) -> None:
        self.path = beside(database, "-sums")
        self.position, self.backfilled, self.boot = WalPosition(), 0, boot
        self.page_size = self.pages = self.mtime_ns = 0
        self.is_covering = False  # whether it has digests at all
        self.is_damaged = False
        self._own_boot = boot
        self._begin = self._end = _RECORDS_AT
        self._generation = 0
        self._digests = bytearray()
        database.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.is_only_user = self.is_last_user()
        if not self.is_only_user:
            self.share()
        self._load()

    def is_last_user(self) -> bool:
        """Takes the file for itself alone, if nobody else has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def share(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def digest(self, page: int) -> bytes:
        return bytes(self._digests[(page - 1) * DIGEST_BYTES : page * DIGEST_BYTES]) or UNKNOWN

    def begin(self, page_size: int, digests: dict[int, bytes], mtime_ns: int) -> None:
        """Forgets all that was there."""
        with self._locked():
            os.ftruncate(self._file, 0)
            self._begin = self._end = _RECORDS_AT
            self._generation += 1
            self._digests.clear()
            self.page_size, self.pages, self.mtime_ns = page_size, len(digests), mtime_ns
            self.is_covering, self.is_damaged = True, False
            self._put(digests)
            self._write_state()
            self.write_position(WalPosition(), 0, synced=True)

    def append(self, digests: dict[int, bytes]) -> None:
        """Durable on return."""
        with self._locked():
            self._read_state()
            self._put(digests)
            needed = len(self._digests) // DIGEST_BYTES * _ENTRY
            if self._end - self._begin > 2 * needed + _GROWTH_MIN:
                self._write_anew(needed)
            self._write_state()
            os.fdatasync(self._file)  # the records before: a state that names some that are not there is worth nothing

    def write_position(self, position: WalPosition, backfilled: int, *, synced: bool = False) -> None:
        body = _POSITION.pack(_MAGIC, position.salts, position.frames, backfilled, *position.checksum, self._own_boot)
        os.pwrite(self._file, body + _CRC.pack(zlib.crc32(body)), 0)
        if synced:
            os.fdatasync(self._file)

    def write_state(self, pages: int, mtime_ns: int) -> None:
        with self._locked():
            self._read_state()
            self.pages, self.mtime_ns = pages, mtime_ns
            self._write_state()

    def _put(self, digests: dict[int, bytes]) -> None:
        body = b"".join(page.to_bytes(4, "little") + digest for page, digest in digests.items())
        os.pwrite(self._file, _RECORD.pack(len(digests), zlib.crc32(body, self._generation)) + body, self._end)
        os.fdatasync(self._file)
        self._end += _RECORD.size + len(body)
        self._remember(digests)

    def _write_anew(self, needed: int) -> None:
        """One record of all digests: before the others if there is room, else behind them."""
        self._load_records()  # other processes may have added to them
        at = _RECORDS_AT if self._begin >= _RECORDS_AT + needed + _RECORD.size else self._end
        self._generation += 1
        self._begin = self._end = at
        count = len(self._digests) // DIGEST_BYTES
        self._put({page: self.digest(page) for page in range(1, count + 1)})
        if at == _RECORDS_AT:
            os.ftruncate(self._file, self._end)

    def _remember(self, digests: dict[int, bytes]) -> None:
        last = max(digests, default=0)
        if len(self._digests) < last * DIGEST_BYTES:
            self._digests.extend(bytes(last * DIGEST_BYTES - len(self._digests)))
        for page, digest in digests.items():
            self._digests[(page - 1) * DIGEST_BYTES : page * DIGEST_BYTES] = digest

    def _write_state(self) -> None:
        body = _STATE.pack(_MAGIC, self.page_size, self.pages, self.mtime_ns, self._begin, self._end, self._generation)
        os.pwrite(self._file, body + _CRC.pack(zlib.crc32(body)), _STATE_AT)

    def _load(self) -> None:
        if os.fstat(self._file).st_size == 0:
            return
        with self._locked():
            if not any(os.pread(self._file, _RECORDS_AT, 0)):
                return  # a crash came while the first digests were written
            head = self._read_head(_POSITION, 0)
            self.is_damaged = head is None or not self._read_state() or not self._load_records()
        if head is None or self.is_damaged:
            self._digests.clear()
            self.is_damaged = True
            return
        _, salts, frames, backfilled, first, second, self.boot = head
        if frames:
            self.position, self.backfilled = WalPosition(salts, frames, (first, second)), backfilled
        self.is_covering = True

    def _read_head(self, form: struct.Struct, at: int) -> tuple[Any, ...] | None:
        raw = os.pread(self._file, form.size + _CRC.size, at)
        if len(raw) < form.size + _CRC.size or _CRC.unpack_from(raw, form.size)[0] != zlib.crc32(raw[: form.size]):
            return None
        fields = form.unpack_from(raw)
        return fields if fields[0] == _MAGIC else None

    def _read_state(self) -> bool:
        """Another process may have written since."""
        state = self._read_head(_STATE, _STATE_AT)
        if state is not None:
            _, self.page_size, self.pages, self.mtime_ns, self._begin, self._end, self._generation = state
        return state is not None

    def _load_records(self) -> bool:
        raw = os.pread(self._file, self._end - self._begin, self._begin)
        at = 0
        while at + _RECORD.size <= len(raw):
            count, checksum = _RECORD.unpack_from(raw, at)
            body = raw[at + _RECORD.size : at + _RECORD.size + count * _ENTRY]
            if len(body) < count * _ENTRY or zlib.crc32(body, self._generation) != checksum:
                return False
            entries = (body[place : place + _ENTRY] for place in range(0, len(body), _ENTRY))
            self._remember({int.from_bytes(entry[:4], "little"): entry[4:] for entry in entries})
            at += _RECORD.size + len(body)
        return self._begin + at == self._end

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Several processes write here; each for a moment."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
