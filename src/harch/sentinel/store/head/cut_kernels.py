"""How do samples leave the head? A cut marks the front of every series, and forgetting gives its chunks back."""

from __future__ import annotations

from typing import Any

import numpy as np

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import borrowed
from harch.sentinel.store.head.arena_kernels import (
    CHUNK,
    CHUNK_BITS,
    CUT_HEAD,
    CUT_LAST,
    CUT_SKIP,
    CUT_USED,
    EXISTS,
    FOLLOWING,
    HEAD,
    LAST_PLACE,
    LAST_TS,
    LATE,
    NEXT,
    SAMPLES,
    SKIP,
    USED,
    Arena,
    Array,
    copy_sample,
    drop_chunk,
    fold_late,
    last_chunk,
    places_used,
    room,
    take_chunk,
)


@kernel
def cut_front(arena: Arena, rows: Array, series_count: int, until: int, spared: Array, given: int) -> int:
    """Marks all samples up to `until` as cut, of all series but the given ones that are spared, in ascending order.

    Needs no memory, since this is what makes some; but series whose late samples cannot be merged for want of it are
    left whole, and added to the spared ones. Returns how many those are then.
    """
    arena, rows = borrowed(arena), borrowed(rows)
    next_spared, spared_count = 0, given
    for sid in range(series_count):
        row = rows[sid]
        if row[EXISTS] == 0:
            continue
        if next_spared < given and spared[next_spared] == sid:
            next_spared += 1
            continue
        if not fold_late(arena, row):
            spared[spared_count] = sid
            spared_count += 1
            continue
        if row[NEXT] == 0:
            continue
        tail = last_chunk(row)
        arena.links[tail, USED] = ((row[NEXT] - 1) & LAST_PLACE) + 1
        chunk, skip = row[HEAD], row[SKIP]
        before, before_used = np.int64(0), np.int64(0)
        while chunk > 0:
            first = (chunk << CHUNK_BITS) + skip
            end = (chunk << CHUNK_BITS) + np.int64(arena.links[chunk, USED])
            stop = first
            while stop < end and arena.timestamps[stop] <= until:
                stop += 1
            if stop > first:
                before, before_used = chunk, stop - (chunk << CHUNK_BITS)
            if stop < end or chunk == tail:
                break
            chunk, skip = np.int64(arena.links[chunk, FOLLOWING]), np.int64(0)
        if before == 0:
            continue
        row[CUT_HEAD], row[CUT_SKIP] = row[HEAD], row[SKIP]
        row[CUT_LAST], row[CUT_USED] = before, before_used
        if before_used < arena.links[before, USED]:
            row[HEAD], row[SKIP] = before, before_used
        elif before == tail:
            row[HEAD], row[SKIP], row[NEXT] = 0, 0, 0
        else:
            row[HEAD], row[SKIP] = np.int64(arena.links[before, FOLLOWING]), 0
    return spared_count


@kernel
def forget_cut(arena: Arena, rows: Array, series_count: int, idle_since: int, idle: Array) -> int:
    """Gives the chunks of the last cut back. Notes series without samples whose last one is older than `idle_since`."""
    arena, rows = borrowed(arena), borrowed(rows)
    idle_count = 0
    for sid in range(series_count):
        row = rows[sid]
        if row[EXISTS] == 0:
            continue
        chunk, skip = row[CUT_HEAD], row[CUT_SKIP]
        while chunk > 0:
            end = row[CUT_USED] if chunk == row[CUT_LAST] else np.int64(arena.links[chunk, USED])
            arena.counters[SAMPLES] -= end - skip
            skip = np.int64(0)
            following = np.int64(arena.links[chunk, FOLLOWING])
            if chunk != row[HEAD]:
                drop_chunk(arena, chunk)
            if chunk == row[CUT_LAST]:
                break
            chunk = following
        row[CUT_HEAD], row[CUT_SKIP], row[CUT_LAST], row[CUT_USED] = 0, 0, 0, 0
        if row[NEXT] == 0 and row[LATE] == 0 and row[LAST_TS] < idle_since:
            idle[idle_count] = sid
            idle_count += 1
    return idle_count


