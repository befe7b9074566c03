"""How do samples lie in memory, and what becomes of a new one?

In chunks of one series each; newer samples go to the end of their series, late ones aside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import borrowed

# How do samples lie in memory? In chunks of one series each, cut from arrays that all series share.
#
# What was written into a chunk never changes until the chunk is given back, so readers that know its places under the
# head's lock may copy them without it. Chunks that a series no longer needs wait in limbo until those readers are gone.


CHUNK = 32  # places of a chunk; a power of two, since places are distinguished by their lowest bits
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


# What becomes of a sample? Newer ones go to the end of their series, late ones aside until a chunk is full.


# What became of a sample. REFUSED_SERIES is the caller's: its series was refused, see there for the reason.
TAKEN, KNOWN, CONFLICT, TOO_LATE, TOO_OLD, TOO_NEW, NO_ROOM, REFUSED_SERIES = range(8)
VERDICTS = 8


@kernel
def append_samples(
    arena: Arena,
    rows: Array,  # i64 (series, ROW)
    series: Array,  # i32, one a sample; below 0: refused
    timestamps: Array,
    bits: Array,
    starts: Array,  # as long as the others, or empty
    histograms: Array,  # handles, as long as the others, or empty
    late_by_max: int,  # below 0: no limit
    oldest: int,
    newest: int,
    verdicts: Array,  # u8 out
    counts: Array,  # i64 out, one a verdict
) -> None:
    """Takes what may be taken, in the given order, and says of every sample what became of it."""
    arena, rows = borrowed(arena), borrowed(rows)
    arena_timestamps, arena_bits = arena.timestamps, arena.bits
    plain = len(starts) == 0 and len(histograms) == 0
    for place in range(len(series)):
        sid = np.int64(series[place])
        if sid < 0:
            verdicts[place] = REFUSED_SERIES
            counts[REFUSED_SERIES] += 1
            continue
        time = timestamps[place]
        at = rows[sid, NEXT]
        if plain and time > rows[sid, LAST_TS] and at & LAST_PLACE != 0 and oldest <= time <= newest:
            # The usual case, without calls: the next sample of a series whose chunk has room.
            arena_timestamps[at] = time
            arena_bits[at] = bits[place]
            rows[sid, NEXT] = at + 1
            rows[sid, LAST_TS] = time
            verdicts[place] = TAKEN
            counts[TAKEN] += 1
            continue
        start = starts[place] if len(starts) > 0 else np.int64(0)
        handle = np.int64(histograms[place]) if len(histograms) > 0 else np.int64(0)
        verdict = _append_one(arena, rows[sid], time, bits[place], start, handle, late_by_max, oldest, newest)
        verdicts[place] = verdict
        counts[verdict] += 1
    arena.counters[SAMPLES] += counts[TAKEN]


@inner_kernel
def _append_one(
    arena: Arena, row: Any, time: Any, value: Any, start: Any, handle: Any, late_by_max: Any, oldest: Any, newest: Any
) -> Any:
    if time < oldest or time > newest or time == NEVER:
        return TOO_NEW if time > newest else TOO_OLD
    if time > row[LAST_TS]:
        at = _next_place(arena, row)
        if at == 0:
            return NO_ROOM
        row[LAST_TS] = time
    else:
        verdict, at = _late_place(arena, row, time, value, handle > 0, late_by_max)
        if verdict != TAKEN:
            return verdict
    arena.timestamps[at] = time
    arena.bits[at] = value
    if start != 0:
        arena.starts[at] = start
        arena.lanes[at >> CHUNK_BITS] |= STARTS_LANE
        row[LANES] |= STARTS_LANE
    if handle > 0:
        arena.histograms[at] = handle
        arena.lanes[at >> CHUNK_BITS] |= HISTOGRAMS_LANE
        row[LANES] |= HISTOGRAMS_LANE
    return TAKEN


@inner_kernel
def _next_place(arena: Arena, row: Any) -> Any:
    at = row[NEXT]
    if at & LAST_PLACE == 0:
        chunk = take_chunk(arena)
        if chunk == 0:
            return np.int64(0)
        if at == 0:
            row[HEAD] = chunk
            row[SKIP] = 0
        else:
            before = (at - 1) >> CHUNK_BITS
            arena.links[before, FOLLOWING] = chunk
            arena.links[before, USED] = CHUNK
        at = chunk << CHUNK_BITS
    row[NEXT] = at + 1
    return at


@inner_kernel
def _late_place(arena: Arena, row: Any, time: Any, value: Any, is_histogram: Any, late_by_max: Any) -> Any:
    known = find_sample(arena, row, time)
    if known > 0:
        has_lane = arena.lanes[known >> CHUNK_BITS] & HISTOGRAMS_LANE != 0
        was_histogram = has_lane and arena.histograms[known] != 0
        same = arena.bits[known] == value and not is_histogram and not was_histogram
        return (KNOWN if same else CONFLICT), np.int64(0)
    if late_by_max >= 0 and np.uint64(row[LAST_TS] - time) > np.uint64(late_by_max):
        return TOO_LATE, np.int64(0)
    if row[LATE] > 0 and row[LATE] & LAST_PLACE == 0:
        fold_late(arena, row)
    at = row[LATE]
    if at & LAST_PLACE == 0:
        if at > 0:
            return NO_ROOM, np.int64(0)  # it could not be folded
        chunk = take_chunk(arena)
        if chunk == 0:
            return NO_ROOM, np.int64(0)
        at = chunk << CHUNK_BITS
    row[LATE] = at + 1
    return TAKEN, at


@inner_kernel
def find_sample(arena: Arena, row: Any, time: Any) -> Any:
    """The place of the series' sample of that time, 0 without one."""
    if row[LATE] > 0:
        for place in range(((row[LATE] - 1) >> CHUNK_BITS) << CHUNK_BITS, row[LATE]):
            if arena.timestamps[place] == time:
                return np.int64(place)
    tail = last_chunk(row)
    if tail > 0:
        first = tail << CHUNK_BITS
        if tail == row[HEAD]:
            first += row[SKIP]
        if arena.timestamps[first] <= time:  # the usual case: not far behind the newest
            return _find_in_chunk(arena, first, row[NEXT], time)
        found = _find_in_chain(arena, row, row[HEAD], row[SKIP], tail, CHUNK, time)
        if found > 0:
            return found
    if row[CUT_HEAD] > 0:
        return _find_in_chain(arena, row, row[CUT_HEAD], row[CUT_SKIP], row[CUT_LAST], row[CUT_USED], time)
    return np.int64(0)


