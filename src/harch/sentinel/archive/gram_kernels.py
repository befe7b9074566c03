"""Which places of a bitmap does a text set? Those of chosen grams, such that any text inside it chooses among the same.

Of every five neighbouring grams of six bytes the one with the smallest hash is chosen. A literal of ten bytes or more
has at least one such five of its own, wherever it stands in a line: its choice is in the bitmap of the lines too.
"""

from __future__ import annotations

import numpy as np

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import Array

GRAM, WINDOW = 6, 5
LITERAL_MIN = GRAM + WINDOW - 1

_KEPT = np.uint64((1 << (8 * GRAM)) - 1)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HIGH, _EIGHT, _THREE, _SEVEN = np.uint64(32), np.uint64(8), np.uint64(3), np.uint64(7)
_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def set_grams(data: Array, offsets: Array, bits: Array) -> None:
    """Sets the places of all texts. The bitmap's size is a power of two."""
    mask = np.uint64(len(bits) * 8 - 1)
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        if end - begin < LITERAL_MIN:
            continue
        gram, last = np.uint64(0), _NONE
        first = second = third = fourth = _NONE
        for at in range(begin, end):
            gram = ((gram << _EIGHT) | np.uint64(data[at])) & _KEPT
            if at - begin < GRAM - 1:
                continue
            found = (gram * _MIX) >> _HIGH
            if at - begin >= LITERAL_MIN - 1:
                least = min(min(first, second), min(min(third, fourth), found))
                if least != last:
                    last = least
                    place = least & mask
                    bits[place >> _THREE] |= np.uint8(1) << np.uint8(place & _SEVEN)
            first, second, third, fourth = second, third, fourth, found


@kernel
def grams_of(data: Array, out: Array) -> int:
    """The chosen hashes of one text of at least LITERAL_MIN bytes; returns how many."""
    gram, last = np.uint64(0), _NONE
    first = second = third = fourth = _NONE
    count = 0
    for at in range(len(data)):
        gram = ((gram << _EIGHT) | np.uint64(data[at])) & _KEPT
        if at < GRAM - 1:
            continue
        found = (gram * _MIX) >> _HIGH
        if at >= LITERAL_MIN - 1:
            least = min(min(first, second), min(min(third, fourth), found))
            if least != last:
                last = least
                out[count] = least
                count += 1
        first, second, third, fourth = second, third, fourth, found
    return count


@inner_kernel
def _has(bits: Array, begin: int, size: int, place: np.uint64) -> bool:
    place &= np.uint64(size * 8 - 1)
    return bool((bits[begin + np.int64(place >> _THREE)] >> np.uint8(place & _SEVEN)) & np.uint8(1))


@kernel
def with_all(bits: Array, begins: Array, sizes: Array, grams: Array, out: Array) -> None:
    """Which of the bitmaps, one behind the other in `bits`, have all of these places?"""
    for number in range(len(begins)):
        found = True
        for gram in grams:
            if not _has(bits, begins[number], sizes[number], gram):
                found = False
                break
        out[number] = found
