"""What came lately? All samples of one tenant that are not in blocks yet, for writers and readers in many threads."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.metadata import Metadata
from harch.sentinel.model.selection import NOTHING, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.append import Appending
from harch.sentinel.store.head.arena_kernels import (
    CHUNK,
    COUNTERS,
    FREE,
    FRESH,
    LIMBO,
    LIMBO_OLD,
    ROW,
    SAMPLES,
    Arena,
    leave_limbo,
)
from harch.sentinel.store.head.cut_kernels import cut_front, forget_cut, rebuild
from harch.sentinel.store.head.exemplars import ExemplarRing, found_in
from harch.sentinel.store.head.index import SeriesIndex, rows_needed
from harch.sentinel.store.head.journal import Journal
from harch.sentinel.store.head.read_kernels import ALL, CUT_ONLY, time_bounds
from harch.sentinel.store.head.readers import Readers
from harch.sentinel.store.head.reading import Plan, copy_samples, plan_read
from harch.sentinel.store.limits import Limits
from harch.sentinel.store.memory import reserved
from harch.sentinel.store.request import Receipt, Request

FOREVER = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_NO_LIMIT = 1 << 62


class Head:
    """Samples in memory. Writers hold the lock for as long as their kernels run, readers to find places only."""

    def __init__(self, limits: Limits, journal: Journal) -> None:
        self.limits = limits
        self.journal = journal
        self.rows: Array = reserved(rows_needed(limits) * ROW, np.int64).reshape(-1, ROW)
        self.arena = _arena(limits.samples_in_memory_max // CHUNK + limits.series_max // 4 + 64)
        self.index = SeriesIndex(self.rows, limits, secrets.randbits(64))
        self.histograms: dict[int, bytes] = {}  # handle -> encoded; replaced, not emptied, since readers keep it
        self.next_handle = 1
        self.exemplar_ring = ExemplarRing(limits.exemplars_max)
        self._metadata: dict[str, Metadata] = {}
        self.lock = threading.Lock()
        self._readers = Readers()
        self._cut_until: int | None = None
        self.cut_segment = 0  # the first segment of the log that holds nothing of before that cut
        self.appending = Appending(self)

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

    def append(self, request: Request, *, now_ms: int) -> Receipt:
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

    def metadata(self) -> dict[str, Metadata]:
        with self.lock:
            return dict(self._metadata)

    def set_metadata(self, metric: str, known: Metadata) -> None:
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
                raise HarchError("E0612", "no memory is left to erase samples", hint="try again after the next cut")

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
        plan: Plan = plan_read(self, self.index.matching(()), *FOREVER, which)
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
