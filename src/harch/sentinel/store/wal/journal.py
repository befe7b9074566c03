"""What will the log write next? Records of all writes since the last sync, put together under the head's lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from harch.sentinel.model.labels import Matcher, MetricMetadata
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.head.arena_kernels import NEVER
from harch.sentinel.store.memory import reserved
from harch.sentinel.store.series_encoding import bits_of
from harch.sentinel.store.wal.record_kernels import SAMPLE_BYTES_MAX, name_series, write_samples

HISTOGRAM, EXEMPLARS, METADATA, CUT, FORGET, ERASE = range(16, 22)
SEGMENT_BYTES = 64 << 20
_FIRST_BUFFER = 1 << 18
_BUFFER_KEPT_MAX = 8 << 20

_pack = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class SegmentBuffer:
    """Records for one segment that are not on disk yet."""

    segment: int
    buffer: Array = field(default_factory=lambda: np.empty(_FIRST_BUFFER, np.uint8))
    used: int = 0

    def payload(self) -> memoryview:
        return memoryview(self.buffer)[: self.used]

    def reserve(self, size: int) -> None:
        if self.used + size > len(self.buffer):
            larger = np.empty(max(2 * len(self.buffer), self.used + size), np.uint8)
            larger[: self.used] = self.buffer[: self.used]
            self.buffer = larger


class LogJournal:
    """Collects records. A segment names its series itself, so that older ones can go without a checkpoint."""

    def __init__(self, first_segment: int, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.segment = first_segment
        self.newest: dict[int, int] = {}  # segment -> newest time of its samples
        self.ticket = 0  # grows with every record: who waits for it, waits for all before
        self._segment_bytes = segment_bytes
        self._segment_used = 0
        self._names_used = 0
        self._metadata: dict[str, MetricMetadata] = {}
        self._starts: Array = np.empty(0, np.int64)  # of each series, the start that the segment wrote last
        self._batches: list[SegmentBuffer] = []
        self._spare: list[Array] = []
        self._lock = threading.Lock()

    def take(self) -> tuple[list[SegmentBuffer], int]:
        """All that waits to be written, and the ticket of the last record in it."""
        with self._lock:
            batches, self._batches = self._batches, []
            return batches, self.ticket

    def give_back(self, batches: Sequence[SegmentBuffer]) -> None:
        """Buffers that were written can be used again."""
        with self._lock:
            fitting = [batch.buffer for batch in batches if len(batch.buffer) <= _BUFFER_KEPT_MAX]
            self._spare = (self._spare + fitting)[:2]

    def rotate(self) -> int:
        """What comes from now on goes into another segment; returns the number of that one."""
        with self._lock:
            self._next_segment()
            return self.segment

    def remember(self, metadata: dict[str, MetricMetadata]) -> None:
        """Each segment begins with what is known of metrics, so that it outlives the segment that first said it."""
        self._metadata = dict(metadata)
        with self._lock:
            self._write_metadata()

    def samples(self, rows: Array, keys: Array, series: Array, columns: tuple[Array, Array, Array]) -> None:
        with self._lock:
            batch = self._name(rows, keys, series)
            batch.reserve(len(series) * SAMPLE_BYTES_MAX + 16)
            used, newest = write_samples(rows, series, *columns, self._starts, batch.buffer, batch.used)
            self._segment_used += used - batch.used
            batch.used = used
            self._note(newest)

    def histogram(self, rows: Array, keys: Array, sid: int, timestamp: int, start: int, encoded: bytes) -> None:
        with self._lock:
            self._name(rows, keys, np.array([sid], np.int32))
            self._put(HISTOGRAM, (sid, timestamp, start, encoded))
            self._note(timestamp)

    def exemplars(self, rows: Array, keys: Array, entries: Sequence[tuple[int, Exemplar]]) -> None:
        with self._lock:
            self._name(rows, keys, np.array([sid for sid, _ in entries], np.int32))
            self._put(EXEMPLARS, [(sid, one.labels, bits_of(one.value), one.timestamp) for sid, one in entries])

    def metadata(self, metric: str, known: MetricMetadata) -> None:
        with self._lock:
            self._metadata[metric] = known
            self._put(METADATA, [(metric, known.type.value, known.unit, known.help)])

    def cut(self, rows: Array, keys: Array, until: int, spared: Sequence[int]) -> int:
        with self._lock:
            self._name(rows, keys, np.array(spared, np.int32))
            self._put(CUT, (until, spared))
            self._next_segment()
            return self.segment

    def forget(self, idle_since: int) -> None:
        with self._lock:
            self._put(FORGET, idle_since)

    def erase(
        self, rows: Array, keys: Array, series: Array, matchers: Sequence[Matcher], span: tuple[int, int]
    ) -> None:
        with self._lock:
            self._name(rows, keys, series.astype(np.int32))
            written = [(matcher.kind.value, matcher.name, matcher.value) for matcher in matchers]
            self._put(ERASE, (series.tolist(), written, span))

    def _begin(self) -> None:
        """Before a record and the names it needs, which must be in the same segment."""
        if self._segment_used > self._segment_bytes + 3 * self._names_used:  # names are worth it only for many samples
            self._next_segment()

    def _batch(self) -> SegmentBuffer:
        self.ticket += 1
        if not self._batches or self._batches[-1].segment != self.segment:
            fresh = SegmentBuffer(self.segment, self._spare.pop()) if self._spare else SegmentBuffer(self.segment)
            self._batches.append(fresh)
            self.newest.setdefault(self.segment, NEVER)
        return self._batches[-1]

    def _name(self, rows: Array, keys: Array, series: Array) -> SegmentBuffer:
        self._begin()
        if len(self._starts) < len(rows):
            self._starts = reserved(len(rows), np.int64)
        batch = self._batch()
        used = name_series(rows, keys, series, self._starts, self.segment, batch.buffer, batch.used)
        if used < 0:
            batch.reserve(-used)
            used = name_series(rows, keys, series, self._starts, self.segment, batch.buffer, batch.used)
        self._segment_used += used - batch.used
        self._names_used += used - batch.used
        batch.used = used
        return batch

    def _put(self, kind: int, content: object) -> None:
        batch = self._batch()
        record = bytes((kind,)) + len(packed := _pack(content)).to_bytes(4, "little") + packed
        batch.reserve(len(record))
        batch.buffer[batch.used : batch.used + len(record)] = np.frombuffer(record, np.uint8)
        batch.used += len(record)
        self._segment_used += len(record)

    def _note(self, newest: int) -> None:
        self.newest[self.segment] = max(self.newest.get(self.segment, newest), newest)

    def _next_segment(self) -> None:
        self.segment += 1
        self._segment_used = self._names_used = 0
        self._write_metadata()

    def _write_metadata(self) -> None:
        if self._metadata:
            self._put(
                METADATA,
                [(metric, known.type.value, known.unit, known.help) for metric, known in self._metadata.items()],
            )
