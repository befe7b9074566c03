"""What came lately?

All samples of one tenant that are not in blocks yet, for writers and readers in many threads: how a request is
appended, and how a query reads.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind, MetricMetadata
from harch.sentinel.model.selection import NOTHING, Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.arena_kernels import (
    CHUNK,
    CHUNK_BITS,
    CONFLICT,
    COUNTERS,
    FREE,
    FRESH,
    HISTOGRAMS_LANE,
    KNOWN,
    LATE,
    LIMBO,
    LIMBO_OLD,
    NO_ROOM,
    REFUSED_SERIES,
    ROW,
    SAMPLES,
    STARTS_LANE,
    TAKEN,
    TOO_LATE,
    TOO_NEW,
    TOO_OLD,
    VERDICTS,
    Arena,
    append_samples,
    leave_limbo,
    place_of,
)
from harch.sentinel.store.head.cut_kernels import cut_front, forget_cut, rebuild
from harch.sentinel.store.head.exemplars import ExemplarRing, found_in
from harch.sentinel.store.head.index import SeriesIndex, rows_needed
from harch.sentinel.store.head.index_kernels import UNKNOWN
from harch.sentinel.store.head.journal import HeadJournal
from harch.sentinel.store.head.read_kernels import ALL, CUT_ONLY, copy_pieces, find_pieces, time_bounds
from harch.sentinel.store.head.readers import ReaderGroups
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.memory import reserved
from harch.sentinel.store.series_encoding import SeriesRefusal, bits_of, decode_histogram, encode_histogram
from harch.sentinel.store.write_request import NO_VALUES, HistogramSample, Receipt, WriteRequest

# The code and the words for each verdict of the kernels that is a refusal.
_REASONS = {
    CONFLICT: ("E0611", "a sample at this time with a different value already exists"),
    TOO_LATE: ("E0610", "the sample is older than the newest of its series by more than the out-of-order window"),
    TOO_OLD: ("E0610", "the sample is older than allowed"),
    TOO_NEW: ("E0610", "the sample is too far in the future"),
    NO_ROOM: ("E0612", "the memory for new samples is full"),
}
_NO_HANDLES = np.empty(0, np.int32)
_MIN, _MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class SampleAppender:
    """One write after the other; the head's lock is held."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def append(self, request: WriteRequest, now_ms: int) -> Receipt:
        series_of_row, refusals = self._series(request)
        tally = _Tally()
        self._samples(request, series_of_row, refusals, now_ms, tally)
        histograms = sum(
            self._histogram(sample, series_of_row, refusals, now_ms, tally) for sample in request.histograms
        )
        for refusal in request.rare_refused:
            tally.refuse(refusal)
        exemplars = self._exemplars(request, series_of_row)
        for metric, known in request.metadata:
            self._head.set_metadata(metric, known)
        return Receipt(tally.samples, histograms, exemplars, dict(tally.refused), tally.first)

    def _series(self, request: WriteRequest) -> tuple[Array, dict[int, SeriesRefusal]]:
        """The series of every row, below 0 where it is refused, and the reasons."""
        index, refusals = self._head.index, dict(request.refusals)
        series = np.empty(len(request.label_starts), np.int32)
        hashes = np.empty(len(series), np.uint64)
        unknown = index.find(request.data, request.label_starts, request.label_ends, hashes, series)
        if unknown:
            rows = [row for row in np.flatnonzero(series == UNKNOWN).tolist() if row not in refusals]
            made = index.make_all(request.data, request.label_starts, request.label_ends, hashes, rows)
            for row, result in zip(rows, made, strict=True):
                if isinstance(result, SeriesRefusal):
                    refusals[row] = result
                else:
                    series[row] = result
        for row in request.refusals:
            series[row] = UNKNOWN
        return series, refusals

    def _samples(
        self,
        request: WriteRequest,
        series_of_row: Array,
        refusals: dict[int, SeriesRefusal],
        now_ms: int,
        tally: _Tally,
    ) -> None:
        if not len(request.rows):
            return
        head = self._head
        series = series_of_row[request.rows]
        verdicts, counts = np.empty(len(series), np.uint8), np.zeros(VERDICTS, np.int64)
        append_samples(
            head.arena, head.rows, series, request.timestamps, request.bits, request.starts, _NO_HANDLES,
            *self._bounds(now_ms), verdicts, counts,
        )  # fmt: skip
        tally.samples += int(counts[TAKEN] + counts[KNOWN])
        if counts[TAKEN] == len(series):
            columns = (request.timestamps, request.bits, request.starts)
            head.journal.samples(head.rows, head.index.keys, series, columns)
            return
        taken = verdicts == TAKEN
        if counts[TAKEN]:
            starts = request.starts[taken] if len(request.starts) else NO_VALUES
            columns = (request.timestamps[taken], request.bits[taken], starts)
            head.journal.samples(head.rows, head.index.keys, series[taken], columns)
        for verdict, (code, words) in _REASONS.items():
            if counts[verdict]:
                first = int(np.argmax(verdicts == verdict))
                labels = head.index.labels_of(int(series[first]))
                formatted = ", ".join(f'{name}="{value[:64]}"' for name, value in labels[:16])
                time = int(request.timestamps[first])
                tally.refuse(SeriesRefusal(code, f"{words}: {{{formatted}}} at {time}"), int(counts[verdict]))
        if counts[REFUSED_SERIES]:
            for row in request.rows[verdicts == REFUSED_SERIES].tolist():
                tally.refuse(refusals[row])

    def _histogram(
        self,
        sample: HistogramSample,
        series_of_row: Array,
        refusals: dict[int, SeriesRefusal],
        now_ms: int,
        tally: _Tally,
    ) -> int:
        """1 where the histogram is stored, now or before."""
        head, sid = self._head, int(series_of_row[sample.row])
        if sid < 0:
            tally.refuse(refusals[sample.row])
            return 0
        encoded = encode_histogram(sample.histogram)
        known = place_of(head.arena, head.rows, sid, sample.timestamp)
        if known and head.arena.lanes[known >> CHUNK_BITS] & HISTOGRAMS_LANE:
            handle = int(head.arena.histograms[known])
            if head.histograms.get(handle) == encoded:
                return 1
        if len(head.histograms) >= head.limits.histograms_in_memory_max:
            tally.refuse(SeriesRefusal("E0612", f"{len(head.histograms)} histograms are in memory"))
            return 0
        verdict = self.place_histogram(sid, sample, encoded, self._bounds(now_ms))
        if verdict != TAKEN:
            code, words = _REASONS[verdict]
            tally.refuse(SeriesRefusal(code, f"{words}: histogram at {sample.timestamp}"))
            return 0
        head.journal.histogram(head.rows, head.index.keys, sid, sample.timestamp, sample.start, encoded)
        return 1

    def place_histogram(self, sid: int, sample: HistogramSample, encoded: bytes, bounds: tuple[int, int, int]) -> int:
        """Puts one histogram into its series; the log repeats this after a crash."""
        head = self._head
        verdicts, counts = np.empty(1, np.uint8), np.zeros(VERDICTS, np.int64)
        append_samples(
            head.arena, head.rows, np.array([sid], np.int32), np.array([sample.timestamp], np.int64),
            np.array([bits_of(sample.histogram.sum)], np.uint64), np.array([sample.start], np.int64),
            np.array([head.next_handle], np.int32), *bounds, verdicts, counts,
        )  # fmt: skip
        if verdicts[0] == TAKEN:
            head.histograms[head.next_handle] = encoded
            head.next_handle = head.next_handle % (2**31 - 2) + 1
        return int(verdicts[0])

    def _exemplars(self, request: WriteRequest, series_of_row: Array) -> int:
        head, taken = self._head, []
        for row, exemplar in request.exemplars:
            sid = int(series_of_row[row])
            if sid >= 0 and head.exemplar_ring.add(head.index.labels_of(sid), exemplar):
                taken.append((sid, exemplar))
        if taken:
            head.journal.exemplars(head.rows, head.index.keys, taken)
        return len(taken)

    def _bounds(self, now_ms: int) -> tuple[int, int, int]:
        """How late within its series, how old, and how new may a sample be?"""
        limits = self._head.limits
        late = -1 if limits.out_of_order_ms is None else limits.out_of_order_ms
        oldest = _MIN if limits.age_ms_max is None else now_ms - limits.age_ms_max
        newest = _MAX if limits.ahead_ms_max is None else now_ms + limits.ahead_ms_max
        return late, oldest, newest


