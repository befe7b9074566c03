"""How do bytes lie in a file so that a flipped one is found? In pages with a checksum, compressed where that pays."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import cramjam
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PAGE_BYTES_MAX = 1 << 30  # of one page unpacked; no writer comes near it, a broken length would
_LEVEL = 3
_WORTH = 0.97  # a page that zstd shortens by less stays as it is: nothing to unpack when it is read


class Place(NamedTuple):
    """Where a page lies. Equal lengths say that it is not compressed."""

    offset: int
    stored: int
    raw: int
    checksum: int


class BrokenPage(Exception):
    """The bytes of a page are not those that were written; the message says how that shows."""


def pack(raw: bytes) -> bytes:
    """What to store of these bytes: compressed ones, or they themselves where that saves too little."""
    if len(raw) > PAGE_BYTES_MAX:
        raise ValueError(f"a page of {len(raw)} bytes")
    packed = bytes(cramjam.zstd.compress(raw, _LEVEL))
    return packed if len(packed) < _WORTH * len(raw) else raw


def place_of(stored: bytes, raw: bytes, offset: int) -> Place:
    return Place(offset, len(stored), len(raw), zlib.crc32(stored))


def unpack(file: memoryview, place: Place) -> Bytes:
    """The bytes of a page in an array of its own. Raises BrokenPage."""
    if place.offset < 0 or place.stored < 0 or place.offset + place.stored > len(file):
        raise BrokenPage("a page lies outside of its file")
    if not 0 <= place.raw <= PAGE_BYTES_MAX:
        raise BrokenPage("a page claims an impossible length")
    stored = file[place.offset : place.offset + place.stored]
    if zlib.crc32(stored) != place.checksum:
        raise BrokenPage("the checksum of a page is wrong")
    raw = np.empty(place.raw, np.uint8)
    if place.stored == place.raw:
        raw[:] = np.frombuffer(stored, np.uint8)
        return raw
    try:
        written = cramjam.zstd.decompress_into(stored, raw.data)
    except cramjam.DecompressionError as broken:
        raise BrokenPage("a page does not unpack") from broken
    if written != place.raw:
        raise BrokenPage("a page unpacks to another length")
    return raw
