"""How do samples lie in memory? In chunks of one series each, cut from arrays that all series share.

What was written into a chunk never changes until the chunk is given back, so readers that know its places under the
head's lock may copy them without it. Chunks that a series no longer needs wait in limbo until those readers are gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harch.sentinel.compiled import inner_kernel, kernel

CHUNK = 32  # places of a chunk; a power of two, since places are told apart by their lowest bits
CHUNK_BITS = 5
LAST_PLACE = CHUNK - 1
NEVER = np.iinfo(np.int64).min  # before all times that samples may have

# Counters of an arena.
FRESH, FREE, LIMBO_OLD, LIMBO, SAMPLES = range(5)
COUNTERS = 8

# Columns of the links: the chunk after this one (0 = none); places used, right for all chunks but a series' last.
FOLLOWING, USED = range(2)

# Lanes beyond time and value, used by few series.
STARTS_LANE, HISTOGRAMS_LANE = 1, 2

# One row of numbers for each series; the first eight are what a write looks at: one cache line.
(
    LAST_TS,  # newest time ever taken
    NEXT,  # place of the next sample; a multiple of CHUNK: the last chunk is full, or (0) there is none
    LOG_BITS,  # the value that the log wrote last, in this segment
    LOG_SEGMENT,  # the segment in which the log has named the series
    KEY_AT,  # where the bytes of its labels lie
    KEY_LENGTH,
    LATE,  # like NEXT, for the one chunk of samples that came out of order
    LANES,
    HEAD,  # first chunk
    SKIP,  # places of the first chunk that belong to the cut before
    CUT_HEAD,  # what a cut took off the front: first chunk, 0 = nothing
    CUT_SKIP,
    CUT_LAST,  # its last chunk, which may be HEAD as well
    CUT_USED,  # places of that chunk up to which it reaches
    KEY_HASH,
    EXISTS,
) = range(16)
ROW = 16

Array = npt.NDArray[Any]


class Arena(NamedTuple):
    """The memory of all samples. Chunk 0 is never used, so that 0 can mean none."""

    timestamps: Array  # i64, CHUNK places a chunk
    bits: Array  # u64: the values, bit by bit
    starts: Array  # i64; read only where the lane is used
    histograms: Array  # i32: 0 or a handle of a histogram
    links: Array  # i32 (chunks, 2): FOLLOWING and USED of each chunk
    lanes: Array  # u8: which lanes of the chunk were ever written
    free: Array  # i32 stack of chunks
    limbo: Array  # i32: chunks that readers may still look at; the first LIMBO_OLD of them before the others
    counters: Array  # i64


@inner_kernel
def room(arena: Arena) -> Any:
    """How many chunks can still be had?"""
    return arena.counters[FREE] + len(arena.links) - arena.counters[FRESH]


@inner_kernel
def take_chunk(arena: Arena) -> Any:
    """An empty chunk, 0 if there is none."""
    counters = arena.counters
    if counters[FREE] > 0:
        counters[FREE] -= 1
        chunk = np.int64(arena.free[counters[FREE]])
    elif counters[FRESH] < len(arena.links):
        chunk = counters[FRESH]
        counters[FRESH] += 1
    else:
        return np.int64(0)
    arena.links[chunk, FOLLOWING] = 0
    arena.links[chunk, USED] = 0
    return chunk


@inner_kernel
def drop_chunk(arena: Arena, chunk: Any) -> None:
    arena.limbo[arena.counters[LIMBO]] = chunk
    arena.counters[LIMBO] += 1


@kernel
def leave_limbo(arena: Arena) -> None:
    """No reader of before the last call is left: its chunks are free, and those that came since are the old ones."""
    counters = arena.counters
    for place in range(counters[LIMBO_OLD]):
        chunk = np.int64(arena.limbo[place])
        first = chunk << CHUNK_BITS
        if arena.lanes[chunk] & STARTS_LANE:
            arena.starts[first : first + CHUNK] = 0
        if arena.lanes[chunk] & HISTOGRAMS_LANE:
            arena.histograms[first : first + CHUNK] = 0
        arena.lanes[chunk] = 0
        arena.free[counters[FREE]] = chunk
        counters[FREE] += 1
    rest = counters[LIMBO] - counters[LIMBO_OLD]
    for place in range(rest):
        arena.limbo[place] = arena.limbo[counters[LIMBO_OLD] + place]
    counters[LIMBO_OLD] = rest
    counters[LIMBO] = rest


@inner_kernel
def last_chunk(row: Any) -> Any:
    """The chunk that the series writes to, 0 without one."""
    return (row[NEXT] - 1) >> CHUNK_BITS if row[NEXT] > 0 else np.int64(0)


@inner_kernel
def places_used(arena: Arena, row: Any, chunk: Any) -> Any:
    """How many places of this chunk are used? Of the last one, the row knows."""
    if chunk == last_chunk(row):
        return ((row[NEXT] - 1) & LAST_PLACE) + 1
    return np.int64(arena.links[chunk, USED])


@inner_kernel
def copy_sample(arena: Arena, source: Any, target: Any) -> None:
    arena.timestamps[target] = arena.timestamps[source]
    arena.bits[target] = arena.bits[source]
    lanes = arena.lanes[source >> CHUNK_BITS]
    if lanes != 0:
        arena.lanes[target >> CHUNK_BITS] |= lanes
        if lanes & STARTS_LANE:
            arena.starts[target] = arena.starts[source]
        if lanes & HISTOGRAMS_LANE:
            arena.histograms[target] = arena.histograms[source]
