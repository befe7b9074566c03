"""Can what SENSE has saved be used under other settings? What its arrays mean, and the same state under a new meaning.

A cell belongs to a device, a metric, a value and a pane of time. Where each of them still is what it was, it finds its
place again: in a longer table of devices, beside more metrics, in a larger ring of panes, in shorter windows of the
same slide. What was not added up, or not in these pieces of time, cannot be made of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from harch.pipelines.sense.checkpoint import Meaning, SavedForecast, SenseCheckpoint
from harch.pipelines.sense.gate import MASK_ALL
from harch.pipelines.sense.kernels import CELL_WIDTH
from harch.pipelines.sense.settings import NS_PER_S

_NOT_STARTED = -1


class _Rings(Struct, frozen=True):
    old: Meaning
    new: Meaning
    first_pane: int


def carry_problems(old: Meaning, new: Meaning) -> tuple[str, ...]:
    """Why a state of the old meaning is of no use under the new one; nothing: it can be carried over."""
    found = []
    if old.values != new.values:
        found.append(f"aggregated columns change from {', '.join(old.values)} to {', '.join(new.values)}")
    if new.metrics[: len(old.metrics)] != old.metrics:
        found.append("metrics were removed, renamed or reordered; add new ones at the end")
    if new.devices_max < old.devices_max:
        found.append(f"capacity for {new.devices_max} devices instead of {old.devices_max}")
    if old.pane_ns != new.pane_ns:
        before_s, after_s = old.pane_ns / NS_PER_S, new.pane_ns / NS_PER_S
        found.append(f"panes of {after_s:g} s instead of {before_s:g} s")
    else:
        if new.panes_per_window > old.panes_per_window:
            found.append("windows become longer, and their first panes are already discarded")
        if new.panes_open < old.panes_open:
            found.append("windows wait less (lateness_s, skew_s), so open ones may be dropped")
    if old.forecast is not None and new.forecast is not None and old.forecast != new.forecast:
        found.append("the forecast steps change, so its history does not fit")
    return tuple(found)


def carried(saved: SenseCheckpoint, old: Meaning, new: Meaning) -> SenseCheckpoint:
    """The same state under the new meaning. Only where `carry_problems` finds none."""
    rings = _Rings(old, new, saved.first_pane)
    places, kept = _new_places(np.frombuffer(saved.cell_places, "<i8"), rings)
    cells = np.frombuffer(saved.cells, "<f8").reshape(-1, CELL_WIDTH)[kept]
    return replace(
        saved,
        meaning=new,
        cell_places=places[kept].astype("<i8").tobytes(),
        cells=cells.astype("<f8").tobytes(),
        pane_masks=_masks(saved.pane_masks, rings),
        forecast=_forecast(saved.forecast, old, new),
    )


def _new_places(places: NDArray[Any], rings: _Rings) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Where each cell is from now on, and which are needed still."""
    old, new = rings.old, rings.new
    panes = _panes(places // old.keys, rings)
    slots = panes % new.slots
    return slots * new.keys + _new_keys(places % old.keys, old, new), _is_needed(panes, rings)


def _panes(slots: NDArray[Any], rings: _Rings) -> NDArray[Any]:
    """The pane of time in each slot of the old ring."""
    base = max(0, rings.first_pane - rings.old.panes_per_window + 1)
    found: NDArray[Any] = base + (slots - base) % rings.old.slots
    return found


def _is_needed(panes: NDArray[Any], rings: _Rings) -> NDArray[np.bool_]:
    """Panes before the oldest window of the new size were emitted already."""
    found: NDArray[np.bool_] = panes > rings.first_pane - rings.new.panes_per_window
    return found


def _new_keys(keys: NDArray[Any], old: Meaning, new: Meaning) -> NDArray[Any]:
    per_old, per_new = len(old.metrics) * len(old.values), len(new.metrics) * len(new.values)
    found: NDArray[Any] = (keys // per_old) * per_new + keys % per_old  # new metrics stand behind the old ones
    return found


def _masks(masks: list[int], rings: _Rings) -> list[int]:
    found = [MASK_ALL] * rings.new.slots
    if rings.first_pane == _NOT_STARTED:
        return found
    panes = _panes(np.arange(rings.old.slots), rings)
    for slot, (pane, needed) in enumerate(zip(panes.tolist(), _is_needed(panes, rings).tolist(), strict=True)):
        if needed:
            found[pane % rings.new.slots] = masks[slot]
    return found


def _forecast(saved: SavedForecast | None, old: Meaning, new: Meaning) -> SavedForecast | None:
    """Histories under their new keys; none where there is no forecast any more, or none yet."""
    if saved is None or new.forecast is None:
        return None

    def spread(data: bytes) -> bytes:
        wide = np.zeros(new.keys)
        wide[_new_keys(np.arange(old.keys), old, new)] = np.frombuffer(data, "<f8")
        return wide.astype("<f8").tobytes()

    keys = _new_keys(np.frombuffer(saved.history_keys, "<i8"), old, new)
    return replace(saved, history_keys=keys.astype("<i8").tobytes(), count=spread(saved.count), sum=spread(saved.sum))
