"""Which places of a bitmap does a text set? Those of chosen grams, such that any text inside it chooses among the same.

Of every three neighbouring grams of six bytes the one with the smallest hash is chosen. A literal of eight bytes has
at least one such three of its own, wherever it stands in a line: its choice is in the bitmap of the lines too.
"""

from __future__ import annotations

import numpy as np

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import Array

GRAM, WINDOW = 6, 3
LITERAL_MIN = GRAM + WINDOW - 1

_KEPT = np.uint64((1 << (8 * GRAM)) - 1)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_AGAIN, _LOW = np.uint64(0x85EBCA6B), np.uint64(0xFFFFFFFF)
_HIGH, _EIGHT, _THREE, _SEVEN = np.uint64(32), np.uint64(8), np.uint64(3), np.uint64(7)
_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def choose_grams(data: Array, offsets: Array, out: Array) -> int:
    """Hashes of the chosen grams of all texts, some of them several times; returns how many. `out` has enough room."""
    count = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        if end - begin < LITERAL_MIN:
            continue
        gram, last = np.uint64(0), _NONE
        first = second = _NONE
        for at in range(begin, begin + GRAM - 1):
            gram = (gram << _EIGHT) | np.uint64(data[at])
        for at in range(begin + GRAM - 1, end):
            gram = ((gram << _EIGHT) | np.uint64(data[at])) & _KEPT
            found = (gram * _MIX) >> _HIGH
            if at - begin >= LITERAL_MIN - 1:
                least = min(min(first, second), found)
                if least != last:
                    last = least
                    out[count] = least
                    count += 1
            first, second = second, found
    return count


@inner_kernel
def _place(gram: np.uint64, size: int) -> np.uint64:
    """Chosen hashes are small ones, so they are mixed once more to fill the bitmap evenly."""
    mixed = (np.uint64(gram) * _AGAIN) & _LOW
    return (mixed * np.uint64(size * 8)) >> _HIGH


@kernel
def set_places(grams: Array, count: int, bits: Array) -> None:
    for number in range(count):
        place = _place(grams[number], len(bits))
        bits[place >> _THREE] |= np.uint8(1) << np.uint8(place & _SEVEN)


@kernel
def with_all(bits: Array, begins: Array, sizes: Array, grams: Array, out: Array) -> None:
    """Which of the bitmaps, one behind the other in `bits`, have the places of all these grams?"""
    for number in range(len(begins)):
        found = True
        for gram in grams:
            place = _place(gram, sizes[number])
            byte = bits[begins[number] + np.int64(place >> _THREE)]
            if (byte >> np.uint8(place & _SEVEN)) & np.uint8(1) == 0:
                found = False
                break
        out[number] = found
