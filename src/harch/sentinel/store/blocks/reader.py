"""How are samples read from a block's pages? Times first, which say how much there is; then values, to their places."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.selection import Codes, Ints, Samples
from harch.sentinel.store.blocks.bytes_kernels import BROKEN
from harch.sentinel.store.blocks.columns_kernels import decode_integer_columns, decode_value_columns
from harch.sentinel.store.blocks.index_file import Hit, IndexFile, PageKind, has_kind, pages_holding
from harch.sentinel.store.blocks.pages import BrokenPage, Bytes, decode_histograms, unpack
from harch.sentinel.store.blocks.sample_kernels import copy_regions, cut_regions


@dataclass(frozen=True, slots=True)
class _Part:
    """What is wanted of one slot. Arrays by series: length of its column, and which part of it is in the range."""

    slot: int
    length: Ints
    skip: Ints
    take: Ints
    times: Ints  # columns of times that are needed
    begin: Ints  # where in `times` the part of each series starts


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Which samples of which series are wanted: `count` by series."""

    places: Ints
    count: Ints
    parts: tuple[_Part, ...]


@dataclass(slots=True)
class ReadAnswer:
    """Where samples are read to. Room for starts and histograms is made when the first of them comes."""

    samples: Samples
    histogram_at: Codes | None = None
    starts: Ints | None = None
    histograms: list[NativeHistogram] = field(default_factory=list)

    @staticmethod
    def for_counts(count: Ints) -> ReadAnswer:
        total = int(count.sum())
        first = np.cumsum(count) - count
        return ReadAnswer(Samples(first, count, np.empty(total, np.int64), np.empty(total, np.float64)))

    def make_room_for_histograms(self) -> None:
        if self.histogram_at is None:
            self.histogram_at = np.full(len(self.samples.timestamps), -1, np.int32)

    def starts_array(self) -> Ints:
        if self.starts is None:
            self.starts = np.zeros(len(self.samples.timestamps), np.int64)
        return self.starts

    def with_histograms(self) -> Samples:
        return replace(self.samples, histogram_at=self.histogram_at)

    def finished(self) -> Samples:
        at = self.histogram_at if self.histograms else None
        return replace(self.samples, starts=self.starts, histogram_at=at, histograms=self.histograms)


