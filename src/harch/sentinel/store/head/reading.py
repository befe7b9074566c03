"""How does a query read the head? It notes places under the lock and copies them afterwards, on several cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harch.sentinel.model.selection import Samples
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.arena_kernels import (
    CHUNK,
    FRESH,
    HISTOGRAMS_LANE,
    LATE,
    STARTS_LANE,
    Arena,
)
from harch.sentinel.store.head.read_kernels import copy_pieces, find_pieces
from harch.sentinel.store.histogram_bytes import decode_histogram

if TYPE_CHECKING:
    from harch.sentinel.store.head.head import Head

_SHARE_FROM = 1 << 18  # samples from which it pays to wake other threads
_THREADS_MAX = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Places of all samples that a query wants. Valid while the reader is counted among the head's readers."""

    series: Array  # i64: those with samples
    piece_at: Array
    piece_count: Array
    piece_first: Array
    sample_first: Array
    untidy: Array
    lanes: int

    @property
    def samples(self) -> int:
        return int(self.sample_first[-1])

    def histogram_handles(self, arena: Arena) -> list[int]:
        if not self.lanes & HISTOGRAMS_LANE:
            return []
        handles: Array = _copies(arena, self)[3]
        found: list[int] = handles[handles > 0].tolist()
        return found


def plan_read(head: Head, series: Array, start: int, end: int, which: int) -> Plan:
    """Notes the places of all samples of these series in the range; the head's lock is held."""
    late = int(np.count_nonzero(head.rows[series, LATE]))
    pieces_max = int(head.arena.counters[FRESH]) + len(series) + late * CHUNK
    piece_at, piece_count = np.empty(pieces_max, np.int32), np.empty(pieces_max, np.int32)
    piece_first, sample_first = np.empty(len(series) + 1, np.int64), np.empty(len(series) + 1, np.int64)
    untidy = np.empty(len(series), np.bool_)
    pieces, lanes = find_pieces(
        head.arena, head.rows, series, start, end, which, piece_at, piece_count, piece_first, sample_first, untidy
    )
    filled = sample_first[1:] > sample_first[:-1]
    if not filled.all():  # what has no samples has no pieces either, so the others stay neighbours
        piece_first = np.append(piece_first[:-1][filled], pieces)
        sample_first = np.append(sample_first[:-1][filled], sample_first[-1])
        series, untidy = series[filled], untidy[filled]
    return Plan(series, piece_at[:pieces], piece_count[:pieces], piece_first, sample_first, untidy, lanes)


def copy_samples(arena: Arena, plan: Plan, histograms: Mapping[int, bytes]) -> Samples:
    """The samples themselves, in arrays of their own."""
    timestamps, bits, starts, handles, counts = _copies(arena, plan)
    if not plan.lanes & HISTOGRAMS_LANE or not handles.any():
        return Samples(plan.sample_first[:-1], counts, timestamps, bits.view(np.float64), _or_none(starts))
    histogram_at = np.full(len(handles), -1, np.int32)
    places = np.flatnonzero(handles)
    histogram_at[places] = np.arange(len(places))
    found = [decode_histogram(histograms[handle]) for handle in handles[places].tolist()]
    return Samples(
        plan.sample_first[:-1], counts, timestamps, bits.view(np.float64), _or_none(starts), histogram_at, found
    )


def _or_none(starts: Array) -> Array | None:
    return starts if len(starts) else None


def _copies(arena: Arena, plan: Plan) -> tuple[Array, Array, Array, Array, Array]:
    count, series_count = plan.samples, len(plan.series)
    timestamps, bits = np.empty(count, np.int64), np.empty(count, np.uint64)
    starts = np.empty(count if plan.lanes & STARTS_LANE else 0, np.int64)
    handles = np.empty(count if plan.lanes & HISTOGRAMS_LANE else 0, np.int32)
    counts = np.empty(series_count, np.int64)

    def copy(bounds: tuple[int, int]) -> None:
        copy_pieces(
            arena, plan.piece_at, plan.piece_count, plan.piece_first, plan.sample_first, plan.untidy,
            bounds[0], bounds[1], timestamps, bits, starts, handles, counts,
        )  # fmt: skip

    parts = min(_threads(), series_count) if count >= _SHARE_FROM else 1
    edges = np.linspace(0, series_count, parts + 1).astype(np.int64).tolist()
    shares = list(pairwise(edges))
    others = [_pool().submit(copy, share) for share in shares[1:]]
    copy(shares[0])
    for other in others:
        other.result()
    return timestamps, bits, starts, handles, counts


def _threads() -> int:
    """All cores but one, which is left to those who write."""
    return max(1, min(_THREADS_MAX, (os.cpu_count() or 1) - 1))


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), "sentinel-read")
