"""Which window does an event belong to, and which windows are over? Panes in a ring of slots, closed by the watermark.

A pane is one slide long. An event is added to its pane; a window is the sum of its last panes. A window is over when
the watermark has passed its end by the lateness; then its newest pane takes no more events, also where that pane
belongs to later windows too. So an event is either in all its windows or in none, and then it is counted as late.
"""

# harch: pure

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import InvariantBroken
from harch.pipelines.sense.kernels import CELL_WIDTH, COUNT, REASONS, accumulate, merge_panes
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.wire.columns import Columns
from harch.pipelines.wire.header import EVENTS_MAX, TIME_NS_MAX

Cells = NDArray[np.float64]
_NOT_STARTED = -1


class Added(Struct, frozen=True):
    """What became of the events of one batch: how many by reason, and which were set aside."""

    counts: dict[str, int]
    aside: NDArray[np.int32]
    reasons: NDArray[np.uint8]


class ClosedWindow(Struct, frozen=True):
    """A window that is over. Its cells are a view that is valid until the next call."""

    start_ns: int
    end_ns: int
    newest_pane: int
    cells: Cells  # (keys, CELL_WIDTH)


class _Scratch:
    """Memory that the kernel needs per event, kept from batch to batch."""

    def __init__(self, events: int) -> None:
        self.places, self.offsets = np.zeros(events, np.int64), np.zeros(events, np.int64)
        self.aside, self.reasons = np.zeros(events, np.int32), np.zeros(events, np.uint8)