class _Tally:
    """How many were taken, how many refused, and the first reason."""

    def __init__(self) -> None:
        self.samples = 0
        self.refused: Counter[str] = Counter()
        self.first: SeriesRefusal | None = None

    def refuse(self, refusal: SeriesRefusal, count: int = 1) -> None:
        self.first = self.first or refusal
        self.refused[refusal.code] += count


# How does a query read the head? It notes places under the lock and copies them afterwards, on several cores.


_SHARE_FROM = 1 << 18  # samples from which it pays to wake other threads
_THREADS_MAX = 8


@dataclass(frozen=True, slots=True)
class HeadReadPlan:
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


def plan_read(head: Head, series: Array, start: int, end: int, which: int) -> HeadReadPlan:
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
    return HeadReadPlan(series, piece_at[:pieces], piece_count[:pieces], piece_first, sample_first, untidy, lanes)


def copy_samples(arena: Arena, plan: HeadReadPlan, histograms: Mapping[int, bytes]) -> Samples:
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


def _copies(arena: Arena, plan: HeadReadPlan) -> tuple[Array, Array, Array, Array, Array]:
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


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind


# What came lately? All samples of one tenant that are not in blocks yet, for writers and readers in many threads.


FOREVER = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_NO_LIMIT = 1 << 62


