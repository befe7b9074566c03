"""How are numbers written as bytes?

Varints that refuse to run over the end; numbers of one width in planes: all lowest bytes, all second bytes, then the
bits left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from harch.sentinel.jit import inner_kernel

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Int = int | np.signedinteger[Any]  # kernels know only the second, their tests also call with the first

BROKEN = -1  # what decoders answer in place of a position: these bytes were never written by the encoder
LONGEST_VARINT = 10

_ONE, _SEVEN, _LOW = np.uint64(1), np.uint64(7), np.uint64(127)


@inner_kernel
def put_varint(out: Bytes, at: Int, number: np.uint64) -> Int:
    """Writes seven bits a byte, lowest first, and returns the place behind."""
    while number > _LOW:
        out[at] = np.uint8(number & _LOW) | np.uint8(128)
        number >>= _SEVEN
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@inner_kernel
def get_varint(data: Bytes, at: Int, end: Int) -> tuple[np.uint64, Int]:
    """The number at a place and the place behind it, which is BROKEN where the number does not end in time."""
    number = np.uint64(0)
    for step in range(LONGEST_VARINT):
        if at < 0 or at >= end:
            return np.uint64(0), BROKEN
        byte = np.uint64(data[at])
        number |= (byte & _LOW) << np.uint64(7 * step)
        at += 1
        if byte <= _LOW:
            return number, at
    return np.uint64(0), BROKEN


@inner_kernel
def zigzag(number: np.uint64) -> np.uint64:
    """Signed numbers near zero (in two's complement) as small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    sign = np.uint64(0) - (number >> np.uint64(63))
    return (number << _ONE) ^ sign


@inner_kernel
def unzigzag(number: np.uint64) -> np.uint64:
    return (number >> _ONE) ^ (np.uint64(0) - (number & _ONE))


def _leading_zeros_code(_context: Any, number: Any) -> Any:
    """The processor's own instruction; Numba knows no function for it."""

    def code(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), code


_leading_zeros: Any = intrinsic(_leading_zeros_code)


@inner_kernel
def bit_length(number: np.uint64) -> Int:
    """How many bits does it need? 0 for 0."""
    return np.int64(64) - np.int64(_leading_zeros(number))


# How do numbers of one width lie in bytes? In planes: all lowest bytes, all second bytes, then the bits that are left.
#
# Loops over a plane run on vector units, and zstd finds what is alike in it. Numbers that need more bits than the width
# are patched: a list of distances and upper bits stands before the planes.


_U0, _U1 = np.uint64(0), np.uint64(1)
_BYTE = np.uint64(255)


@inner_kernel
def is_width(width: Int) -> bool:
    return width % 8 in (0, 1, 2, 4)


@inner_kernel
def put_planes(packed: Words, start: Int, count: Int, width: Int, out: Bytes, at: Int) -> Int:
    """Patches first (how many; then distance and upper bits of each), then byte planes, then the narrow plane."""
    patches = 0
    if width < 64:
        for place in range(start, count):
            if packed[place] >> np.uint64(width):
                patches += 1
    at = put_varint(out, at, np.uint64(patches))
    if patches:
        last: Int = start
        for place in range(start, count):
            upper = packed[place] >> np.uint64(width)
            if upper:
                at = put_varint(out, at, np.uint64(place - last))
                at = put_varint(out, at, upper)
                last = place
    for plane in range(width // 8):
        for place in range(start, count):
            out[at + place - start] = np.uint8((packed[place] >> np.uint64(8 * plane)) & _BYTE)
        at += count - start
    narrow = width % 8
    if narrow:
        shift, mask = np.uint64(width - narrow), (_U1 << np.uint64(narrow)) - _U1
        each = 8 // narrow
        size = (count - start + each - 1) // each
        for byte in range(size):
            together = _U0
            for part in range(each):  # value `part * size + byte`: runs of neighbours stay in runs of bytes
                source = start + part * size + byte
                if source < count:
                    together |= ((packed[source] >> shift) & mask) << np.uint64(part * narrow)
            out[at + byte] = np.uint8(together)
        at += size
    return at


@inner_kernel
def get_planes(data: Bytes, at: Int, end: Int, start: Int, count: Int, width: Int, numbers: Words) -> Int:
    patches, at = get_varint(data, at, end)
    if at == BROKEN or patches > np.uint64(count - start) or (patches and width == 64) or not is_width(width):
        return BROKEN
    first_patch = at
    for _ in range(2 * np.int64(patches)):
        _number, at = get_varint(data, at, end)
        if at == BROKEN:
            return BROKEN
    narrow, total = width % 8, count - start
    each = 8 // narrow if narrow else 1
    size = (total + each - 1) // each if narrow else 0
    if at + (width // 8) * total + size > end:
        return BROKEN
    column = numbers[start:count]
    if width < 8:
        column[:] = _U0
    for plane in range(width // 8):
        shift, bytes_of_plane = np.uint64(8 * plane), data[at : at + total]
        if plane == 0:
            for place in range(total):
                column[place] = np.uint64(bytes_of_plane[place])
        else:
            for place in range(total):
                column[place] |= np.uint64(bytes_of_plane[place]) << shift
        at += total
    if narrow:
        shift, mask = np.uint64(width - narrow), np.uint64((1 << narrow) - 1)
        for part in range(each):
            moved, run = np.uint64(part * narrow), column[part * size : (part + 1) * size]
            bytes_of_plane = data[at : at + run.size]
            for place in range(run.size):
                run[place] |= ((np.uint64(bytes_of_plane[place]) >> moved) & mask) << shift
        at += size
    patched: Int = start
    patch_at = first_patch
    for _ in range(np.int64(patches)):
        distance, patch_at = get_varint(data, patch_at, end)
        upper, patch_at = get_varint(data, patch_at, end)
        if distance >= np.uint64(count - patched):
            return BROKEN
        patched += np.int64(distance)
        numbers[patched] |= upper << np.uint64(width)
    return at
