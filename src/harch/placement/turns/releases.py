"""What would come free if some of what runs ended, and when is that? Arrays that follow every start and every end.

A full hub asks this many times a minute, so the table is kept up to date instead of being built for each question.
Holders have numbers: places in every array of the table. Numbers change when somebody is added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harch.base.errors import InvariantBroken
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints
from harch.placement.request import Request
from harch.placement.room import Room
from harch.placement.turns.running import MOVABLE_SHARE_MAX, Running
from harch.placement.turns.settings import CLASS_ORDER

_CLASS_PLACE, _RESTARTS, _TAKEN = 6, 7, 8  # columns of holders
_FIRST_PLACES = 64
_GONE_KEPT_MAX = 64  # so that small tables are not swept at every end


class Releases:
    """What each holder would give back to `room`."""

    def __init__(self, room: Room, running: Iterable[Running] = ()) -> None:
        self.room = room
        self._items: list[Running | None] = []  # by number; None: has ended
        self._numbers: dict[str, int] = {}
        self.version = 0  # grows with every change
        # Columns; the first of tasks and devices is the number of the holder.
        self._tasks = _Columns(6, np.int64)  # ..., row, cpu_milli, memory_mib, gpu_milli, storage_mib
        self._devices = _Columns(4, np.int64)  # ..., row, device, gpu_milli
        # started_s, promised duration with grace (infinite: none), saved_s, gpu_milli of all tasks, processes, grace_s,
        # place of the class in the order (-1: not preemptible, -2: has ended), restarts, what is taken of GPUs
        self._holders = _Columns(9, np.float64)
        for item in running:
            self.add(item)

    def __len__(self) -> int:
        """Numbers in use, with those of holders that have ended: the length of every mask."""
        return len(self._items)

    def add(self, item: Running) -> None:
        if item.request.id in self._numbers:
            raise InvariantBroken("a workload is placed once", item.request.id)
        self.version += 1
        number = self._numbers[item.request.id] = len(self._items)
        self._items.append(item)
        kind = self.room.kind(item.request.needs)
        storage_mib = self.room.storage_mib_of(item.request.needs)
        needs = (kind.cpu_milli, kind.memory_mib, kind.gpu_milli_total, storage_mib)
        self._tasks.append([(number, slot.row, *needs) for slot in item.slots])
        self._devices.append(
            [(number, slot.row, device, kind.gpu_milli) for slot in item.slots for device in slot.devices]
        )
        bound_s = item.request.duration_s_max
        saved_s = item.started_s if item.checkpoint_s is None else max(item.started_s, item.checkpoint_s)
        self._holders.append(
            [
                (
                    item.started_s,
                    math.inf if bound_s is None else bound_s + item.stop_grace_s,
                    saved_s,
                    len(item.slots) * item.gpu_milli_per_task,
                    len(item.slots) if item.request.runs_process else 0,
                    item.stop_grace_s,
                    CLASS_ORDER.index(item.request.turn_class) if item.request.preemptible else -1,
                    item.restarts,
                    len(item.slots) * max(kind.gpu_milli_total, 1),
                )
            ]
        )

    def remove(self, request_id: str) -> None:
        self.version += 1
        number = self._numbers.pop(request_id)
        self._items[number] = None
        self._holders.rows[_CLASS_PLACE, number] = -2
        if len(self._items) > 2 * len(self._numbers) + _GONE_KEPT_MAX:
            self._sweep()

    def item(self, number: int) -> Running:
        found = self._items[number]
        if found is None:
            raise InvariantBroken("a holder that has ended is asked for nothing", number)
        return found

    @property
    def numbers(self) -> list[int]:
        """Of those that hold something, the longest known first."""
        return list(self._numbers.values())

    def marked(self, request_ids: Iterable[str]) -> Bools:
        """A mask of these holders; others that are named do not matter."""
        mask = np.zeros(len(self), np.bool_)
        mask[[self._numbers[name] for name in request_ids if name in self._numbers]] = True
        return mask

    @property
    def tasks(self) -> Ints:
        return self._tasks.rows

    @property
    def devices(self) -> Ints:
        return self._devices.rows

    @property
    def gpu_milli(self) -> Floats:
        """Compute of all tasks of a holder; at least a thousandth of a GPU each: what has none is cheap, not free."""
        found: Floats = self._holders.rows[3]
        return found

    @property
    def gpu_milli_taken(self) -> Floats:
        """What would come free of GPUs: of a share with much memory more than its compute."""
        found: Floats = self._holders.rows[_TAKEN]
        return found

    def movable_for(self, request: Request, spared: Iterable[str]) -> Bools:
        """`is_movable` for everybody, by number."""
        small: Bools = self.gpu_milli <= request.gpu_milli_total * MOVABLE_SHARE_MAX
        own_or_lower: Bools = self._holders.rows[_CLASS_PLACE] >= CLASS_ORDER.index(request.turn_class)
        return small & own_or_lower & ~self.marked(spared)

    def of_lower_class(self, request: Request) -> Bools:
        """Preemptible work of a class behind that of the request, by number."""
        lower: Bools = self._holders.rows[_CLASS_PLACE] > CLASS_ORDER.index(request.turn_class)
        return lower

    def touching(self, rows: Bools) -> Bools:
        """Who stands on any of these nodes, by number."""
        touching = np.zeros(len(self), np.bool_)
        owner, row, *_ = self._tasks.rows
        touching[owner[rows[row]]] = True
        live: Bools = self._holders.rows[_CLASS_PLACE] > -2
        return touching & live

    def domain_of_each(self, domain_of: Ints) -> list[int]:
        """The domain in which all tasks of a holder stand, by number; -1 if there are several."""
        owner, row, *_ = self._tasks.rows
        lowest, highest = np.full(len(self), len(domain_of)), np.full(len(self), -1)
        np.minimum.at(lowest, owner, domain_of[row])
        np.maximum.at(highest, owner, domain_of[row])
        alone: list[int] = np.where(lowest == highest, lowest, -1).tolist()
        return alone

    def cheapest_first(self, chosen: Bools, now_s: float) -> list[int]:
        """The numbers of those that are chosen: who loses least first, then who was restarted least."""
        numbers = np.flatnonzero(chosen)
        order = np.lexsort((self._holders.rows[_RESTARTS][numbers], self.lost_gpu_s(now_s)[numbers]))
        cheapest: list[int] = numbers[order].tolist()
        return cheapest

    def lost_gpu_s(self, now_s: float) -> Floats:
        """Work that is done again after a restart, by number."""
        saved_s, gpu_milli = self._holders.rows[2:4]
        lost: Floats = np.maximum(0.0, now_s - saved_s) * gpu_milli / GPU_MILLI
        return lost

    def notice_s(self) -> Floats:
        """How long each takes to stop, by number."""
        found: Floats = self._holders.rows[5]
        return found

    def ends_s(
        self, now_s: float, *, margin_s: float, assumed_s: float, stopping: Mapping[str, float]
    ) -> tuple[Floats, Bools]:
        """When each has ended at the latest, and whether that is only *assumed*. `stopping`: who was told when.

        Who promised no end is assumed to run for `assumed_s`. Whoever outlives a promise or an assumption is assumed to
        have twice that, and so on: what has run long will probably run on.
        """
        started_s, promised_s, *_ = self._holders.rows
        assumed = np.isinf(promised_s)
        lasts_s = np.where(assumed, assumed_s, np.maximum(promised_s, 1.0))
        over = (now_s - margin_s - started_s) / lasts_s
        late = over > 1
        assumed |= late
        doublings = np.ceil(np.log2(over, where=late, out=np.zeros_like(over)))
        ends_s: Floats = started_s + margin_s + np.where(late, lasts_s * 2.0**doublings, lasts_s)
        for name, at_s in stopping.items():
            number = self._numbers.get(name)
            if number is not None:
                ends_s[number], assumed[number] = at_s, False
        return ends_s, assumed

    def room_after(self, gone: Bools) -> Room:
        """The room once those have ended for which `gone` is True. Health and cordons stay as they are."""
        room = self.room.copy()
        arrays = room.arrays
        tasks = self._tasks.rows
        _, row, cpu_milli, memory_mib, gpu_milli, storage_mib = tasks[:, gone[tasks[0]]]
        np.add.at(arrays.cpu_milli_free, row, cpu_milli)
        np.add.at(arrays.memory_mib_free, row, memory_mib)
        np.add.at(room.storage_mib_free, row, storage_mib)
        np.subtract.at(room.tasks_on, row, 1)
        watts: Floats = room.gpu_power_w[row] * gpu_milli / GPU_MILLI
        np.add.at(room.rack_power_w_free, room.rack[row], watts)
        np.subtract.at(room.zone_heat_w, room.rack_zone[room.rack[row]], watts)
        room.exclusive_on &= room.tasks_on > 0
        devices = self._devices.rows
        _, row, device, gpu_milli = devices[:, gone[devices[0]]]
        whole = room.healthy[row, device]
        np.add.at(arrays.gpu_milli_free, (row[whole], device[whole]), gpu_milli[whole])
        np.add.at(arrays.gpu_milli_free_sum, row[whole], gpu_milli[whole])
        room.process_slots_free += int(self._holders.rows[4][gone].sum())
        return room

    def _sweep(self) -> None:
        """Forgets those that have ended, so that the table is as long as what runs."""
        live = np.array(self.numbers, np.int64)
        renumbered = np.full(len(self), -1)
        renumbered[live] = np.arange(len(live))
        self._items = [self._items[number] for number in live.tolist()]
        self._numbers = {name: place for place, name in enumerate(self._numbers)}
        self._holders.keep(live)
        for table in (self._tasks, self._devices):
            owners = renumbered[table.rows[0]]
            table.rows[0] = owners
            table.keep(np.flatnonzero(owners >= 0))


class _Columns:
    """A table that grows at its end, column by column in memory."""

    def __init__(self, columns: int, dtype: type[np.generic]) -> None:
        self._places: npt.NDArray[Any] = np.zeros((columns, _FIRST_PLACES), dtype)
        self._size = 0

    @property
    def rows(self) -> npt.NDArray[Any]:
        """[column, row]: a view, so that what is written to it stays."""
        return self._places[:, : self._size]

    def append(self, rows: list[tuple[float, ...]]) -> None:
        size = self._size + len(rows)
        while size > self._places.shape[1]:
            self._places = np.concatenate([self._places, np.zeros_like(self._places)], axis=1)
        if rows:
            self._places[:, self._size : size] = np.array(rows).T
        self._size = size

    def keep(self, rows: Ints) -> None:
        kept = self.rows[:, rows]
        self._size = len(rows)
        self._places[:, : self._size] = kept