class WindowState:
    """The state of all windows of one partition."""

    def __init__(self, settings: SenseSettings) -> None:
        self._settings = settings.windows
        schema = settings.event_schema
        names = [column.name for column in schema.values]
        bounds = {column.name: (column.low, column.high) for column in schema.values}
        finite = float(np.finfo(np.float64).max)
        self._picks = np.array([names.index(name) for name in settings.aggregated], np.int64)
        self._low = np.array([_or(bounds[name][0], -finite) for name in settings.aggregated])
        self._high = np.array([_or(bounds[name][1], finite) for name in settings.aggregated])
        self._metrics = len(settings.metrics)
        self._tick_ns = schema.tick_ns
        self._ticks_max: Any = np.uint64(TIME_NS_MAX // schema.tick_ns)  # unsigned, like the column
        self.pane_ns = self._settings.pane_ns
        self._slots, self._open = self._settings.slots, self._settings.panes_open
        self._begun = self._settings.panes_begun
        self._per_window = self._settings.panes_per_window
        self.cells: Cells = _aligned_zeros(self._slots, settings.keys)
        self.first_pane = _NOT_STARTED  # the oldest one that still takes events
        self._window: Cells = np.zeros((settings.keys if self._per_window > 1 else 0, CELL_WIDTH))
        self._scratch = _Scratch(0)

    def begin(self, first_event_ns: int, watermark_ns: int = 0) -> None:
        """The first event places the ring; those of other sources may be older by the lateness and the skew."""
        if self.first_pane == _NOT_STARTED:
            older_ns = self._settings.lateness_ns + round(self._settings.skew_s * NS_PER_S)
            self.first_pane = max(0, first_event_ns - older_ns) // self.pane_ns
            self.skip_to(watermark_ns)

    def add(self, columns: Columns, *, devices: int, t_first_ns: int, time_ns_max: int) -> Added:
        """Adds a batch. `devices` are known so far; events after `time_ns_max` are counted as `future`."""
        if columns.n > len(self._scratch.aside):
            self._scratch = _Scratch(min(EVENTS_MAX, 2 * columns.n))
        scratch = self._scratch
        counts = np.zeros(len(REASONS), np.int64)
        aside = accumulate(
            self.cells,
            columns.ticks,
            columns.device,
            columns.metric,
            columns.values,
            self._picks,
            self._low,
            self._high,
            devices,
            self._metrics,
            t_first_ns,
            self._tick_ns,
            self._ticks_max,
            time_ns_max,
            self.pane_ns,
            max(0, self.first_pane),
            self._open,
            scratch.places,
            scratch.offsets,
            scratch.aside,
            scratch.reasons,
            counts,
        )
        if aside < 0:
            raise InvariantBroken("a decoded batch fits the windows of its settings", columns.values.shape)
        by_reason = {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}
        return Added(by_reason, scratch.aside[:aside].copy(), scratch.reasons[:aside].copy())

    def is_ahead(self, t_first_ns: int) -> bool:
        """True if a batch that starts here might reach beyond the open windows."""
        return self.first_pane != _NOT_STARTED and t_first_ns // self.pane_ns >= self.first_pane + self._begun

    def watermark_for(self, t_first_ns: int) -> int:
        """The least watermark with which a batch that starts here is no longer ahead."""
        pane = t_first_ns // self.pane_ns - self._begun + 1
        return max(0, pane * self.pane_ns + self._settings.lateness_ns)

    def warm_up(self, no_events: Columns) -> None:
        """Compiles what this needs, and changes nothing."""
        self.add(no_events, devices=0, t_first_ns=0, time_ns_max=0)
        merge_panes(self.cells, np.zeros(0, np.int64), self.pane_ns, self._window)

    def close_until(self, watermark_ns: int) -> list[int]:
        """The newest panes of windows that are over now. Take each with `window` and then `recycle` it, in order.

        At most one ring of them; what lies beyond is empty, and `skip_to` goes there.
        """
        if self.first_pane == _NOT_STARTED:
            return []
        end = self._end_of_closable(watermark_ns)
        return list(range(self.first_pane, min(end, self.first_pane + self._slots)))

    def skip_to(self, watermark_ns: int) -> None:
        """Moves the empty ring on after all that was to close is closed, however far the watermark has jumped."""
        if self.first_pane != _NOT_STARTED:
            self.first_pane = max(self.first_pane, self._end_of_closable(watermark_ns))

    def window(self, newest_pane: int) -> ClosedWindow | None:
        """The window that ends with this pane; None if nothing happened in it."""
        panes = range(max(0, newest_pane - self._per_window + 1), newest_pane + 1)
        if self._per_window == 1:
            cells: Cells = self.cells[newest_pane % self._slots]
        else:
            cells = self._window
            order = np.array([pane % self._slots for pane in panes], np.int64)
            if merge_panes(self.cells, order, self.pane_ns, cells) < 0:
                raise InvariantBroken("panes of a window are in the ring", newest_pane)
        if not cells[:, COUNT].any():
            return None
        end_ns = (newest_pane + 1) * self.pane_ns
        return ClosedWindow(end_ns - self._per_window * self.pane_ns, end_ns, newest_pane, cells)

    def pane(self, number: int) -> Cells:
        """The cells of a single pane that is still in the ring."""
        cells: Cells = self.cells[number % self._slots]
        return cells

    def recycle(self, newest_pane: int) -> None:
        """The window is emitted: its oldest pane is free, its newest one takes no more events."""
        if newest_pane != self.first_pane:
            raise InvariantBroken("windows close in order", newest_pane, self.first_pane)
        self.first_pane += 1
        if (oldest := newest_pane - self._per_window + 1) >= 0:
            self.cells[oldest % self._slots] = 0.0

    def all_content_ns(self) -> int:
        """The least watermark that closes every window with an event in it; 0 if there is none."""
        if self.first_pane == _NOT_STARTED:
            return 0
        last_open = self.first_pane + self._open - 1
        for pane in range(last_open, self.first_pane - self._per_window, -1):
            if pane >= 0 and self.pane(pane)[:, COUNT].any():
                return (pane + self._per_window) * self.pane_ns + self._settings.lateness_ns
        return 0

    def _end_of_closable(self, watermark_ns: int) -> int:
        return max(0, watermark_ns - self._settings.lateness_ns) // self.pane_ns


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound


def _aligned_zeros(slots: int, keys: int) -> Cells:
    """Cells that start at a cache line each, so that an event touches one line and not two."""
    line = 64 // 8
    memory: Any = np.zeros(slots * keys * CELL_WIDTH + line)
    skip = (-memory.ctypes.data // 8) % line
    cells: Cells = memory[skip : skip + slots * keys * CELL_WIDTH].reshape(slots, keys, CELL_WIDTH)
    return cells
