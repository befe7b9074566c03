"""Where are the samples of a query, and what are they? First the places, under the lock; then copies, without it."""

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
    LANES,
    LAST_TS,
    LATE,
    NEXT,
    SKIP,
    Arena,
    Array,
    last_chunk,
    places_used,
)

ALL, CUT_ONLY = range(2)


@kernel
def find_pieces(
    arena: Arena,
    rows: Array,
    series: Array,  # i64: which ones
    start: int,
    end: int,
    which: int,
    piece_at: Array,  # i32 out: first place of each piece, as long as there are chunks in use
    piece_count: Array,  # i32 out
    piece_first: Array,  # i64 out: the first piece of each series, and the end
    sample_first: Array,  # i64 out: its first sample, and the end
    untidy: Array,  # bool out: whether its pieces have to be merged
) -> tuple[int, int]:
    """Notes the places of all samples of the range; returns how many pieces there are, and which lanes are used."""
    arena, rows = borrowed(arena), borrowed(rows)
    piece_at, piece_count = borrowed(piece_at), borrowed(piece_count)
    pieces, samples, lanes = 0, 0, 0
    for place in range(len(series)):
        row = rows[series[place]]
        piece_first[place] = pieces
        sample_first[place] = samples
        untidy[place] = False
        lanes |= row[LANES]
        before = pieces
        if row[CUT_HEAD] > 0:
            pieces = _note_chain(
                arena, row, row[CUT_HEAD], row[CUT_SKIP], row[CUT_LAST], row[CUT_USED], start, end,
                piece_at, piece_count, pieces,
            )  # fmt: skip
        cut_end = pieces
        if which == ALL and row[NEXT] > 0:
            pieces = _note_chain(
                arena, row, row[HEAD], row[SKIP], last_chunk(row), np.int64(CHUNK), start, end,
                piece_at, piece_count, pieces,
            )  # fmt: skip
        if before < cut_end < pieces:  # samples that came after the cut may be older than those of the cut
            cut_newest = arena.timestamps[piece_at[cut_end - 1] + piece_count[cut_end - 1] - 1]
            untidy[place] = arena.timestamps[piece_at[cut_end]] <= cut_newest
        if which == ALL and row[LATE] > 0:
            first = ((row[LATE] - 1) >> CHUNK_BITS) << CHUNK_BITS
            for late in range(first, row[LATE]):
                if start <= arena.timestamps[late] <= end:
                    piece_at[pieces] = late
                    piece_count[pieces] = 1
                    pieces += 1
                    untidy[place] = True
        for piece in range(before, pieces):
            samples += piece_count[piece]
    piece_first[len(series)] = pieces
    sample_first[len(series)] = samples
    return pieces, lanes


@inner_kernel
def _note_chain(
    arena: Arena, row: Any, chunk: Any, skip: Any, last: Any, last_used: Any, start: Any, end: Any,
    piece_at: Array, piece_count: Array, pieces: Any,
) -> Any:  # fmt: skip
    # Times are looked at only where a chain crosses an end of the range: each look is a line of memory from far away.
    is_before, may_pass = True, row[LAST_TS] > end
    while chunk > 0:
        first = (chunk << CHUNK_BITS) + skip
        used = places_used(arena, row, chunk)
        stop = (chunk << CHUNK_BITS) + (min(used, last_used) if chunk == last else used)
        if stop > first:
            if may_pass and arena.timestamps[first] > end:
                break
            if is_before:
                if arena.timestamps[stop - 1] >= start:
                    is_before = False
                    while arena.timestamps[first] < start:
                        first += 1
                else:
                    first = stop
            if may_pass:
                while stop > first and arena.timestamps[stop - 1] > end:
                    stop -= 1
            if stop > first:
                piece_at[pieces] = first
                piece_count[pieces] = stop - first
                pieces += 1
        if chunk == last:
            break
        skip = np.int64(0)
        chunk = np.int64(arena.links[chunk, FOLLOWING])
    return pieces


@kernel
def copy_pieces(
    arena: Arena,
    piece_at: Array,
    piece_count: Array,
    piece_first: Array,
    sample_first: Array,
    untidy: Array,
    series_from: int,  # copies these series only, so that several threads can share the work
    series_to: int,
    timestamps: Array,  # out
    bits: Array,  # out
    starts: Array,  # out, or empty
    histograms: Array,  # out, or empty
    counts: Array,  # i64 out: samples of each series
) -> None:
    for place in range(series_from, series_to):
        to = sample_first[place]
        for piece in range(piece_first[place], piece_first[place + 1]):
            source = piece_at[piece]
            for offset in range(piece_count[piece]):
                timestamps[to + offset] = arena.timestamps[source + offset]
                bits[to + offset] = arena.bits[source + offset]
            if len(starts) > 0:
                for offset in range(piece_count[piece]):
                    starts[to + offset] = arena.starts[source + offset]
            if len(histograms) > 0:
                for offset in range(piece_count[piece]):
                    histograms[to + offset] = arena.histograms[source + offset]
            to += piece_count[piece]
        counts[place] = to - sample_first[place]
        if untidy[place]:
            counts[place] = _tidy(sample_first[place], to, timestamps, bits, starts, histograms)


@inner_kernel
def _tidy(first: Any, end: Any, timestamps: Array, bits: Array, starts: Array, histograms: Array) -> Any:
    """Sorts a region by time. No time is in it twice, since a write looks at all of a series before it takes one."""
    order = first + np.argsort(timestamps[first:end], kind="mergesort")
    timestamps[first:end] = timestamps[order]
    bits[first:end] = bits[order]
    if len(starts) > 0:
        starts[first:end] = starts[order]
    if len(histograms) > 0:
        histograms[first:end] = histograms[order]
    return end - first


@kernel
def time_bounds(arena: Arena, rows: Array, series_count: int) -> Any:
    """Oldest time of any sample, and newest that any series ever had; without samples, the first is the later one."""
    oldest, newest = np.int64(np.iinfo(np.int64).max), np.int64(np.iinfo(np.int64).min)
    for sid in range(series_count):
        if rows[sid, EXISTS] == 0:
            continue
        newest = max(newest, rows[sid, LAST_TS])
        if rows[sid, NEXT] > 0:
            oldest = min(oldest, arena.timestamps[(rows[sid, HEAD] << CHUNK_BITS) + rows[sid, SKIP]])
        if rows[sid, CUT_HEAD] > 0:
            oldest = min(oldest, arena.timestamps[(rows[sid, CUT_HEAD] << CHUNK_BITS) + rows[sid, CUT_SKIP]])
        if rows[sid, LATE] > 0:
            for place in range(((rows[sid, LATE] - 1) >> CHUNK_BITS) << CHUNK_BITS, rows[sid, LATE]):
                oldest = min(oldest, arena.timestamps[place])
    return oldest, newest
