"""How are the samples of one series kept in few bytes? For blocks, and for memory that shall hold more.

Times and values come back bit by bit as they were: -0.0, the payloads of NaNs and stale markers too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError
from harch.sentinel.store.blocks.bytes_kernels import BROKEN, Int
from harch.sentinel.store.blocks.chunk_kernels import chunk_count, decode_chunk, encode_chunk

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def encode(timestamps: Ints, values: Floats) -> bytes:
    """One chunk of samples, any order of times. Its size is chosen by the caller: 100 to 1,000 samples are good."""
    if len(timestamps) != len(values):
        raise ValueError(f"{len(timestamps)} times for {len(values)} values")
    return encode_chunk(np.ascontiguousarray(timestamps, np.int64), np.ascontiguousarray(values, np.float64)).tobytes()


def sample_count(chunk: bytes) -> int:
    """How many samples does a chunk say that it holds?"""
    return _known(chunk_count(np.frombuffer(chunk, np.uint8)))


def decode(chunk: bytes) -> tuple[Ints, Floats]:
    """The samples of a chunk. Raises E0613 where the bytes are not what `encode` wrote."""
    count = sample_count(chunk)
    timestamps, values = np.empty(count, np.int64), np.empty(count, np.float64)
    decode_into(chunk, timestamps, values)
    return timestamps, values


def decode_into(chunk: bytes, timestamps: Ints, values: Floats) -> int:
    """Fills the first places of both arrays and returns how many. Raises E0613 also where there is too little room."""
    return _known(decode_chunk(np.frombuffer(chunk, np.uint8), timestamps, values))


def _known(count: Int) -> int:
    if count == BROKEN:
        raise HarchError("E0613", "a compressed chunk in memory does not decode")
    return int(count)
