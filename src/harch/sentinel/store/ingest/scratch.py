"""Where do kernels put what they find in a body? Into arrays that are used again for the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.ingest.walk_kernels import ROW_COLUMNS

_KEPT = 4  # sets of arrays kept between requests
_KEPT_BYTES_MAX = 32 << 20  # larger ones are let go


class Scratch:
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
        self._free: list[Scratch] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Scratch]:
        with self._lock:
            scratch = self._free.pop() if self._free else None
        scratch = scratch or Scratch()
        try:
            yield scratch
        finally:
            with self._lock:
                if len(self._free) < _KEPT and scratch.size <= _KEPT_BYTES_MAX:
                    self._free.append(scratch)
