"""What does a remote-write body bring?

It is unpacked within limits, walked by kernels into arrays that are used again, and finished by hand where they stop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import MetricMetadata
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.bytes_kernels import MALFORMED, Array
from harch.sentinel.store.ingest import protobuf
from harch.sentinel.store.ingest.protobuf import Symbols, metric_type, read_exemplar, read_histogram, read_metadata
from harch.sentinel.store.ingest.walk_kernels import (
    FLAGS,
    HAS_EXEMPLARS,
    HAS_HISTOGRAMS,
    HAS_STARTS,
    LABELS_FROM,
    LABELS_TO,
    MESSAGE_FROM,
    MESSAGE_TO,
    MORE_LABELS,
    MORE_NOTES,
    MORE_ROWS,
    MORE_SAMPLES,
    MORE_SYMBOLS,
    ROW_COLUMNS,
    SCATTERED_LABELS,
    WALKED,
    list_symbols,
    remember_notes,
    walk_v1,
    walk_v2,
)
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.series_encoding import SeriesRefusal
from harch.sentinel.store.write_request import NO_VALUES, HistogramSample, WriteRequest

_KEPT = 4  # sets of arrays kept between requests
_KEPT_BYTES_MAX = 32 << 20  # larger ones are let go


class ScratchArrays:
    """Arrays for one request at a time; they grow as requests need."""

    def __init__(self) -> None:
        self.data: Array = np.empty(1 << 16, np.uint8)
        self.counts: Array = np.zeros(8, np.int64)
        self.rows_for(1024)
        self.samples_for(4096)
        self.notes_for(64)
        self.symbols: Array = np.empty((1024, 2), np.int64)
        self.labels: Array = np.empty(1 << 16, np.uint8)

    def data_for(self, size: int) -> None:
        if len(self.data) < size:
            self.data = np.empty(max(size, 2 * len(self.data)), np.uint8)

    def rows_for(self, count: int) -> None:
        self.rows: Array = np.empty((ROW_COLUMNS, count), np.int64)

    def samples_for(self, count: int) -> None:
        self.sample_rows: Array = np.empty(count, np.int32)
        self.timestamps: Array = np.empty(count, np.int64)
        self.bits: Array = np.empty(count, np.uint64)
        self.starts: Array = np.empty(count, np.int64)

    def notes_for(self, count: int) -> None:
        self.notes: Array = np.empty((count, 4), np.int64)
        self.note_hashes: Array = np.empty(count, np.uint64)

    @property
    def size(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


class ScratchPool:
    """Lends a set to each request under way."""

    def __init__(self) -> None:
        self._free: list[ScratchArrays] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[ScratchArrays]:
        with self._lock:
            scratch = self._free.pop() if self._free else None
        scratch = scratch or ScratchArrays()
        try:
            yield scratch
        finally:
            with self._lock:
                if len(self._free) < _KEPT and scratch.size <= _KEPT_BYTES_MAX:
                    self._free.append(scratch)


# What was packed? Snappy blocks say first how large they are unpacked, so a bomb is refused before it goes off.


try:
    from cramjam import DecompressionError, snappy
except ImportError as missing:
    raise HarchError("E0601", "cramjam") from missing


def unpack(body: bytes, scratch: ScratchArrays, limits: TenantLimits) -> int:
    """Unpacks into `scratch.data` and returns the size. Raises E0605 or E0606."""
    if len(body) > limits.body_bytes_max:
        raise HarchError("E0606", f"the body has {len(body)} bytes; {limits.body_bytes_max} are allowed")
    size, _ = protobuf.varint(body, 0)
    if size > limits.request_bytes_max:
        raise HarchError("E0606", f"the body decompresses to {size} bytes; {limits.request_bytes_max} are allowed")
    scratch.data_for(size + 8)
    try:
        unpacked = snappy.decompress_raw_into(body, scratch.data[: size or 1])
    except DecompressionError as broken:
        raise HarchError("E0605", "the body is not a snappy block") from broken
    if unpacked != size:
        raise HarchError("E0605", "the body is not a snappy block")
    return size


# What does a body bring? It is unpacked within limits, walked by kernels, and finished by hand where they stop.


_NOTES_KNOWN = 1 << 16  # slots of the table of what is known about metrics; half of them are used
_LABELS_TO_BODY_MAX = 8  # how much larger than the message its labels may become, written out


class BodyReader:
    """Reads remote-write bodies, in any number of threads at once."""

    def __init__(self, limits: TenantLimits, seed: np.uint64) -> None:
        self._limits = limits
        self._seed = seed
        self._pool = ScratchPool()
        self._notes_known: Array = np.zeros(_NOTES_KNOWN, np.uint64)
        self._notes_count = 0
        self._notes_lock = threading.Lock()

    @contextmanager
    def read_v1(self, body: bytes) -> Iterator[WriteRequest]:
        """The request; its arrays are lent until the end of the block. Raises E0605 or E0606."""
        with self._pool.lend() as scratch:
            size = unpack(body, scratch, self._limits)
            self._walk_v1(scratch, size)
            row_count, _, note_count = scratch.counts[:3].tolist()
            rows, data = scratch.rows[:, :row_count], scratch.data
            if (rows[FLAGS] & SCATTERED_LABELS).any():
                data = _gather_labels(scratch, rows, size)
            request = self._request(scratch, data)
            self._read_rare(request, scratch, None)
            notes = scratch.notes[:note_count, :2].tolist()
            request.metadata = [read_metadata(scratch.data[start:end].tobytes()) for start, end in notes]
            yield request

    @contextmanager
    def read_v2(self, body: bytes) -> Iterator[WriteRequest]:
        with self._pool.lend() as scratch:
            size = unpack(body, scratch, self._limits)
            symbol_count = self._walk_v2(scratch, size)
            request = self._request(scratch, scratch.labels)
            if scratch.counts[HAS_STARTS]:
                request.starts = scratch.starts[: len(request.rows)]
            note_count = int(scratch.counts[2])
            needs_symbols = note_count or scratch.rows[FLAGS, : len(request.label_starts)].any()
            symbols = _symbols(scratch, symbol_count) if needs_symbols else []
            self._read_rare(request, scratch, symbols)
            request.metadata = self._news(scratch, note_count, symbols)
            yield request

    def _request(self, scratch: ScratchArrays, data: Array) -> WriteRequest:
        row_count, sample_count = scratch.counts[:2].tolist()
        rows = scratch.rows[:, :row_count]
        return WriteRequest(
            data,
            rows[LABELS_FROM],
            rows[LABELS_TO],
            scratch.sample_rows[:sample_count],
            scratch.timestamps[:sample_count],
            scratch.bits[:sample_count],
            NO_VALUES,
        )

    def _walk_v1(self, scratch: ScratchArrays, size: int) -> None:
        while True:
            status = walk_v1(
                scratch.data, size, scratch.rows, scratch.sample_rows,
                scratch.timestamps, scratch.bits, scratch.notes, scratch.counts,
            )  # fmt: skip
            if status == WALKED:
                return
            self._grow(scratch, status)

    def _walk_v2(self, scratch: ScratchArrays, size: int) -> int:
        while (status := list_symbols(scratch.data, size, scratch.symbols, scratch.counts)) != WALKED:
            self._grow(scratch, status)
        symbol_count = int(scratch.counts[0])
        while True:
            status = walk_v2(
                scratch.data, size, self._seed, scratch.symbols[:symbol_count], scratch.labels,
                self._limits.labels_per_series_max, self._notes_known, scratch.rows,
                scratch.sample_rows, scratch.timestamps, scratch.bits, scratch.starts, scratch.notes,
                scratch.note_hashes, scratch.counts,
            )  # fmt: skip
            if status == WALKED:
                return symbol_count
            if status == MORE_LABELS and len(scratch.labels) > _LABELS_TO_BODY_MAX * self._limits.request_bytes_max:
                raise HarchError("E0606", "the labels of the request are too large when expanded")
            self._grow(scratch, status)

    def _grow(self, scratch: ScratchArrays, status: int) -> None:
        match status:
            case _ if status == MALFORMED:
                raise protobuf.malformed("its structure is damaged")
            case _ if status == MORE_ROWS:
                self._check(scratch.rows.shape[1])
                scratch.rows_for(4 * scratch.rows.shape[1])
            case _ if status == MORE_SAMPLES:
                self._check(len(scratch.timestamps))
                scratch.samples_for(4 * len(scratch.timestamps))
            case _ if status == MORE_NOTES:
                self._check(len(scratch.notes))
                scratch.notes_for(4 * len(scratch.notes))
            case _ if status == MORE_SYMBOLS:
                scratch.symbols = np.empty((4 * len(scratch.symbols), 2), np.int64)
            case _ if status == MORE_LABELS:
                scratch.labels = np.empty(4 * len(scratch.labels), np.uint8)

    def _check(self, count: int) -> None:
        if count >= self._limits.request_samples_max:
            raise HarchError("E0606", f"more than {self._limits.request_samples_max} samples in one request")

    def _read_rare(self, request: WriteRequest, scratch: ScratchArrays, symbols: Symbols | None) -> None:
        """Histograms and exemplars of the rows that have some. The two versions number their fields differently."""
        flags = scratch.rows[FLAGS, : len(request.label_starts)]
        if not flags.any():
            return
        histograms: list[HistogramSample] = []
        exemplars: list[tuple[int, Exemplar]] = []
        refused: list[SeriesRefusal] = []
        exemplar_field, histogram_field = (3, 4) if symbols is None else (4, 3)
        for row in np.flatnonzero(flags & (HAS_EXEMPLARS | HAS_HISTOGRAMS)).tolist():
            start, end = scratch.rows[MESSAGE_FROM, row], scratch.rows[MESSAGE_TO, row]
            for number, content in protobuf.fields(scratch.data[start:end].tobytes()):
                try:
                    if number == histogram_field:
                        timestamp, begun, histogram = read_histogram(protobuf.part(content))
                        histograms.append(HistogramSample(row, timestamp, histogram, begun))
                    elif number == exemplar_field:
                        exemplars.append((row, read_exemplar(protobuf.part(content), symbols)))
                except SeriesRefusal as refusal:
                    refused.append(refusal)
        request.histograms, request.exemplars, request.rare_refused = histograms, exemplars, refused

    def _news(self, scratch: ScratchArrays, count: int, symbols: Symbols) -> list[tuple[str, MetricMetadata]]:
        if not count:
            return []
        news: dict[tuple[int, ...], tuple[str, MetricMetadata]] = {}
        for name, kind, about, unit in {tuple(note) for note in scratch.notes[:count].tolist()}:
            known = MetricMetadata(metric_type(kind), protobuf.text(symbols[unit]), protobuf.text(symbols[about]))
            news[name, kind, about, unit] = (protobuf.text(symbols[name]), known)
        with self._notes_lock:
            fresh = np.unique(scratch.note_hashes[:count])
            self._notes_count += len(fresh)
            if 2 * self._notes_count > _NOTES_KNOWN:  # starts anew: what is said again is only written down again
                self._notes_known = np.zeros(_NOTES_KNOWN, np.uint64)
                self._notes_count = len(fresh)
            remember_notes(self._notes_known, fresh[: _NOTES_KNOWN // 2])
        return list(news.values())


def _symbols(scratch: ScratchArrays, count: int) -> Symbols:
    return [scratch.data[start:end].tobytes() for start, end in scratch.symbols[:count].tolist()]


def _gather_labels(scratch: ScratchArrays, rows: Array, size: int) -> Array:
    """Labels that lie apart in their message, behind each other, at the end of a copy of the data."""
    extra = bytearray()
    for row in np.flatnonzero(rows[FLAGS] & SCATTERED_LABELS).tolist():
        start, end = rows[MESSAGE_FROM, row], rows[MESSAGE_TO, row]
        rows[LABELS_FROM, row] = size + len(extra)
        for number, content in protobuf.fields(scratch.data[start:end].tobytes()):
            if number == 1:
                extra += protobuf.delimited(1, protobuf.part(content))
        rows[LABELS_TO, row] = size + len(extra)
    return np.concatenate((scratch.data[:size], np.frombuffer(bytes(extra), np.uint8)))
