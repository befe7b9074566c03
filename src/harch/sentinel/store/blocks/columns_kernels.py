"""How are many columns, or one chunk of a series, encoded and decoded in one call?

Flat arrays in, one array of bytes out, and back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import kernel
from harch.sentinel.store.blocks.bytes_kernels import BROKEN, Bytes, Int, Ints
from harch.sentinel.store.blocks.number_kernels import (
    decode_integers,
    decode_values,
    encode_integers,
    encode_values,
    integers_room,
    values_room,
)

Floats = npt.NDArray[np.float64]


@kernel
def encode_value_columns(values: Floats, first: Ints, count: Ints) -> tuple[Bytes, Ints]:
    """Columns `values[first[i] : first[i] + count[i]]`; the second array says where each one starts and the last ends.

    Empty columns take no bytes.
    """
    longest = count.max() if count.size else 0
    words = values.view(np.uint64)
    scratch = np.empty(4 * longest, np.uint64)
    single = np.empty(values_room(longest), np.uint8)
    out = np.empty(1024, np.uint8)
    places = np.zeros(count.size + 1, np.int64)
    at: Int = 0
    for column in range(count.size):
        begin, stop = first[column], first[column] + count[column]
        size: Int = 0
        if stop > begin:
            size = encode_values(values[begin:stop], words[begin:stop], stop - begin, scratch, single, 0)
        out = _grown(out, at + size)
        out[at : at + size] = single[:size]
        at += size
        places[column + 1] = at
    return out[:at].copy(), places


@kernel
def encode_integer_columns(numbers: Ints, first: Ints, count: Ints) -> tuple[Bytes, Ints]:
    """The same for integers."""
    longest = count.max() if count.size else 0
    words = numbers.view(np.uint64)
    scratch = np.empty(2 * longest, np.uint64)
    single = np.empty(integers_room(longest), np.uint8)
    out = np.empty(1024, np.uint8)
    places = np.zeros(count.size + 1, np.int64)
    at: Int = 0
    for column in range(count.size):
        begin, stop = first[column], first[column] + count[column]
        size = encode_integers(words[begin:stop], stop - begin, scratch, single, 0) if stop > begin else 0
        out = _grown(out, at + size)
        out[at : at + size] = single[:size]
        at += size
        places[column + 1] = at
    return out[:at].copy(), places


@kernel
def decode_value_columns(
    data: Bytes, begin: Ints, stop: Ints, length: Ints, skip: Ints, take: Ints, target: Ints, values: Floats
) -> Int:
    """Decodes columns into `values`; returns how many, or BROKEN.

    Column i lies in `data[begin[i]:stop[i]]` and has `length[i]` values, of which `take[i]` from `skip[i]` on go to
    `values[target[i]:]`.
    """
    words = values.view(np.uint64)
    longest = length.max() if length.size else 0
    spare = np.empty(longest, np.float64)
    spare_words = spare.view(np.uint64)
    for column in range(length.size):
        size, room = length[column], take[column]
        if room == 0:
            continue
        if not _fits(begin[column], stop[column], data.size, size, skip[column], room, target[column], values.size):
            return BROKEN
        to = target[column]
        if room == size:
            end = decode_values(data, begin[column], stop[column], size, values[to : to + size], words[to : to + size])
        else:
            end = decode_values(data, begin[column], stop[column], size, spare, spare_words)
            values[to : to + room] = spare[skip[column] : skip[column] + room]
        if end != stop[column] and size > 0:
            return BROKEN
    return length.size


@kernel
def decode_integer_columns(
    data: Bytes, begin: Ints, stop: Ints, length: Ints, skip: Ints, take: Ints, target: Ints, numbers: Ints
) -> Int:
    """The same for integers."""
    words = numbers.view(np.uint64)
    longest = length.max() if length.size else 0
    spare = np.empty(longest, np.uint64)
    for column in range(length.size):
        size, room = length[column], take[column]
        if room == 0:
            continue
        if not _fits(begin[column], stop[column], data.size, size, skip[column], room, target[column], numbers.size):
            return BROKEN
        to = target[column]
        if room == size:
            end = decode_integers(data, begin[column], stop[column], size, words[to : to + size])
        else:
            end = decode_integers(data, begin[column], stop[column], size, spare)
            words[to : to + room] = spare[skip[column] : skip[column] + room]
        if end != stop[column] and size > 0:
            return BROKEN
    return length.size


@kernel
def _fits(begin: Int, stop: Int, data: Int, size: Int, skip: Int, room: Int, target: Int, values: Int) -> bool:
    """Are a column's bytes inside of the data, its part inside of the column, and its target inside of the result?"""
    if begin < 0 or stop < begin or stop > data or size < 0 or target < 0 or room < 0 or skip < 0:
        return False
    return bool(skip + room <= size and target + room <= values)


@kernel
def _grown(out: Bytes, needed: Int) -> Bytes:
    if needed <= out.size:
        return out
    larger = np.empty(2 * needed, np.uint8)
    larger[: out.size] = out
    return larger
