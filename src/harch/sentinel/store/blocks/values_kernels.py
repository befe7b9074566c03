"""How does a column of floats become few bytes? As decimal integers where every bit survives that, else as their bits.

Monitoring values are mostly counts and short decimals: 41.7 is 417 / 10. The smallest power of ten is used that gives
back the very bits of (nearly) all values; those it cannot give back (NaNs, stale markers, infinities, -0.0) are
exceptions, written out. Then the greatest common step is divided out, since memory grows by pages and not by bytes. A
column that is not decimal goes the same way with its bits as integers: neighbours share their upper ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel
from harch.sentinel.store.blocks.bytes_kernels import (
    BROKEN,
    Bytes,
    Int,
    Words,
    get_varint,
    put_varint,
    unzigzag,
    zigzag,
)
from harch.sentinel.store.blocks.integers_kernels import decode_integers, encode_integers, integers_room

Floats = npt.NDArray[np.float64]

_BITS = 255  # the form of a column whose integers are the floats' own bits
_EXPONENTS = 18
_POWERS = np.array([float(f"1e{exponent}") for exponent in range(_EXPONENTS)])
_LARGEST = 2.0**53  # integers below are exact in a float
_FAR = np.int64(1) << np.int64(61)
_EXCEPTION_BYTES = 10
_WIDE_BYTES = 5  # decimals that take more than this each are compared with plain bits


@inner_kernel
def values_room(count: Int) -> Int:
    """How many bytes does a column of so many values take at most, with the room that choosing takes?"""
    return 2 * (integers_room(count) + (count // 8 + 1) * _EXCEPTION_BYTES + 64)


@inner_kernel
def encode_values(values: Floats, bits: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    """Writes a column and returns the place behind. `bits` is a view of `values`; `scratch` has room for 4 columns."""
    exponent = _decimal_exponent(values, bits, count)
    if exponent >= 0:
        decimal_end = _encode_decimal(values, bits, count, exponent, scratch, out, at)
        if decimal_end - at <= _WIDE_BYTES * count:
            return decimal_end
        bits_end = _encode_bits(bits, count, scratch, out, decimal_end)
        if bits_end - decimal_end >= decimal_end - at:
            return decimal_end
        for place in range(bits_end - decimal_end):
            out[at + place] = out[decimal_end + place]
        return at + bits_end - decimal_end
    return _encode_bits(bits, count, scratch, out, at)


@inner_kernel
def decode_values(data: Bytes, at: Int, end: Int, count: Int, values: Floats, bits: Words) -> Int:
    """Fills `values[:count]`, of which `bits` is a view, and returns the place behind the column, or BROKEN."""
    if at < 0 or at >= end or count < 0 or count > bits.size:
        return BROKEN
    form = np.int64(data[at])
    if form != _BITS and form >= _EXPONENTS:
        return BROKEN
    exceptions, at = get_varint(data, at + 1, end)
    if at == BROKEN or exceptions > np.uint64(count):
        return BROKEN
    exceptions_at = at
    for _ in range(np.int64(exceptions)):
        _distance, at = get_varint(data, at, end)
        if at == BROKEN or at + 8 > end:
            return BROKEN
        at += 8
    at = _decode_steps(data, at, end, count, bits)
    if at == BROKEN:
        return BROKEN
    if form == 0:
        for place in range(count):
            values[place] = np.float64(np.int64(bits[place]))
    elif form != _BITS:
        power = _POWERS[form]
        for place in range(count):
            values[place] = np.divide(np.float64(np.int64(bits[place])), power)
    if exceptions and not _place_exceptions(data, exceptions_at, end, np.int64(exceptions), count, bits):
        return BROKEN
    return at


@inner_kernel
def _place_exceptions(data: Bytes, at: Int, end: Int, exceptions: Int, count: Int, bits: Words) -> bool:
    place: Int = 0
    for _ in range(exceptions):
        distance, at = get_varint(data, at, end)
        if distance >= np.uint64(count - place):
            return False
        place += np.int64(distance)
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        bits[place] = word
        at += 8
    return True


@inner_kernel
def _is_decimal(value: float, bits: np.uint64, exponent: Int) -> bool:
    scaled = np.rint(value * _POWERS[exponent])
    if not abs(scaled) < _LARGEST:
        return False
    back = scaled / _POWERS[exponent]
    return back == value and (value != 0.0 or bits == np.uint64(0))


@inner_kernel
def _decimal_exponent(values: Floats, bits: Words, count: Int) -> Int:
    """The smallest exponent that serves all values but an eighth; -1 where there is none."""
    exponent, failed = 0, 0
    for place in range(count):
        if _is_decimal(values[place], bits[place], exponent):
            continue
        wanted = exponent + 1
        while wanted < _EXPONENTS and not _is_decimal(values[place], bits[place], wanted):
            wanted += 1
        if wanted < _EXPONENTS:
            exponent = wanted
        else:
            failed += 1
            if failed > count // 8:
                return -1
    failed = 0
    for place in range(count):  # a larger exponent may fail values that a smaller one served
        if not _is_decimal(values[place], bits[place], exponent):
            failed += 1
    return exponent if failed <= count // 8 else -1


@inner_kernel
def _encode_decimal(values: Floats, bits: Words, count: Int, exponent: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    exceptions = 0
    for place in range(count):
        if not _is_decimal(values[place], bits[place], exponent):
            exceptions += 1
    out[at] = np.uint8(exponent)
    at = put_varint(out, at + 1, np.uint64(exceptions))
    before, last = np.int64(0), 0
    for place in range(count):
        if exceptions and not _is_decimal(values[place], bits[place], exponent):
            at = put_varint(out, at, np.uint64(place - last))
            last = place
            for byte in range(8):
                out[at + byte] = np.uint8((bits[place] >> np.uint64(8 * byte)) & np.uint64(255))
            at += 8
        else:
            before = np.int64(np.rint(values[place] * _POWERS[exponent]))
        scratch[place] = np.uint64(before)
    return _encode_steps(scratch, count, scratch[count:], out, at)


@inner_kernel
def _encode_bits(bits: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    out[at] = np.uint8(_BITS)
    out[at + 1] = np.uint8(0)
    for place in range(count):
        scratch[place] = bits[place]
    return _encode_steps(scratch, count, scratch[count:], out, at + 2)


@inner_kernel
def _encode_steps(numbers: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    """`numbers` as origin + step * column. A step of 0 says that all are the origin, and no column follows."""
    origin = numbers[0] if count else np.uint64(0)
    step = _common_step(numbers, count, origin)
    at = put_varint(out, at, zigzag(origin))
    at = put_varint(out, at, np.uint64(step))
    if step == 0:
        return at
    for place in range(count):
        distance = np.int64(numbers[place] - origin)
        numbers[place] = np.uint64(distance if step == 1 else distance // step)
    return encode_integers(numbers, count, scratch, out, at)


@inner_kernel
def _decode_steps(data: Bytes, at: Int, end: Int, count: Int, numbers: Words) -> Int:
    number, at = get_varint(data, at, end)
    origin = unzigzag(number)
    step, at = get_varint(data, at, end)
    if at == BROKEN:
        return BROKEN
    if step == np.uint64(0):
        for place in range(count):
            numbers[place] = origin
        return at
    at = decode_integers(data, at, end, count, numbers)
    if at == BROKEN:
        return BROKEN
    if step == np.uint64(1):
        for place in range(count):
            numbers[place] += origin
    else:
        for place in range(count):
            numbers[place] = origin + step * numbers[place]
    return at


@inner_kernel
def _common_step(numbers: Words, count: Int, origin: np.uint64) -> np.int64:
    """The greatest common divisor of all distances from the origin; 0 where all are 0.

    Distances of bit patterns may span the whole 64 bits, where only powers of two divide them and their wrapped
    negatives alike: then the step is such a power.
    """
    step, every_bit = np.int64(0), np.uint64(0)
    for place in range(count):
        distance = np.int64(numbers[place] - origin)
        every_bit |= np.uint64(distance)
        if step != 1 and distance != 0:
            small = -_FAR < distance < _FAR
            other = abs(distance) if small else np.int64(1)
            while other:
                step, other = other, step % other
    if step == 1 and every_bit & np.uint64(1) == np.uint64(0) and every_bit != np.uint64(0):
        lowest = every_bit & (np.uint64(0) - every_bit)
        step = np.int64(min(lowest, np.uint64(_FAR)))
    return step