@kernel
def rebuild(arena: Arena, rows: Array, series: Array, start: int, end: int) -> int:
    """Writes these series anew without samples from `start` to `end` (no such time: all stay), and undoes their cuts.

    Returns how many were written; fewer than asked where no room was left.
    """
    arena, rows = borrowed(arena), borrowed(rows)
    for place in range(len(series)):
        row = rows[series[place]]
        places = np.empty(_count(arena, row), np.int64)
        count = _list_places(arena, row, places)
        if room(arena) < count // CHUNK + 2:
            return place
        order = places[:count][np.argsort(arena.timestamps[places[:count]], kind="mergesort")]
        _drop_all(arena, row)
        out, kept = np.int64(0), 0
        for source in order:
            if start <= arena.timestamps[source] <= end:
                continue
            if out & LAST_PLACE == 0:
                fresh = take_chunk(arena)
                if out > 0:
                    arena.links[(out - 1) >> CHUNK_BITS, FOLLOWING] = fresh
                    arena.links[(out - 1) >> CHUNK_BITS, USED] = CHUNK
                else:
                    row[HEAD] = fresh
                out = fresh << CHUNK_BITS
            copy_sample(arena, source, out)
            out += 1
            kept += 1
        row[NEXT] = out
        arena.counters[SAMPLES] -= count - kept
    return len(series)


@inner_kernel
def _count(arena: Arena, row: Any) -> Any:
    """At least as many as the series has samples."""
    chunks = 1  # the late ones
    for chain in range(2):
        chunk = row[HEAD] if chain == 0 else row[CUT_HEAD]
        last = last_chunk(row) if chain == 0 else row[CUT_LAST]
        while chunk > 0:
            chunks += 1
            if chunk == last:
                break
            chunk = np.int64(arena.links[chunk, FOLLOWING])
    return chunks * CHUNK


@inner_kernel
def _list_places(arena: Arena, row: Any, places: Array) -> Any:
    count = 0
    for chain in range(2):
        chunk, skip = (row[HEAD], row[SKIP]) if chain == 0 else (row[CUT_HEAD], row[CUT_SKIP])
        last = last_chunk(row) if chain == 0 else row[CUT_LAST]
        while chunk > 0:
            used = places_used(arena, row, chunk)
            if chain == 1 and chunk == last:
                used = row[CUT_USED]
            for place in range((chunk << CHUNK_BITS) + skip, (chunk << CHUNK_BITS) + used):
                places[count] = place
                count += 1
            if chunk == last:
                break
            chunk, skip = np.int64(arena.links[chunk, FOLLOWING]), np.int64(0)
    if row[LATE] > 0:
        for place in range(((row[LATE] - 1) >> CHUNK_BITS) << CHUNK_BITS, row[LATE]):
            places[count] = place
            count += 1
    return count


@inner_kernel
def _drop_all(arena: Arena, row: Any) -> None:
    head, cut_last = row[HEAD], row[CUT_LAST]
    for chain in range(2):
        chunk = row[HEAD] if chain == 0 else row[CUT_HEAD]
        last = last_chunk(row) if chain == 0 else cut_last
        while chunk > 0:
            if chain == 0 or chunk != head:  # one chunk may be the end of the cut and the beginning of the rest
                drop_chunk(arena, chunk)
            if chunk == last:
                break
            chunk = np.int64(arena.links[chunk, FOLLOWING])
    if row[LATE] > 0:
        drop_chunk(arena, (row[LATE] - 1) >> CHUNK_BITS)
    row[HEAD], row[SKIP], row[NEXT], row[LATE] = 0, 0, 0, 0
    row[CUT_HEAD], row[CUT_SKIP], row[CUT_LAST], row[CUT_USED] = 0, 0, 0, 0
