"""How is one chunk laid out? The number of samples, the length of the times, the times, the values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import kernel
from harch.sentinel.store.blocks.bytes_kernels import BROKEN, LONGEST_VARINT, Bytes, Int, Ints, get_varint, put_varint
from harch.sentinel.store.blocks.integers_kernels import decode_integers, encode_integers, integers_room
from harch.sentinel.store.blocks.values_kernels import decode_values, encode_values, values_room

Floats = npt.NDArray[np.float64]


@kernel
def encode_chunk(timestamps: Ints, values: Floats) -> Bytes:
    count = timestamps.size
    out = np.empty(integers_room(count) + values_room(count) + 2 * LONGEST_VARINT, np.uint8)
    scratch = np.empty(4 * count, np.uint64)
    times = np.empty(integers_room(count), np.uint8)
    size = encode_integers(timestamps.view(np.uint64), count, scratch, times, 0)
    at = put_varint(out, 0, np.uint64(count))
    at = put_varint(out, at, np.uint64(size))
    out[at : at + size] = times[:size]
    at = encode_values(values, values.view(np.uint64), count, scratch, out, at + size)
    return out[:at].copy()


@kernel
def chunk_count(data: Bytes) -> Int:
    """What a chunk says, if it can be: nobody shall allocate a lot because of one broken byte."""
    count, at = get_varint(data, 0, data.size)
    if at == BROKEN or count > np.uint64(1) << np.uint64(24):
        return BROKEN
    return np.int64(count)


@kernel
def decode_chunk(data: Bytes, timestamps: Ints, values: Floats) -> Int:
    """Fills the first places of both arrays; returns how many, or BROKEN."""
    number, at = get_varint(data, 0, data.size)
    size, at = get_varint(data, at, data.size)
    if at == BROKEN or size > np.uint64(data.size - at):
        return BROKEN
    if number > np.uint64(min(timestamps.size, values.size)):
        return BROKEN
    count, end = np.int64(number), at + np.int64(size)
    if decode_integers(data, at, end, count, timestamps.view(np.uint64)) != end:
        return BROKEN
    if decode_values(data, end, data.size, count, values, values.view(np.uint64)) != data.size:
        return BROKEN
    return count
