"""Was everything read that was acknowledged, and what stood where bytes are damaged? A small file beside each segment.

It says how many bytes of the segment are synced, and has their parity: of every MiB, block n of 4 KiB is folded into
lane n % 4 by exclusive or. So up to four blocks in a row can be computed from the others: a flipped bit, a bad sector
or a lost end costs nothing. It is written after the segment was synced, and not synced itself: after a power cut it may
say less than is true, never more, and what is computed from it counts only if its checksum is right.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.checksum import crc32c

BLOCK = 4096
LANES = 4
STRIPE_BLOCKS = 256
_STRIPE = BLOCK * STRIPE_BLOCKS
_SUFFIX = ".guard"
_MAGIC = b"HSGRD\x00\x00\x01"
_HEAD = struct.Struct("<8sQQ")  # magic, number of the segment, bytes that are synced; a CRC-32C of all three follows
_CHECK = struct.Struct("<I")
_PARITY_AT = BLOCK


def guard_path(segment: Path) -> Path:
    return segment.with_suffix(_SUFFIX)


def guarded_numbers(folder: Path) -> list[int]:
    names = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(int(name) for name in names if name.isdigit())


class GuardWriter:
    """Follows one segment while it grows. Raises OSError where the disk refuses; the segment is sound without it."""

    def __init__(self, segment: Path) -> None:
        self._number = _number(segment)
        self._stripe = 0
        self._parity = np.zeros((LANES, BLOCK), np.uint8)
        self._touched: set[int] = set()
        self._file = os.open(guard_path(segment), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._write_head(0)

    def cover(self, parts: Sequence[memoryview | bytes], offset: int) -> None:
        """These bytes of the segment, which begin where the last ones ended, are synced."""
        for part in parts:
            data = np.frombuffer(part, np.uint8)
            at = 0
            while at < len(data):
                stripe, within = divmod(offset, _STRIPE)
                if stripe != self._stripe:
                    self._write_parity()
                    self._stripe = stripe
                    self._parity[:] = 0
                block, place = divmod(within, BLOCK)
                length = min(BLOCK - place, len(data) - at)
                self._parity[block % LANES, place : place + length] ^= data[at : at + length]
                self._touched.add(block % LANES)
                at += length
                offset += length
        self._write_parity()
        self._write_head(offset)

    def close(self) -> None:
        os.close(self._file)

    def _write_head(self, synced: int) -> None:
        head = _HEAD.pack(_MAGIC, self._number, synced)
        os.pwrite(self._file, head + _CHECK.pack(crc32c(head)), 0)

    def _write_parity(self) -> None:
        for lane in self._touched:
            os.pwrite(self._file, self._parity[lane].data, _PARITY_AT + (self._stripe * LANES + lane) * BLOCK)
        self._touched.clear()


@dataclass(frozen=True, slots=True)
class Guard:
    """What is known of a segment beside itself."""

    synced_bytes: int
    parity: Array  # u8, by stripe, lane and place

    def restore(self, data: Array, at: int, end: int, is_sound: Callable[[], bool]) -> bool:
        """Puts damaged blocks right, in `data` itself, so that what begins `at` is sound; False if that cannot be.

        Looks for the damage between `at` and `end`. `data` has at least all bytes that are synced.
        """
        first, last = at // BLOCK, min(end, self.synced_bytes) // BLOCK
        wrong = self._wrong_lanes(data, first // STRIPE_BLOCKS, (last + LANES) // STRIPE_BLOCKS)
        for length in range(1, LANES + 1):  # the fewest first: a run beyond the damage would spoil what is sound
            for begin in range(first, last + 1):
                run = range(begin, begin + length)
                if not all(_lane_of(block) in wrong for block in run):
                    continue
                self._fold(data, run, wrong)
                if is_sound():
                    return True
                self._fold(data, run, wrong)
        return False

    def _wrong_lanes(self, data: Array, first: int, last: int) -> dict[tuple[int, int], Array]:
        """By stripe and lane: how its blocks together differ from its parity."""
        found: dict[tuple[int, int], Array] = {}
        for stripe in range(first, min(last + 1, len(self.parity))):
            blocks = np.zeros(_STRIPE, np.uint8)
            piece = data[stripe * _STRIPE : min((stripe + 1) * _STRIPE, self.synced_bytes)]
            blocks[: len(piece)] = piece
            folded = np.bitwise_xor.reduce(blocks.reshape(-1, LANES, BLOCK), axis=0) ^ self.parity[stripe]
            found.update({(stripe, lane): folded[lane] for lane in range(LANES) if folded[lane].any()})
        return found

    def _fold(self, data: Array, run: range, wrong: dict[tuple[int, int], Array]) -> None:
        """Changes the blocks so that their lanes are right. Doing it twice changes nothing."""
        for block in run:
            difference = wrong[_lane_of(block)]
            piece = data[block * BLOCK : min((block + 1) * BLOCK, self.synced_bytes)]
            piece ^= difference[: len(piece)]


def _lane_of(block: int) -> tuple[int, int]:
    """Its stripe, and the lane there."""
    return block // STRIPE_BLOCKS, block % LANES


def _number(segment: Path) -> int:
    """So that the guard of another segment is not taken for this one's."""
    return int(segment.stem) if segment.stem.isdigit() else crc32c(segment.stem.encode())


def is_damaged_guard(segment: Path) -> bool:
    """Whether there is one that cannot be read. A crash may leave one that is empty, or whose head is."""
    try:
        with guard_path(segment).open("rb") as file:
            return read_guard(segment) is None and any(file.read(_HEAD.size + _CHECK.size))
    except OSError:
        return False


def read_guard(segment: Path) -> Guard | None:
    """None: there is none, or it is damaged itself."""
    try:
        raw = guard_path(segment).read_bytes()
    except OSError:
        return None
    head = raw[: _HEAD.size]
    if len(raw) < _HEAD.size + _CHECK.size or _CHECK.unpack_from(raw, _HEAD.size)[0] != crc32c(head):
        return None
    magic, number, synced = _HEAD.unpack(head)
    if magic != _MAGIC or number != _number(segment):
        return None
    parity = np.frombuffer(raw[_PARITY_AT:], np.uint8)
    stripes = -(-synced // _STRIPE)
    whole = np.zeros(stripes * LANES * BLOCK, np.uint8)
    whole[: min(len(parity), len(whole))] = parity[: len(whole)]
    return Guard(synced, whole.reshape(stripes, LANES, BLOCK))