class PageReader:
    """Raises BrokenPage where bytes are not as they were written."""

    def __init__(self, index: IndexFile, samples: memoryview) -> None:
        self._index = index
        self._samples = samples

    def slots(self) -> list[tuple[int, int]]:
        starts, ends = self._index.integers("slots")
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def counts(self, places: Ints, start: int, end: int) -> Ints:
        """How many samples of each of these series are in the range?"""
        counts = np.zeros(len(places), np.int64)
        for slot in self._slots_within(start, end):
            counts += self._part(slot, places, start, end).take
        return counts

    def plan(self, places: Ints, start: int, end: int, limit: int | None) -> ReadPlan:
        """What of these series (ascending) is in the range. Raises E0603 beyond `limit`, before values are read."""
        parts: list[_Part] = []
        count = np.zeros(len(places), np.int64)
        for slot in self._slots_within(start, end):
            part = self._part(slot, places, start, end)
            parts.append(part)
            count += part.take
            if limit is not None and int(count.sum()) > limit:
                raise HarchError("E0603", "the query exceeds its limit of samples")
        return ReadPlan(places, count, tuple(parts))

    def fill(self, plan: ReadPlan, first: Ints, answer: ReadAnswer) -> None:
        """Reads what was planned; the samples of series i go to the places from `first[i]` on."""
        if has_kind(self._index, PageKind.HISTOGRAMS):
            answer.make_room_for_histograms()
        target = first.copy()
        for part in plan.parts:
            copy_regions(part.times, part.begin, part.take, target, answer.samples.timestamps)
            self._read_slot(part, plan.places, target, answer)
            target += part.take

    def read(self, places: Ints, start: int, end: int, limit: int | None) -> Samples:
        """Plans and reads."""
        plan = self.plan(places, start, end, limit)
        answer = ReadAnswer.for_counts(plan.count)
        self.fill(plan, answer.samples.first, answer)
        return answer.finished()

    def _read_slot(self, part: _Part, places: Ints, target: Ints, answer: ReadAnswer) -> None:
        """Values, starts and histograms of one slot, to their places. Histograms take their sums from the values."""
        for kind in (PageKind.VALUES, PageKind.STARTS, PageKind.HISTOGRAMS):
            for hit in pages_holding(self._index, kind, part.slot, places):
                mine = slice(hit.low, hit.high)
                if not part.take[mine].any():
                    continue
                wanted = places[mine] - hit.first
                regions = (part.length[mine], part.skip[mine], part.take[mine], target[mine])
                if kind is PageKind.HISTOGRAMS:
                    raw = unpack(self._samples, hit.place)
                    at = {series: place for place, series in enumerate(wanted.tolist())}
                    decode_histograms(raw, at, answer.with_histograms(), *regions[1:], answer.histograms)
                    continue
                columns = self._columns(hit, wanted)
                if kind is PageKind.VALUES:
                    done = decode_value_columns(*columns, *regions, answer.samples.values)
                else:
                    done = decode_integer_columns(*columns, *regions, answer.starts_array())
                if done == BROKEN:
                    raise BrokenPage("a column does not decode")

    def _slots_within(self, start: int, end: int) -> list[int]:
        return [slot for slot, (low, high) in enumerate(self.slots()) if low <= end and start <= high]

    def _part(self, slot: int, places: Ints, start: int, end: int) -> _Part:
        codes, lengths, _, _ = self._slot_times(slot)
        column = codes[places] - 1
        needed = np.unique(column[column >= 0])
        times, first = self._times(slot, needed, lengths)
        cut_first, cut_count = cut_regions(times, first, lengths[needed], start, end)
        at = np.searchsorted(needed, column)  # series without samples find something, and take nothing of it
        at[at == len(needed)] = 0
        if not len(needed):
            nothing = np.zeros(len(places), np.int64)
            return _Part(slot, nothing, nothing, nothing, times, nothing)
        present = column >= 0
        return _Part(
            slot,
            np.where(present, lengths[needed][at], 0),
            np.where(present, (cut_first - first)[at], 0),
            np.where(present, cut_count[at], 0),
            times,
            cut_first[at],
        )

    def _slot_times(self, slot: int) -> tuple[Ints, Ints, Ints, Ints]:
        codes, lengths, firsts, lasts = self._index.integers(f"times/{slot}")
        return codes, lengths, firsts, lasts

    def _times(self, slot: int, needed: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """The times of these columns, and where each one starts."""
        length = lengths[needed]
        first = np.cumsum(length) - length
        times = np.empty(int(length.sum()), np.int64)
        for hit in pages_holding(self._index, PageKind.TIMES, slot, needed):
            mine = slice(hit.low, hit.high)
            size, nothing = length[mine], np.zeros(hit.high - hit.low, np.int64)
            columns = self._columns(hit, needed[mine] - hit.first)
            if decode_integer_columns(*columns, size, nothing, size, first[mine], times) == BROKEN:
                raise BrokenPage("a column of times does not decode")
        return times, first

    def _columns(self, hit: Hit, wanted: Ints) -> tuple[Bytes, Ints, Ints]:
        """The bytes of a page's columns, and where the wanted ones begin and stop."""
        raw = unpack(self._samples, hit.place)
        head = 4 * hit.count
        if len(raw) < head:
            raise BrokenPage("a page is too short")
        places = np.zeros(hit.count + 1, np.int64)
        places[1:] = raw[:head].view(np.uint32)
        return raw[head:], places[wanted], places[wanted + 1]
