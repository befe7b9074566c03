"""What does the write-ahead log of a SQLite database hold, and is it as SQLite wrote it? Pure: bytes in, findings out.

SQLite ends at the first frame whose checksum is wrong and drops all that follows without a word, since it cannot tell a
torn end from damage. Here damage is told apart, and a single flipped bit is found mostly: the checksum is linear, so
nearly each bit makes a difference of its own. The format is documented and has not changed since SQLite 3.7.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Sum = tuple[int, int]

_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, number of checkpoints, two salts, two checksums
_FRAME = struct.Struct(">IIIIII")  # page, pages of the database if it commits, two salts, two checksums
_MAGIC = 0x377F0682  # the lowest bit says in which order the checksum reads words
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


def frame_pages(data: bytes, page_size: int) -> dict[int, bytes]:
    """The last content of each page in these frames, which are sound; `data` begins with the first of them."""
    size = _FRAME.size + page_size
    found: dict[int, bytes] = {}
    for at in range(0, len(data) - size + 1, size):
        (page,) = struct.unpack_from(">I", data, at)
        found[page] = data[at + _FRAME.size : at + size]
    return found


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
    if magic & ~1 != _MAGIC or not 512 <= page_size <= 65536 or page_size & (page_size - 1):
        return False
    words = np.frombuffer(bytes(raw[:24]), ">u4" if magic & 1 else "<u4").astype(np.uint64)
    return _sum(words, (0, 0)) == struct.unpack_from(">II", raw, 24)
