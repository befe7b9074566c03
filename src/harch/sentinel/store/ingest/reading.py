"""What does a body bring? It is unpacked within limits, walked by kernels, and finished by hand where they stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.metadata import Metadata
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.bytes_kernels import MALFORMED, Array
from harch.sentinel.store.ingest import messages
from harch.sentinel.store.ingest.rare import Symbols, metric_type, read_exemplar, read_histogram, read_metadata
from harch.sentinel.store.ingest.scratch import Scratch, ScratchPool
from harch.sentinel.store.ingest.snappy import unpack
from harch.sentinel.store.ingest.walk_kernels import (
    FLAGS,
    HAS_EXEMPLARS,
    HAS_HISTOGRAMS,
    LABELS_FROM,
    LABELS_TO,
    MESSAGE_FROM,
    MESSAGE_TO,
    MORE_NOTES,
    MORE_ROWS,
    MORE_SAMPLES,
    SCATTERED_LABELS,
    WALKED,
    walk_v1,
)
from harch.sentinel.store.ingest.walk_v2_kernels import (
    HAS_STARTS,
    MORE_LABELS,
    MORE_SYMBOLS,
    list_symbols,
    remember_notes,
    walk_v2,
)
from harch.sentinel.store.label_bytes import Refusal
from harch.sentinel.store.limits import Limits
from harch.sentinel.store.request import NOTHING, HistogramSample, Request

_NOTES_KNOWN = 1 << 16  # slots of the table of what is known about metrics; half of them are used
_LABELS_TO_BODY_MAX = 8  # how much larger than the message its labels may become, written out


class BodyReader:
    """Reads remote-write bodies, in any number of threads at once."""

    def __init__(self, limits: Limits, seed: np.uint64) -> None:
        self._limits = limits
        self._seed = seed
        self._pool = ScratchPool()
        self._notes_known: Array = np.zeros(_NOTES_KNOWN, np.uint64)
        self._notes_count = 0
        self._notes_lock = threading.Lock()

    @contextmanager
    def read_v1(self, body: bytes) -> Iterator[Request]:
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
    def read_v2(self, body: bytes) -> Iterator[Request]:
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

    def _request(self, scratch: Scratch, data: Array) -> Request:
        row_count, sample_count = scratch.counts[:2].tolist()
        rows = scratch.rows[:, :row_count]
        return Request(
            data,
            rows[LABELS_FROM],
            rows[LABELS_TO],
            scratch.sample_rows[:sample_count],
            scratch.timestamps[:sample_count],
            scratch.bits[:sample_count],
            NOTHING,
        )

    def _walk_v1(self, scratch: Scratch, size: int) -> None:
        while True:
            status = walk_v1(
                scratch.data, size, scratch.rows, scratch.sample_rows,
                scratch.timestamps, scratch.bits, scratch.notes, scratch.counts,
            )  # fmt: skip
            if status == WALKED:
                return
            self._grow(scratch, status)

    def _walk_v2(self, scratch: Scratch, size: int) -> int:
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
                raise HarchError("E0606", "the labels of the request, written out, are too large")
            self._grow(scratch, status)

    def _grow(self, scratch: Scratch, status: int) -> None:
        match status:
            case _ if status == MALFORMED:
                raise messages.malformed("its structure is damaged")
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

    def _read_rare(self, request: Request, scratch: Scratch, symbols: Symbols | None) -> None:
        """Histograms and exemplars of the rows that have some. The two versions number their fields differently."""
        flags = scratch.rows[FLAGS, : len(request.label_starts)]
        if not flags.any():
            return
        histograms: list[HistogramSample] = []
        exemplars: list[tuple[int, Exemplar]] = []
        refused: list[Refusal] = []
        exemplar_field, histogram_field = (3, 4) if symbols is None else (4, 3)
        for row in np.flatnonzero(flags & (HAS_EXEMPLARS | HAS_HISTOGRAMS)).tolist():
            start, end = scratch.rows[MESSAGE_FROM, row], scratch.rows[MESSAGE_TO, row]
            for number, content in messages.fields(scratch.data[start:end].tobytes()):
                try:
                    if number == histogram_field:
                        timestamp, begun, histogram = read_histogram(messages.part(content))
                        histograms.append(HistogramSample(row, timestamp, histogram, begun))
                    elif number == exemplar_field:
                        exemplars.append((row, read_exemplar(messages.part(content), symbols)))
                except Refusal as refusal:
                    refused.append(refusal)
        request.histograms, request.exemplars, request.rare_refused = histograms, exemplars, refused

    def _news(self, scratch: Scratch, count: int, symbols: Symbols) -> list[tuple[str, Metadata]]:
        if not count:
            return []
        news: dict[tuple[int, ...], tuple[str, Metadata]] = {}
        for name, kind, about, unit in {tuple(note) for note in scratch.notes[:count].tolist()}:
            known = Metadata(metric_type(kind), messages.text(symbols[unit]), messages.text(symbols[about]))
            news[name, kind, about, unit] = (messages.text(symbols[name]), known)
        with self._notes_lock:
            fresh = np.unique(scratch.note_hashes[:count])
            self._notes_count += len(fresh)
            if 2 * self._notes_count > _NOTES_KNOWN:  # starts anew: what is said again is only written down again
                self._notes_known = np.zeros(_NOTES_KNOWN, np.uint64)
                self._notes_count = len(fresh)
            remember_notes(self._notes_known, fresh[: _NOTES_KNOWN // 2])
        return list(news.values())


def _symbols(scratch: Scratch, count: int) -> Symbols:
    return [scratch.data[start:end].tobytes() for start, end in scratch.symbols[:count].tolist()]


def _gather_labels(scratch: Scratch, rows: Array, size: int) -> Array:
    """Labels that lie apart in their message, behind each other, at the end of a copy of the data."""
    extra = bytearray()
    for row in np.flatnonzero(rows[FLAGS] & SCATTERED_LABELS).tolist():
        start, end = rows[MESSAGE_FROM, row], rows[MESSAGE_TO, row]
        rows[LABELS_FROM, row] = size + len(extra)
        for number, content in messages.fields(scratch.data[start:end].tobytes()):
            if number == 1:
                extra += messages.delimited(1, messages.part(content))
        rows[LABELS_TO, row] = size + len(extra)
    return np.concatenate((scratch.data[:size], np.frombuffer(bytes(extra), np.uint8)))
