"""Which series were scraped together? Their times are one column, written once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harch.sentinel.model.selection import Ints, Samples
from harch.sentinel.store.blocks.layout import SAMPLES_PER_PAGE
from harch.sentinel.store.blocks.selecting_kernels import share_columns

_COLUMNS_MAX = 16_384  # that are compared with; older ones are written and forgotten
_TIMES_MAX = 4 << 20
_COLUMNS_PER_PAGE = 64


class TimePool:
    """The columns of times of one slot. Codes count from 1 in the order of `columns`; 0 is a series without samples."""

    def __init__(self) -> None:
        self._lengths: list[Ints] = []
        self._firsts: list[Ints] = []
        self._lasts: list[Ints] = []
        self._full: list[tuple[Ints, Ints]] = []
        self._written = 0
        self._reset(_TIMES_MAX)

    def _reset(self, times: int) -> None:
        self._pool = np.empty(times, np.int64)
        self._pool_first = np.zeros(_COLUMNS_MAX + 1, np.int64)
        self._state = np.zeros(2, np.int64)
        self._table = np.zeros(4 * _COLUMNS_MAX, np.int64)
        self._hashes = np.zeros(_COLUMNS_MAX, np.uint64)

    def add(self, samples: Samples) -> Ints:
        """The codes of the times of these series."""
        codes = np.zeros(len(samples.first), np.int64)
        done = 0
        while True:
            part = codes[done:]
            more = int(
                share_columns(
                    samples.timestamps,
                    samples.first[done:],
                    samples.count[done:],
                    self._pool,
                    self._pool_first,
                    self._state,
                    self._table,
                    self._hashes,
                    part,
                )
            )
            part[:more] += np.where(part[:more] > 0, self._written, 0)
            done += more
            if done == len(codes):
                return codes
            self._take_out()
            self._reset(max(_TIMES_MAX, int(samples.count[done])))

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Lengths, first and last times of all columns. Nothing may be added afterwards."""
        self._take_out()
        nothing = np.zeros(0, np.int64)
        return tuple(np.concatenate([nothing, *parts]) for parts in (self._lengths, self._firsts, self._lasts))  # type: ignore[return-value]

    def pages(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Times, first places and lengths of the columns of each page, in order."""
        for times, first in self._full:
            begin = 0
            for stop in range(1, len(first)):
                size = first[stop] - first[begin]
                if stop == len(first) - 1 or stop - begin == _COLUMNS_PER_PAGE or size >= SAMPLES_PER_PAGE:
                    yield times, first[begin:stop], np.diff(first[begin : stop + 1])
                    begin = stop

    def _take_out(self) -> None:
        columns, used = self._state.tolist()
        if not columns:
            return
        times, first = self._pool[:used].copy(), self._pool_first[: columns + 1].copy()
        self._full.append((times, first))
        self._lengths.append(np.diff(first))
        self._firsts.append(times[first[:-1]])
        self._lasts.append(times[first[1:] - 1])
        self._written += columns
        self._state[:] = 0