@inner_kernel
def _find_in_chain(arena: Arena, row: Any, chunk: Any, skip: Any, last: Any, last_used: Any, time: Any) -> Any:
    while chunk > 0:
        first = chunk << CHUNK_BITS
        end = first + min(places_used(arena, row, chunk), last_used if chunk == last else np.int64(CHUNK))
        if arena.timestamps[end - 1] >= time:
            return _find_in_chunk(arena, first + skip, end, time)
        if chunk == last:
            break
        skip = np.int64(0)
        chunk = np.int64(arena.links[chunk, FOLLOWING])
    return np.int64(0)


@inner_kernel
def _find_in_chunk(arena: Arena, first: Any, end: Any, time: Any) -> Any:
    for place in range(first, end):
        if arena.timestamps[place] == time:
            return np.int64(place)
    return np.int64(0)


@inner_kernel
def fold_late(arena: Arena, row: Any) -> Any:
    """Merges late samples into the series: only chunks that lie between them are written anew. False without room."""
    if row[LATE] == 0:
        return True
    first = ((row[LATE] - 1) >> CHUNK_BITS) << CHUNK_BITS
    late_count = row[LATE] - first
    order = first + np.argsort(arena.timestamps[first : row[LATE]], kind="mergesort")
    before, chunk, index = np.int64(0), row[HEAD], row[SKIP]
    tail = last_chunk(row)
    if tail > 0:
        arena.links[tail, USED] = ((row[NEXT] - 1) & LAST_PLACE) + 1  # it may become one of the middle
    while chunk > 0:  # chunks that end before the first late sample stay as they are
        end = (chunk << CHUNK_BITS) + places_used(arena, row, chunk)
        if arena.timestamps[end - 1] > arena.timestamps[order[0]]:
            break
        before, index = chunk, np.int64(0)
        chunk = np.int64(arena.links[chunk, FOLLOWING]) if chunk != tail else np.int64(0)
    if room(arena) < _chunks_between(arena, chunk, tail, arena.timestamps[order[late_count - 1]]) + 2:
        return False
    new_head, out, late = np.int64(0), np.int64(0), 0
    while late < late_count or (chunk > 0 and index > 0):
        if chunk > 0 and (
            late == late_count or arena.timestamps[(chunk << CHUNK_BITS) + index] < arena.timestamps[order[late]]
        ):
            source = (chunk << CHUNK_BITS) + index
            index += 1
        else:
            source = order[late]
            late += 1
        if out & LAST_PLACE == 0:
            fresh = take_chunk(arena)
            if out > 0:
                arena.links[(out - 1) >> CHUNK_BITS, FOLLOWING] = fresh
                arena.links[(out - 1) >> CHUNK_BITS, USED] = CHUNK
            else:
                new_head = fresh
            out = fresh << CHUNK_BITS
        copy_sample(arena, source, out)
        out += 1
        if chunk > 0 and index == places_used(arena, row, chunk):
            if chunk != row[CUT_LAST] or row[CUT_HEAD] == 0:  # otherwise the cut before still needs it
                drop_chunk(arena, chunk)
            chunk = np.int64(arena.links[chunk, FOLLOWING]) if chunk != tail else np.int64(0)
            index = np.int64(0)
    out_chunk = (out - 1) >> CHUNK_BITS
    arena.links[out_chunk, FOLLOWING] = chunk
    arena.links[out_chunk, USED] = ((out - 1) & LAST_PLACE) + 1
    if chunk == 0:
        row[NEXT] = out
    if before > 0:
        arena.links[before, FOLLOWING] = new_head
    else:
        row[HEAD] = new_head
        row[SKIP] = 0
    drop_chunk(arena, (row[LATE] - 1) >> CHUNK_BITS)
    row[LATE] = 0
    return True


@inner_kernel
def _chunks_between(arena: Arena, chunk: Any, tail: Any, newest: Any) -> Any:
    count = 0
    while chunk > 0:
        count += 1
        if chunk == tail or arena.timestamps[chunk << CHUNK_BITS] > newest:
            break
        chunk = np.int64(arena.links[chunk, FOLLOWING])
    return count


# Is there a sample of this time? For writes of histograms, which kernels cannot compare.


@kernel
def place_of(arena: Arena, rows: Array, sid: int, timestamp: int) -> int:
    """Its place in the arena, 0 without one."""
    found: int = find_sample(arena, rows[sid], timestamp)
    return found
