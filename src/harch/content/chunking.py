"""Where does a file fall into chunks, so that an edit changes few of them? Where the last 32 bytes say so.

A gear hash of the 32 bytes before each place decides, so a cut depends on the content around it and on no offset: after
an insertion the old cuts are found again. Cutting is normalised: below `_NORMAL_BYTES` a cut is 16 times as rare as
above it, so that sizes gather around the average. Files that are not larger than `CHUNK_BYTES_MIN` are one chunk.

The table and the limits are part of the format: with others, equal files would have other chunks and other digests.
NumPy finds the same cuts as the compiled kernel at a fifth of its speed; a process that cuts little never loads Numba.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import blake3

from harch.content.model import CHUNK_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.uint32]
    # (data, gear, from, to, limit): the first place of [from, to) whose hash is below the limit, or -1
    Finder = Callable[["Bytes", "Words", int, int, int], int]

CHUNK_BYTES_MIN = 128 * 1024
CHUNK_BYTES_AVERAGE = 512 * 1024
WINDOW_BYTES = 32  # that a cut depends on: as many as a hash has bits, since each byte moves the others by one
READ_BYTES = 8 * 1024 * 1024  # at a time, of a file
KERNEL_FROM_BYTES = 256 * 1024 * 1024  # loading Numba takes as long as cutting so much without it

_NORMAL_BYTES = 416 * 1024  # with these limits the average of random data is 508 KiB
_RARE_LIMIT = 1 << 11  # of 2**32: one place in 2 MiB
_OFTEN_LIMIT = 1 << 15  # one in 128 KiB
_GEAR_SEED = b"HarchOS: gear table of content-defined chunking, version 1"
_BLOCK_BYTES = 32 * 1024  # of the search by NumPy: what it writes stays in the cache of a core


def cut(data: bytes | bytearray | memoryview, *, is_last: bool) -> list[int]:
    """Where the chunks of `data`, which begins with one, end. Without `is_last` the unfinished tail is left out."""
    total = len(data)
    if total <= CHUNK_BYTES_MIN:
        return [total] if is_last and total else []
    array, gear, finder = _as_array(data), _gear(), _choose_finder(total)
    ends: list[int] = []
    begin = 0
    while total - begin > CHUNK_BYTES_MIN:
        end = _end_of_chunk(array, gear, finder, begin, total)
        if end is None:
            break
        ends.append(end)
        begin = end
    if is_last and begin < total:
        ends.append(total)
    return ends


def chunks_of(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Of a file of any size, in a few times `READ_BYTES` of memory. `read(n)` gives at most n bytes; b"" ends it."""
    held = b""
    while True:
        data, is_last = _filled(held, read)
        begin = 0
        for end in cut(data, is_last=is_last):
            yield data[begin:end]
            begin = end
        if is_last:
            return
        held = data[begin:]


def _filled(held: bytes, read: Callable[[int], bytes]) -> tuple[bytes, bool]:
    """What was held and a whole read more, although pipes give less at a time; and whether that is all."""
    pieces, wanted = [held], READ_BYTES
    while wanted > 0:
        piece = read(wanted)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces), False


def _end_of_chunk(array: Bytes, gear: Words, finder: Finder, begin: int, total: int) -> int | None:
    """None where `total` comes before the end of the chunk does."""
    for first, last, limit in (
        (CHUNK_BYTES_MIN, _NORMAL_BYTES, _RARE_LIMIT),
        (_NORMAL_BYTES, CHUNK_BYTES_MAX, _OFTEN_LIMIT),
    ):
        # A chunk of `first` bytes ends behind the place `first - 1`.
        low, high = begin + first - 1, min(begin + last - 1, total)
        found = finder(array, gear, low, high, limit) if low < high else -1
        if found >= 0:
            return found + 1
    return begin + CHUNK_BYTES_MAX if total - begin >= CHUNK_BYTES_MAX else None


def _as_array(data: bytes | bytearray | memoryview) -> Bytes:
    import numpy as np

    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False  # one type for all: the kernel is compiled for that alone
    return array


@cache
def _gear() -> Words:
    import numpy as np

    table = np.frombuffer(blake3.blake3(_GEAR_SEED).digest(length=1024), "<u4").astype(np.uint32)
    table.flags.writeable = False
    return table


# Which finder?

_choosing = threading.Lock()
_cut_bytes = 0
_kernel: Finder | None = None


def _choose_finder(size: int) -> Finder:
    """The kernel where it is loaded or worth loading; else NumPy."""
    global _cut_bytes, _kernel
    with _choosing:
        _cut_bytes += size
        if _kernel is not None:
            return _kernel
        if find_spec("numba") is None or not ("numba" in sys.modules or _cut_bytes >= KERNEL_FROM_BYTES):
            return find_with_numpy
        _kernel = load_kernel()
        return _kernel


def load_kernel() -> Finder:
    """Loads the compiled finder, or compiles it. Raises ImportError without Numba."""
    from harch.base.compile_once import compile_once
    from harch.content.chunking_kernels import SOURCES, find_below

    with compile_once("content", SOURCES):
        find_below(_as_array(bytes(2 * WINDOW_BYTES)), _gear(), WINDOW_BYTES, 2 * WINDOW_BYTES, 0)
    return find_below


def compile_kernel(step_started: Callable[[str], None]) -> None:
    """At installation; see `harch.cli.compiling`."""
    step_started("content")
    load_kernel()


def find_with_numpy(data: Bytes, gear: Words, begin: int, end: int, limit: int) -> int:
    """The hashes of a whole block at a time: of windows of 1, 2, 4 … 32 bytes, each from two of the size before."""
    import numpy as np

    sums = np.empty(_BLOCK_BYTES + WINDOW_BYTES, np.uint32)
    moved = np.empty_like(sums)
    for at in range(begin, end, _BLOCK_BYTES):
        before = WINDOW_BYTES - 1
        block = data[at - before : min(at + _BLOCK_BYTES, end)]
        count = len(block)
        np.take(gear, block, out=sums[:count])
        width = 1
        while width < WINDOW_BYTES:
            np.left_shift(sums[:count], np.uint32(width), out=moved[:count])
            np.add(sums[width:count], moved[: count - width], out=sums[width:count])
            width *= 2
        if sums[before:count].min() < limit:
            return at + int(np.argmax(sums[before:count] < limit))
    return -1