class Head:
    """Samples in memory. Writers hold the lock for as long as their kernels run, readers to find places only."""

    def __init__(self, limits: TenantLimits, journal: HeadJournal) -> None:
        self.limits = limits
        self.journal = journal
        self.rows: Array = reserved(rows_needed(limits) * ROW, np.int64).reshape(-1, ROW)
        self.arena = _arena(limits.samples_in_memory_max // CHUNK + limits.series_max // 4 + 64)
        self.index = SeriesIndex(self.rows, limits, secrets.randbits(64))
        self.histograms: dict[int, bytes] = {}  # handle -> encoded; replaced, not emptied, since readers keep it
        self.next_handle = 1
        self.exemplar_ring = ExemplarRing(limits.exemplars_max)
        self._metadata: dict[str, MetricMetadata] = {}
        self.lock = threading.Lock()
        self._readers = ReaderGroups()
        self._cut_until: int | None = None
        self.cut_segment = 0  # the first segment of the log that holds nothing of before that cut
        self.appending = SampleAppender(self)

    @property
    def seed(self) -> np.uint64:
        return self.index.seed

    @property
    def sample_count(self) -> int:
        return int(self.arena.counters[SAMPLES])

    @property
    def series_count(self) -> int:
        return self.index.alive

    @property
    def chunks_used(self) -> int:
        counters = self.arena.counters
        return int(counters[FRESH] - counters[FREE])

    @property
    def is_nearly_full(self) -> bool:
        """Whether it is time to cut, whatever the age of the samples."""
        return 4 * self.chunks_used > 3 * len(self.arena.links) or (
            4 * len(self.histograms) > 3 * self.limits.histograms_in_memory_max
        )

    def append(self, request: WriteRequest, *, now_ms: int) -> Receipt:
        """Takes what may be taken of a request. The caller makes the journal durable before it tells anyone."""
        with self.lock:
            self.tidy()
            return self.appending.append(request, now_ms)

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int = _NO_LIMIT) -> Selection:
        """Samples of all matching series, both ends included. Raises E0603 beyond `limit` samples."""
        return self._read(matchers, start, end, limit, ALL)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        """Labels alone of matching series that have samples in the range."""
        self.index.judge_ahead(matchers)
        with self.lock:
            plan = plan_read(self, self.index.matching(matchers), start, end, ALL)
            return self.index.table_of(plan.series)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        with self.lock:
            ring = self.exemplar_ring.snapshot()
        return found_in(ring, matchers, start, end)

    def metadata(self) -> dict[str, MetricMetadata]:
        with self.lock:
            return dict(self._metadata)

    def set_metadata(self, metric: str, known: MetricMetadata) -> None:
        """Notes what is known of a metric, holding the lock; beyond the limit, only of metrics noted before."""
        if self._metadata.get(metric) == known:
            return
        if metric not in self._metadata and len(self._metadata) >= self.limits.metadata_max:
            return
        self._metadata[metric] = known
        self.journal.metadata(metric, known)

    def time_range(self) -> tuple[int, int] | None:
        """Oldest time of any sample, and newest that any series had; None without samples."""
        with self.lock:
            oldest, newest = time_bounds(self.arena, self.rows, self.index.count)
        return (int(oldest), int(newest)) if oldest <= newest else None

    def newest_ms(self) -> int | None:
        """The newest time that any known series ever had; None without series."""
        with self.lock:
            _, newest = time_bounds(self.arena, self.rows, self.index.count)
        return None if newest == FOREVER[0] else int(newest)

    def cut(self, until: int) -> Selection:
        """All samples up to `until`, by whole series, for a block; a cut that was not forgotten comes again first.

        They stay readable here until `forget`. Samples that come later are not part of it, whatever their time.
        """
        with self.lock:
            if self._cut_until is None:
                spared = self.take_front(until, [])
                segment = self.journal.cut(self.rows, self.index.keys, until, spared)
                self.cut_segment = segment if not spared else 0  # what was spared is in the log only
        return self._read((), *FOREVER, _NO_LIMIT, CUT_ONLY)

    @property
    def cut_until(self) -> int | None:
        """The end of the cut that waits to be forgotten."""
        return self._cut_until

    def take_front(self, until: int, spared: Sequence[int]) -> list[int]:
        """Marks what a cut takes, holding the lock, and returns series that had to be spared for want of memory.

        The log repeats this after a crash, and spares the same.
        """
        places = np.empty(self.index.count, np.int64)
        places[: len(spared)] = sorted(spared)
        count = cut_front(self.arena, self.rows, self.index.count, until, places, len(spared))
        self._cut_until = until
        left: list[int] = places[:count].tolist()
        return left

    def forget(self, *, idle_since: int = _NO_LIMIT) -> None:
        """Lets the last cut go, and series that have no samples left and none since `idle_since`."""
        with self.lock:
            if self._cut_until is not None:
                self.drop_front(idle_since)
                self.journal.forget(idle_since)

    def drop_front(self, idle_since: int) -> None:
        """What `forget` does, holding the lock; the log repeats this after a crash."""
        if self.histograms:
            gone = set(self._handles(CUT_ONLY))
            self.histograms = {handle: kept for handle, kept in self.histograms.items() if handle not in gone}
        idle = np.empty(self.index.count, np.int64)
        count = forget_cut(self.arena, self.rows, self.index.count, idle_since, idle)
        self.index.remove(idle[:count])
        self._cut_until = None
        self.tidy()
        self.tidy()

    def erase(self, matchers: Sequence[Matcher], start: int, end: int) -> None:
        """Deletes samples and exemplars of matching series for good. A cut that was not forgotten is undone."""
        with self.lock:
            series = self.index.matching(matchers)
            self.journal.erase(self.rows, self.index.keys, series, matchers, (start, end))
            self.exemplar_ring.erase(matchers, start, end)
            self.erase_series(series, start, end)

    def erase_series(self, series: Array, start: int, end: int) -> None:
        """What `erase` does to samples, holding the lock; the log repeats this after a crash."""
        if self._cut_until is not None:
            self._rebuild(self.index.matching(()), 1, 0)
            self._cut_until = None
        self._rebuild(series, start, end)
        if self.histograms:
            alive = set(self._handles(ALL))
            self.histograms = {handle: kept for handle, kept in self.histograms.items() if handle in alive}

    def _rebuild(self, series: Array, start: int, end: int) -> None:
        done = 0
        while done < len(series):
            done += rebuild(self.arena, self.rows, series[done:], start, end)
            if done < len(series) and not self.tidy():
                raise HarchError("E0612", "not enough memory to erase samples", hint="try again after the next cut")

    def is_small(self, matchers: Sequence[Matcher], series_max: int) -> bool:
        """Whether at most so many series match. Regular expressions take long, so they never count as small."""
        if any(matcher.kind in (MatchKind.REGEX, MatchKind.NOT_REGEX) for matcher in matchers):
            return False
        with self.lock:
            return len(self.index.matching(matchers)) <= series_max

    def _read(self, matchers: Sequence[Matcher], start: int, end: int, limit: int, which: int) -> Selection:
        self.index.judge_ahead(matchers)
        with self.lock:
            series = self.index.matching(matchers)
            if not len(series):
                return NOTHING
            plan = plan_read(self, series, start, end, which)
            if plan.samples > limit:
                raise HarchError("E0603", f"the query reads {plan.samples} samples; {limit} are allowed")
            table = self.index.table_of(plan.series)
            histograms = self.histograms
            group = self._readers.enter()
        try:
            return Selection(table, copy_samples(self.arena, plan, histograms))
        finally:
            with self.lock:
                self._readers.leave(group)

    def _handles(self, which: int) -> list[int]:
        plan: HeadReadPlan = plan_read(self, self.index.matching(()), *FOREVER, which)
        return plan.histogram_handles(self.arena)

    def tidy(self) -> bool:
        """Takes chunks back into use that no reader looks at any more, holding the lock. False: there were none."""
        counters = self.arena.counters
        if counters[LIMBO] == 0 or not self._readers.turn():
            return False
        gave = bool(counters[LIMBO_OLD])
        leave_limbo(self.arena)
        return gave or bool(counters[LIMBO_OLD])


def _arena(chunks: int) -> Arena:
    counters = np.zeros(COUNTERS, np.int64)
    counters[FRESH] = 1
    return Arena(
        timestamps=reserved(chunks * CHUNK, np.int64),
        bits=reserved(chunks * CHUNK, np.uint64),
        starts=reserved(chunks * CHUNK, np.int64),
        histograms=reserved(chunks * CHUNK, np.int32),
        links=reserved(chunks * 2, np.int32).reshape(-1, 2),
        lanes=reserved(chunks, np.uint8),
        free=reserved(chunks, np.int32),
        limbo=reserved(chunks, np.int32),
        counters=counters,
    )
