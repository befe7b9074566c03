"""Are the pages and the write-ahead log of a SQLite database as SQLite wrote them?

Digests of pages in `NAME-sums`, records that are appended and two small heads; and the frames of the log.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# What does the write-ahead log of a SQLite database hold, and is it as SQLite wrote it? Pure: bytes in, findings out.
#
# SQLite ends at the first frame whose checksum is wrong and drops all that follows without a word, since it cannot
# tell a
# torn end from damage. Here damage is told apart, and a single flipped bit is found mostly: the checksum is linear, so
# nearly each bit makes a difference of its own. The format is documented and has not changed since SQLite 3.7.


Words = npt.NDArray[np.uint64]
Sum = tuple[int, int]

_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, number of checkpoints, two salts, two checksums
_FRAME = struct.Struct(">IIIIII")  # page, pages of the database if it commits, two salts, two checksums
_WAL_MAGIC = 0x377F0682  # the lowest bit says in which order the checksum reads words
_MASK = np.uint64(0xFFFFFFFF)
_BITS = np.arange(32, dtype=np.uint64)
_INDEX_HEADER = struct.Struct("=IIIBBHIIIIII")  # of the shared memory beside the log; two checksums follow
_BACKFILL_AT = 96


@dataclass(frozen=True, slots=True)
class WalPosition:
    """How far a log is written: its last frame that commits, and that frame's checksum."""

    salts: bytes = b""
    frames: int = 0
    checksum: Sum = (0, 0)


@dataclass(slots=True)
class Wal:
    """What can be read of a log."""

    page_size: int
    salts: bytes
    committed: WalPosition
    pages: dict[int, int] = field(default_factory=dict)  # page -> where its last committed content begins
    page_count: int = 0  # of the database after the last commit
    repairs: list[tuple[int, bytes]] = field(default_factory=list)  # offset, and what has to stand there
    damaged_frame: int = 0  # the first that is not as it was written and cannot be put right; 0: none


def read_wal(data: bytes, expected: WalPosition | None = None) -> Wal | None:
    """None: there is no log, or its header is beyond repair. `expected` helps to tell damage from an end."""
    raw = bytearray(data)
    header_repair = _repair_header(raw)
    if header_repair is None:
        return None
    magic, _, page_size, _, _, _, first, second = _HEADER.unpack_from(raw)
    wal = Wal(page_size, bytes(raw[16:24]), WalPosition(bytes(raw[16:24])), repairs=header_repair)
    order = ">u4" if magic & 1 else "<u4"
    size = _FRAME.size + page_size
    state, waiting, number = (first, second), dict[int, int](), 0
    while (at := _HEADER.size + number * size) + size <= len(raw):
        following = _checked(raw, at, page_size, state, order, wal.salts)
        if following is None:
            following = _repair_frame(wal, raw, at, state, order, expected, number + 1)
        if following is None:
            break
        state = following
        number += 1
        page, commits = struct.unpack_from(">II", raw, at)
        waiting[page] = at + _FRAME.size
        if commits:
            wal.pages.update(waiting)
            waiting.clear()
            wal.page_count = commits
            wal.committed = WalPosition(wal.salts, number, state)
    return wal


def read_position(shared: bytes) -> tuple[WalPosition, int] | None:
    """What SQLite's shared memory says: how far the log is written, and how much of it is in the database by now.

    None while it is being changed."""
    first, second = shared[:48], shared[48:96]
    if len(shared) < _BACKFILL_AT + 4 or first != second or not first[12]:
        return None
    fields = _INDEX_HEADER.unpack_from(first)
    position = WalPosition(first[32:40], fields[6], (fields[8], fields[9]))
    return position, int(struct.unpack_from("=I", shared, _BACKFILL_AT)[0])


def page_count(shared: bytes) -> int:
    """How many pages the database has, with those in the log."""
    return int(struct.unpack_from("=I", shared, 20)[0])


