"""How are numbers written as bytes? Varints that refuse to run past their end; the pieces of all other codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from harch.sentinel.compiled import inner_kernel

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
