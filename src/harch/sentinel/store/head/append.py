"""What becomes of a request? Known series at once; new ones are named first, if they may be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.append_kernels import (
    CONFLICT,
    KNOWN,
    NO_ROOM,
    REFUSED_SERIES,
    TAKEN,
    TOO_LATE,
    TOO_NEW,
    TOO_OLD,
    VERDICTS,
    append_samples,
)
from harch.sentinel.store.head.arena_kernels import CHUNK_BITS, HISTOGRAMS_LANE
from harch.sentinel.store.head.find_kernels import place_of
from harch.sentinel.store.head.index_kernels import UNKNOWN
from harch.sentinel.store.histogram_bytes import bits_of, encode_histogram
from harch.sentinel.store.label_bytes import Refusal
from harch.sentinel.store.request import NOTHING, HistogramSample, Receipt, Request

if TYPE_CHECKING:
    from harch.sentinel.store.head.head import Head

# The code and the words for each verdict of the kernels that is a refusal.
_REASONS = {
    CONFLICT: ("E0611", "a sample of this time with another value is stored already"),
    TOO_LATE: ("E0610", "the sample is older than the newest of its series by more than the window"),
    TOO_OLD: ("E0610", "the sample is older than allowed"),
    TOO_NEW: ("E0610", "the sample lies further in the future than allowed"),
    NO_ROOM: ("E0612", "the memory for new samples is full"),
}
_NO_HANDLES = np.empty(0, np.int32)
_MIN, _MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Appending:
    """One write after the other; the head's lock is held."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def append(self, request: Request, now_ms: int) -> Receipt:
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

    def _series(self, request: Request) -> tuple[Array, dict[int, Refusal]]:
        """The series of every row, below 0 where it is refused, and the reasons."""
        index, refusals = self._head.index, dict(request.refusals)
        series = np.empty(len(request.label_starts), np.int32)
        hashes = np.empty(len(series), np.uint64)
        unknown = index.find(request.data, request.label_starts, request.label_ends, hashes, series)
        if unknown:
            rows = [row for row in np.flatnonzero(series == UNKNOWN).tolist() if row not in refusals]
            made = index.make_all(request.data, request.label_starts, request.label_ends, hashes, rows)
            for row, result in zip(rows, made, strict=True):
                if isinstance(result, Refusal):
                    refusals[row] = result
                else:
                    series[row] = result
        for row in request.refusals:
            series[row] = UNKNOWN
        return series, refusals

    def _samples(
        self, request: Request, series_of_row: Array, refusals: dict[int, Refusal], now_ms: int, tally: _Tally
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
            starts = request.starts[taken] if len(request.starts) else NOTHING
            columns = (request.timestamps[taken], request.bits[taken], starts)
            head.journal.samples(head.rows, head.index.keys, series[taken], columns)
        for verdict, (code, words) in _REASONS.items():
            if counts[verdict]:
                first = int(np.argmax(verdicts == verdict))
                labels = head.index.labels_of(int(series[first]))
                shown = ", ".join(f'{name}="{value[:64]}"' for name, value in labels[:16])
                time = int(request.timestamps[first])
                tally.refuse(Refusal(code, f"{words}: {{{shown}}} at {time}"), int(counts[verdict]))
        if counts[REFUSED_SERIES]:
            for row in request.rows[verdicts == REFUSED_SERIES].tolist():
                tally.refuse(refusals[row])

    def _histogram(
        self, sample: HistogramSample, series_of_row: Array, refusals: dict[int, Refusal], now_ms: int, tally: _Tally
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
            tally.refuse(Refusal("E0612", f"{len(head.histograms)} histograms are in memory"))
            return 0
        verdict = self.place_histogram(sid, sample, encoded, self._bounds(now_ms))
        if verdict != TAKEN:
            code, words = _REASONS[verdict]
            tally.refuse(Refusal(code, f"{words}: histogram at {sample.timestamp}"))
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

    def _exemplars(self, request: Request, series_of_row: Array) -> int:
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
        self.first: Refusal | None = None

    def refuse(self, refusal: Refusal, count: int = 1) -> None:
        self.first = self.first or refusal
        self.refused[refusal.code] += count