def frame_pages(data: bytes, page_size: int, salts: bytes) -> dict[int, memoryview] | None:
    """The last content of each page in these frames, which are sound; `data` begins with the first of them.

    None: not all of them are of the log with these salts. It was begun anew meanwhile."""
    size = _FRAME.size + page_size
    count = len(data) // size
    heads = np.frombuffer(data, ">u4", count * size // 4).reshape(count, -1)
    if not (heads[:, 2:4] == np.frombuffer(salts, ">u4")).all():
        return None
    last = dict(zip(heads[:, 0].tolist(), range(_FRAME.size, count * size, size), strict=True))
    view = memoryview(data)
    return {page: view[at : at + page_size] for page, at in last.items()}


def frame_offset(page_size: int, number: int) -> int:
    """Where a frame begins; the first has number 1."""
    return _HEADER.size + (number - 1) * (_FRAME.size + page_size)


def _checked(raw: bytearray, at: int, page_size: int, state: Sum, order: str, salts: bytes) -> Sum | None:
    """The checksum behind a frame; None if it is not the next one of this log."""
    if raw[at + 8 : at + 16] != salts or not any(raw[at : at + 4]):
        return None
    found = _sum(_words(raw, at, page_size, order), state)
    return found if found == struct.unpack_from(">II", raw, at + 16) else None


def _repair_frame(
    wal: Wal, raw: bytearray, at: int, state: Sum, order: str, expected: WalPosition | None, number: int
) -> Sum | None:
    """Puts one flipped bit of a frame right. What comes after it, or what was expected, must prove it."""
    stored = struct.unpack_from(">II", raw, at + 16)
    words = _words(raw, at, wal.page_size, order)
    found = _sum(words, state)
    is_expected = expected is not None and expected.salts == wal.salts and number <= expected.frames
    if raw[at + 8 : at + 16] != wal.salts:
        if found != stored and not is_expected:
            return None  # of an earlier turn of the log: its end
        tries = [(at + 8, wal.salts)] if found == stored else []
    else:
        tries = _one_bit(words, found, stored, at, order)
        if (stored[0] ^ found[0]).bit_count() + (stored[1] ^ found[1]).bit_count() == 1:
            tries.append((at + 16, struct.pack(">II", *found)))
    if len(tries) > 1:  # the highest bits of words leave little trace in the sums: nobody can tell which it was
        tries = []
    for place, content in tries:
        before = bytes(raw[place : place + len(content)])
        raw[place : place + len(content)] = content
        following = _checked(raw, at, wal.page_size, state, order, wal.salts)
        if following is not None and _is_proven(wal, raw, at, following, order, expected, number):
            wal.repairs.append((place, content))
            return following
        raw[place : place + len(content)] = before
    wal.damaged_frame = number
    return None


def _is_proven(
    wal: Wal, raw: bytearray, at: int, state: Sum, order: str, expected: WalPosition | None, number: int
) -> bool:
    if expected is not None and expected.salts == wal.salts and expected.frames == number:
        return expected.checksum == state
    behind = at + _FRAME.size + wal.page_size
    if behind + _FRAME.size + wal.page_size > len(raw):
        return False
    return _checked(raw, behind, wal.page_size, state, order, wal.salts) is not None


def _one_bit(words: Words, found: Sum, stored: Sum, at: int, order: str) -> list[tuple[int, bytes]]:
    """Which bits of the page number, the commit mark or the page would explain the difference."""
    weights = _weights(len(words))
    flipped = _BITS[None, :]
    is_set = (words[:, None] >> flipped) & np.uint64(1)
    sign = np.where(is_set == 1, _MASK, np.uint64(1))  # clearing a bit takes away: times -1
    fits = np.ones((len(words), 32), bool)
    for place in range(2):
        difference = np.uint64((stored[place] - found[place]) & 0xFFFFFFFF)
        fits &= ((((weights[place][:, None] << flipped) & _MASK) * sign) & _MASK) == difference
    tries = []
    for word, bit in np.argwhere(fits).tolist():
        content = (int(words[word]) ^ (1 << bit)).to_bytes(4, "big" if order[0] == ">" else "little")
        tries.append((at + 4 * word if word < 2 else at + _FRAME.size + 4 * (word - 2), content))
    return tries


def _words(raw: bytearray, at: int, page_size: int, order: str) -> Words:
    """What a frame's checksum is over: the first eight bytes of its header, and the page."""
    covered = raw[at : at + 8] + raw[at + _FRAME.size : at + _FRAME.size + page_size]
    return np.frombuffer(covered, order).astype(np.uint64)


def _sum(words: Words, state: Sum) -> Sum:
    weights = _weights(len(words))
    first, second = _advanced(len(words) // 2, state)
    return (
        (first + int(((words * weights[0]) & _MASK).sum())) & 0xFFFFFFFF,
        (second + int(((words * weights[1]) & _MASK).sum())) & 0xFFFFFFFF,
    )


@cache
def _weights(count: int) -> tuple[Words, Words]:
    """How often each word is in the two sums: `a += x + b; b += y + a` for each pair of words."""
    first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    a, b = (1, 0), (0, 1)  # what is in the two sums of `a` and `b` as they are now, from the last pair backwards
    for pair in range(count // 2 - 1, -1, -1):
        # a' = a + b + x; b' = b + a' + y = a + 2b + x + y
        first[2 * pair], second[2 * pair] = (a[0] + b[0]) & 0xFFFFFFFF, (a[1] + b[1]) & 0xFFFFFFFF
        first[2 * pair + 1], second[2 * pair + 1] = b[0], b[1]
        a, b = (
            ((a[0] + b[0]) & 0xFFFFFFFF, (a[1] + b[1]) & 0xFFFFFFFF),
            ((a[0] + 2 * b[0]) & 0xFFFFFFFF, (a[1] + 2 * b[1]) & 0xFFFFFFFF),
        )
    return first, second


@cache
def _powers(pairs: int) -> tuple[int, int, int, int]:
    a, b, c, d = 1, 0, 0, 1  # a' = a + b; b' = a + 2b, so many times
    for _ in range(pairs):
        a, b, c, d = a + c, b + d, (a + 2 * c) & 0xFFFFFFFF, (b + 2 * d) & 0xFFFFFFFF
        a, b = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    return a, b, c, d


def _advanced(pairs: int, state: Sum) -> Sum:
    """The sums after so many pairs of zeros."""
    a, b, c, d = _powers(pairs)
    return (a * state[0] + b * state[1]) & 0xFFFFFFFF, (c * state[0] + d * state[1]) & 0xFFFFFFFF


def _repair_header(raw: bytearray) -> list[tuple[int, bytes]] | None:
    """What has to be changed so that the header is sound; None if nothing small would do."""
    if len(raw) < _HEADER.size:
        return None
    if _is_header(raw):
        return []
    for bit in range(8 * _HEADER.size):
        raw[bit // 8] ^= 1 << bit % 8
        if _is_header(raw):
            salts = raw[16:24]
            begin = _HEADER.size + 8
            if len(raw) < begin + 8 or raw[begin : begin + 8] == salts:
                return [(bit // 8, bytes(raw[bit // 8 : bit // 8 + 1]))]
        raw[bit // 8] ^= 1 << bit % 8
    return None


def _is_header(raw: bytearray) -> bool:
    magic, _, page_size, *_ = _HEADER.unpack_from(raw)
    if magic & ~1 != _WAL_MAGIC or not 512 <= page_size <= 65536 or page_size & (page_size - 1):
        return False
    words = np.frombuffer(bytes(raw[:24]), ">u4" if magic & 1 else "<u4").astype(np.uint64)
    return _sum(words, (0, 0)) == struct.unpack_from(">II", raw, 24)


# Where do the digests of a database's pages stand? In `NAME-sums`: records that are appended, and two small heads.
#
# The head of the log's position is written after every commit and not synced; that of the records is. Records are
# appended before their pages may change, and written anew, beside themselves, when they have become many.


DIGEST_BYTES = 8
_PIECE_BYTES = 2047  # hashlib keeps the interpreter for so many
UNKNOWN = bytes(DIGEST_BYTES)
_SUMS_MAGIC = b"HDBSUM\x00\x01"
_POSITION = struct.Struct("<8s8sIIII16s")  # magic, salts, frames, of these in the database, checksum, boot
_STATE = struct.Struct("<8sIIQQQI")  # magic, page size, pages, time of change, begin and end of records, generation
_CRC = struct.Struct("<I")
_STATE_AT = 512
_RECORDS_AT = 4096
_RECORD = struct.Struct("<II")  # entries, checksum
_ENTRY = 4 + DIGEST_BYTES
_GROWTH_MIN = 1 << 20  # records are not written anew before they take so many bytes more than they need


def digest_of(content: bytes | bytearray | memoryview) -> bytes:
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
        body = _POSITION.pack(
            _SUMS_MAGIC, position.salts, position.frames, backfilled, *position.checksum, self._own_boot
        )
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
        body = _STATE.pack(
            _SUMS_MAGIC, self.page_size, self.pages, self.mtime_ns, self._begin, self._end, self._generation
        )
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
        return fields if fields[0] == _SUMS_MAGIC else None

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
