"""What was in memory before the crash? The log, carried out again record by record."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind, MetricMetadata, MetricType
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.arena_kernels import NO_ROOM
from harch.sentinel.store.head.head import Head
from harch.sentinel.store.head.index_kernels import UNKNOWN
from harch.sentinel.store.memory import grown
from harch.sentinel.store.series_encoding import decode_histogram, number_of
from harch.sentinel.store.wal import journal
from harch.sentinel.store.wal.record_kernels import (
    BROKEN,
    DONE,
    FULL,
    MORE_SAMPLES,
    MORE_SERIES,
    UNKNOWN_SERIES,
    list_names,
    replay_records,
)
from harch.sentinel.store.wal.salvage import DamagedSegment, note_missing, note_unreadable, read_segment
from harch.sentinel.store.wal.segments import segment_numbers, segment_path
from harch.sentinel.store.write_request import HistogramSample

_NAMES_AT_ONCE = 4096
_NUMBER_MAX = 1 << 31
_ANY_TIME = (-1, int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max))

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replayed:
    """What the log held."""

    newest: dict[int, int] = field(default_factory=dict)  # segment -> newest time of its samples
    last_segment: int = 0
    torn_bytes: int = 0  # at ends of segments: what was never acknowledged
    damaged: list[DamagedSegment] = field(default_factory=list)
    skipped: int = 0  # samples and records behind damage that mean nothing without what was lost


def replay(folder: Path, head: Head) -> Replayed:
    """Brings the head to where it was. Torn ends are cut off; damage is put right or reported, see `salvage`."""
    outcome = Replayed()
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        segment = read_segment(path, outcome.damaged)
        reader = _SegmentReader(head, segment.data, number)
        for start, end, is_behind_gap in segment.pieces():
            if is_behind_gap:
                reader.lose()
            if not reader.take(start, end):  # its checksum is right, so what came before it was not read rightly
                note_unreadable(path, end - start, outcome.damaged)
                reader.lose()
        outcome.newest[number] = reader.newest
        outcome.torn_bytes += segment.torn_bytes
        outcome.skipped += reader.skipped
        outcome.last_segment = number
    note_missing(folder, 0, outcome.damaged)
    if outcome.skipped:
        _log.error("E0619: %d samples and records in %s are unusable without what was lost", outcome.skipped, folder)
    return outcome


class _SegmentReader:
    """Series have numbers of their own in each segment."""

    def __init__(self, head: Head, data: Array, number: int) -> None:
        self.data = data
        self._number = number
        self.newest = _ANY_TIME[1]
        self._head = head
        self._names: Array = np.full(1024, UNKNOWN, np.int32)
        self._values: Array = np.zeros(1024, np.uint64)
        self._starts: Array = np.zeros(1024, np.int64)
        self._columns = self._scratch(4096)
        self._skipped = np.zeros(1, np.int64)
        self._is_lost = False

    @property
    def skipped(self) -> int:
        return int(self._skipped[0])

    def lose(self) -> None:
        """Something before is lost. From here on a series means nothing until it is named again: values are written
        as differences from the one before, and a number may have been given to another series."""
        self._is_lost = True
        self._names[:] = UNKNOWN

    def take(self, start: int, end: int) -> bool:
        """Carries the records of one frame out; False where they make no sense."""
        at, head = start, self._head
        head.tidy()
        while True:
            index = head.index
            why, at, more = replay_records(
                self.data, at, end, self._names, self._values, self._starts, self._columns, index.table, index.keys,
                index.seed, head.arena, head.rows, self._skipped, self._is_lost,
            )  # fmt: skip
            if why in (MORE_SERIES, MORE_SAMPLES):
                self._make_room(why, more)
                continue
            self.newest = max(self.newest, more)
            if why == DONE:
                return True
            if why == FULL:
                raise _too_many()
            if why == BROKEN:
                return False
            at = self._name(at, end) if why == UNKNOWN_SERIES else self._other(at, end)
            if at < 0:
                return False

    def _make_room(self, why: int, more: int) -> None:
        if why == MORE_SAMPLES:
            self._columns = self._scratch(more)
            return
        old = len(self._names)
        self._names = grown(self._names, more + 1)
        self._names[old:] = UNKNOWN
        self._values = grown(self._values, len(self._names))
        self._starts = grown(self._starts, len(self._names))

    def _name(self, at: int, end: int) -> int:
        """Makes the series that records from here on name, many at once; returns the offset behind them."""
        numbers, starts, ends = (np.empty(_NAMES_AT_ONCE, np.int64) for _ in range(3))
        stop = np.empty(1, np.int64)
        count = list_names(self.data, at, end, numbers, starts, ends, stop)
        if count == 0 or numbers[:count].max() > _NUMBER_MAX:
            return -1
        self._make_room(MORE_SERIES, int(numbers[:count].max()))
        index = self._head.index
        series, hashes = np.empty(count, np.int32), np.empty(count, np.uint64)
        index.find(self.data, starts[:count], ends[:count], hashes, series)
        unknown = np.flatnonzero(series == UNKNOWN).tolist()
        made = index.make_all(self.data, starts, ends, hashes, unknown, limited=False)
        for place, result in zip(unknown, made, strict=True):
            if isinstance(result, HarchError):
                raise result
            series[place] = result
        self._names[numbers[:count]] = series
        self._values[numbers[:count]] = 0
        self._starts[numbers[:count]] = 0
        return int(stop[0])

    def _other(self, at: int, end: int) -> int:
        if end - at < 5:
            return -1
        kind = int(self.data[at])
        length = int.from_bytes(self.data[at + 1 : at + 5].tobytes(), "little")
        if length > end - at - 5:
            return -1
        content = msgspec.msgpack.decode(self.data[at + 5 : at + 5 + length].tobytes())
        self._carry_out(kind, content)
        return at + 5 + length

    def _carry_out(self, kind: int, content: object) -> None:
        head = self._head
        match kind, content:
            case journal.HISTOGRAM, [int(number), int(timestamp), int(start), bytes(encoded)]:
                if (sid := self._series(number)) == UNKNOWN:
                    return
                sample = HistogramSample(0, timestamp, decode_histogram(encoded), start)
                if head.appending.place_histogram(sid, sample, encoded, _ANY_TIME) == NO_ROOM:
                    raise _too_many()
                self.newest = max(self.newest, timestamp)
            case journal.EXEMPLARS, list(entries):
                for number, labels, bits, timestamp in entries:
                    if (sid := self._series(number)) != UNKNOWN:
                        exemplar = Exemplar(tuple((name, value) for name, value in labels), number_of(bits), timestamp)
                        head.exemplar_ring.add(head.index.labels_of(sid), exemplar)
            case journal.METADATA, list(entries):
                for metric, form, unit, text in entries:
                    head.set_metadata(metric, MetricMetadata(MetricType(form), unit, text))
            case journal.CUT, [int(until), list(numbers)]:
                if self._is_lost:  # whom it spared is not known; what stays in memory and is in a block is seen once
                    return
                spared = [int(self._names[number]) for number in numbers]
                if len(head.take_front(until, spared)) > len(spared):
                    raise _too_many()
                head.cut_segment = 0 if spared else self._number + 1
            case journal.FORGET, int(idle_since):
                if not self._is_lost:
                    head.drop_front(idle_since)
            case journal.ERASE, [list(numbers), list(written), [int(start), int(end)]]:
                matchers = [Matcher(MatchKind(form), name, value) for form, name, value in written]
                if self._is_lost:  # by labels instead of numbers: better too much than what must not be seen
                    series = head.index.matching(matchers)
                else:
                    series = self._names[np.array(numbers, np.int64)].astype(np.int64)
                head.exemplar_ring.erase(matchers, start, end)
                head.erase_series(series, start, end)
            case _:
                raise HarchError("E0619", f"the log has a record of kind {kind}", hint="a newer release wrote it")

    def _series(self, number: int) -> int:
        """The series of a number; UNKNOWN, and counted, if its name was lost."""
        sid = int(self._names[number]) if number < len(self._names) else UNKNOWN
        self._skipped[0] += sid == UNKNOWN
        return sid

    @staticmethod
    def _scratch(length: int) -> tuple[Array, Array, Array, Array]:
        kinds = (np.int32, np.int64, np.uint64, np.int64)
        series, timestamps, bits, starts = (np.empty(length, kind) for kind in kinds)
        return series, timestamps, bits, starts


def _too_many() -> HarchError:
    return HarchError("E0612", "the log holds more samples than may be in memory", hint="raise the limit")
