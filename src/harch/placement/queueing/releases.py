"""What would come free if some of what runs ended, and when?

Arrays that follow every start and end, and the room at every moment ahead.
"""

# harch: pure

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from harch.base.errors import InvariantBroken
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints
from harch.placement.queueing.running import MOVABLE_SHARE_MAX, RunningRequest, domains
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import Room

# What would come free if some of what runs ended, and when is that? Arrays that follow every start and every end.
#
# A full hub asks this many times a minute, so the table is kept up to date instead of being built for each question.
# Holders have numbers: places in every array of the table. Numbers change when somebody is added or removed.


_CLASS_PLACE, _RESTARTS, _TAKEN = 6, 7, 8  # columns of holders
_FIRST_PLACES = 64
_GONE_KEPT_MAX = 64  # so that small tables are not swept at every end
_UNSETTLED_MAX = 256  # rows: to settle them takes a fraction of a millisecond


class Releases:
    """What each holder would give back to `room`."""

    def __init__(self, room: Room, running: Iterable[RunningRequest] = ()) -> None:
        self.room = room
        self._items: list[RunningRequest | None] = []  # by number; None: has ended
        self._numbers: dict[str, int] = {}
        self.version = 0  # grows with every change
        # Columns; the first of tasks and devices is the number of the holder.
        self._tasks = _Columns(6, np.int64)  # ..., row, cpu_milli, memory_mib, gpu_milli, storage_mib
        self._devices = _Columns(4, np.int64)  # ..., row, device, gpu_milli
        # started_s, promised duration with grace (infinite: none), saved_s, gpu_milli of all tasks, processes, grace_s,
        # place of the class in the order (-1: not preemptible, -2: has ended), restarts, what is taken of GPUs
        self._holder_table = _Columns(9, np.float64)
        self._ended: list[int] = []  # numbers, until somebody looks at the table
        for item in running:
            self.add(item)

    def __len__(self) -> int:
        """Numbers in use, with those of holders that have ended: the length of every mask."""
        return len(self._items)

    def add(self, item: RunningRequest) -> None:
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
        self._holder_table.append(
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
        self._ended.append(number)
        if len(self._items) > 2 * len(self._numbers) + _GONE_KEPT_MAX:
            self._sweep()

    def item(self, number: int) -> RunningRequest:
        found = self._items[number]
        if found is None:
            raise InvariantBroken("a finished holder is not queried", number)
        return found

    @property
    def _holders(self) -> Floats:
        """The columns of holders, as of now."""
        rows: Floats = self._holder_table.rows
        if self._ended:
            rows[_CLASS_PLACE, self._ended] = -2
            self._ended.clear()
        return rows

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
        found: Floats = self._holders[3]
        return found

    @property
    def gpu_milli_taken(self) -> Floats:
        """What would come free of GPUs: of a share with much memory more than its compute."""
        found: Floats = self._holders[_TAKEN]
        return found

    def movable_for(self, request: PlacementRequest, spared: Iterable[str]) -> Bools:
        """`is_movable` for everybody, by number."""
        small: Bools = self.gpu_milli <= request.gpu_milli_total * MOVABLE_SHARE_MAX
        own_or_lower: Bools = self._holders[_CLASS_PLACE] >= CLASS_ORDER.index(request.turn_class)
        return small & own_or_lower & ~self.marked(spared)

    def of_lower_class(self, request: PlacementRequest) -> Bools:
        """Preemptible work of a class behind that of the request, by number."""
        lower: Bools = self._holders[_CLASS_PLACE] > CLASS_ORDER.index(request.turn_class)
        return lower

    def touching(self, rows: Bools) -> Bools:
        """Who stands on any of these nodes, by number."""
        touching = np.zeros(len(self), np.bool_)
        owner, row, *_ = self._tasks.rows
        touching[owner[rows[row]]] = True
        live: Bools = self._holders[_CLASS_PLACE] > -2
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
        order = np.lexsort((self._holders[_RESTARTS][numbers], self.lost_gpu_s(now_s)[numbers]))
        cheapest: list[int] = numbers[order].tolist()
        return cheapest

    def lost_gpu_s(self, now_s: float) -> Floats:
        """Work that is done again after a restart, by number."""
        saved_s, gpu_milli = self._holders[2:4]
        lost: Floats = np.maximum(0.0, now_s - saved_s) * gpu_milli / GPU_MILLI
        return lost

    def notice_s(self) -> Floats:
        """How long each takes to stop, by number."""
        found: Floats = self._holders[5]
        return found

    def ends_s(
        self, now_s: float, *, margin_s: float, assumed_s: float, stopping: Mapping[str, float]
    ) -> tuple[Floats, Bools]:
        """When each has ended at the latest, and whether that is only *assumed*. `stopping`: who was told when.

        Who promised no end is assumed to run for `assumed_s`. Whoever outlives a promise or an assumption is assumed to
        have twice that, and so on: what has run long will probably run on.
        """
        started_s, promised_s, *_ = self._holders
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
        room.process_slots_free += int(self._holders[4][gone].sum())
        return room

    def _sweep(self) -> None:
        """Forgets those that have ended, so that the table is as long as what runs."""
        live = np.array(self.numbers, np.int64)
        renumbered = np.full(len(self), -1)
        renumbered[live] = np.arange(len(live))
        self._items = [self._items[number] for number in live.tolist()]
        self._numbers = {name: place for place, name in enumerate(self._numbers)}
        self._ended.clear()
        self._holder_table.keep(live)
        for table in (self._tasks, self._devices):
            owners = renumbered[table.rows[0]]
            table.rows[0] = owners
            table.keep(np.flatnonzero(owners >= 0))


class _Columns:
    """A table that grows at its end, column by column in memory.

    Most starts and ends happen while nobody looks: what is appended is gathered, and settled when somebody does.
    """

    def __init__(self, columns: int, dtype: type[np.generic]) -> None:
        self._places: npt.NDArray[Any] = np.zeros((columns, _FIRST_PLACES), dtype)
        self._size = 0
        self._unsettled: list[tuple[float, ...]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> _Columns:
        self._settle()  # an array is copied at once
        memo[id(self)] = twin = copy(self)
        twin._places, twin._unsettled = self._places.copy(), []
        return twin

    @property
    def rows(self) -> npt.NDArray[Any]:
        """[column, row]: a view, so that what is written to it stays."""
        if self._unsettled:
            self._settle()
        return self._places[:, : self._size]

    def append(self, rows: list[tuple[float, ...]]) -> None:
        self._unsettled += rows
        if len(self._unsettled) >= _UNSETTLED_MAX:
            self._settle()

    def _settle(self) -> None:
        rows, self._unsettled = self._unsettled, []
        size = self._size + len(rows)
        while size > self._places.shape[1]:
            self._places = np.concatenate([self._places, np.zeros_like(self._places)], axis=1)
        if len(rows) == 1:
            self._places[:, self._size] = rows[0]  # on a busy hub the usual case: a table costs three times as much
        elif rows:
            self._places[:, self._size : size] = np.array(rows).T
        self._size = size

    def keep(self, rows: Ints) -> None:
        kept = self.rows[:, rows]
        self._size = len(rows)
        self._places[:, : self._size] = kept


# How does a hub empty, if what runs ends as late as it promised and nobody comes? The room at every moment ahead.


class RoomOutlook:
    """Made for one moment, and asked for as many requests as there are. Nothing may start or end meanwhile.

    Moments are counted by how many have ended: those whose end comes first, as it was promised or is *assumed*.
    """

    def __init__(
        self,
        releases: Releases,
        now_s: float,
        *,
        margin_s: float,
        assumed_s: float,
        stopping: Mapping[str, float],
        movable: Bools | None = None,
        moved_from_s: float = math.inf,
    ) -> None:
        """`movable` (by number in `releases`) can be asked to restart elsewhere from `moved_from_s` on."""
        self.room, self.now_s, self.margin_s = releases.room, now_s, margin_s
        self._releases = releases
        self._room_made_from_s = math.inf if movable is None else moved_from_s
        self._ends_s, self._assumed = releases.ends_s(now_s, margin_s=margin_s, assumed_s=assumed_s, stopping=stopping)
        if movable is not None:
            moved_s = max(now_s, moved_from_s) + releases.notice_s() + margin_s
            sooner = movable & (moved_s < self._ends_s)
            self._ends_s, self._assumed = np.where(sooner, moved_s, self._ends_s), self._assumed & ~sooner
        numbers = np.array(releases.numbers, np.int64)
        self._order = numbers[np.argsort(self._ends_s[numbers], kind="stable")]
        self._place: Ints = np.full(len(releases), len(self._order))  # in that order; who has ended is never counted
        self._place[self._order] = np.arange(len(self._order))

    @property
    def counts(self) -> range:
        """Every moment: nobody has ended, one has, ..., all have."""
        return range(len(self._order) + 1)

    def moment_s(self, ended: int) -> float:
        return max(self.now_s, float(self._ends_s[self._order[ended - 1]])) if ended else self.now_s

    def is_assumed(self, ended: int, rows: Sequence[int]) -> bool:
        """Is the end of anybody whom these rows wait for only assumed?"""
        owner, row, *_ = self._releases.tasks
        waited_for = (self._place[owner] < ended) & self._assumed[owner]
        return bool(np.isin(row[waited_for], rows).any())

    def has_room_made(self, ended: int) -> bool:
        """Can movable work be asked to leave at that moment?"""
        return self.moment_s(ended) >= self._room_made_from_s

    def room_after(self, ended: int) -> Room:
        return self._releases.room_after(self._place < ended)

    def first_look(self, request: PlacementRequest, tasks: int, allowed: Bools) -> int | None:
        """The moment before which it cannot fit; None: never. CPUs, memory and GPUs are looked at, nothing else."""
        look = _Look(self.room, self._releases, self._place, request, allowed)
        domain = domains(self.room, request.topology.required)
        # Bisection: more room never makes it fit worse.
        ended = bisect_left(
            self.counts, True, key=lambda count: bool(np.bincount(domain, look.slots_after(count)).max() >= tasks)
        )
        return ended if ended in self.counts else None


class _Look:
    """How many tasks each node takes at a moment: what ends on the nodes in question, in the order of the ends."""

    def __init__(self, room: Room, releases: Releases, place: Ints, request: PlacementRequest, allowed: Bools) -> None:
        arrays = room.arrays
        self._room, self._kind, self._exclusive = room, room.kind(request.needs), request.topology.exclusive
        self._usable = allowed & arrays.available & room.suits(request.needs)
        tasks, devices = releases.tasks, releases.devices
        tasks = tasks[:, self._usable[tasks[1]]]
        order = np.argsort(place[tasks[0]], kind="stable")
        self._task_place = place[tasks[0][order]]
        _, self._row, self._cpu_milli, self._memory_mib, *_ = tasks[:, order]
        devices = devices[:, self._usable[devices[1]] & room.healthy[devices[1], devices[2]]]
        order = np.argsort(place[devices[0]], kind="stable")
        self._device_place = place[devices[0][order]]
        _, row, device, self._gpu_milli = devices[:, order]
        self._flat_device = row * arrays.gpu_milli_free.shape[1] + device

    def slots_after(self, ended: int) -> Ints:
        arrays, kind, nodes = self._room.arrays, self._kind, self._room.arrays.size
        until = int(np.searchsorted(self._task_place, ended))
        row = self._row[:until]
        cpu_milli = arrays.cpu_milli_free + np.bincount(row, self._cpu_milli[:until], nodes)
        memory_mib = arrays.memory_mib_free + np.bincount(row, self._memory_mib[:until], nodes)
        slots = np.minimum(cpu_milli // max(kind.cpu_milli, 1), memory_mib // max(kind.memory_mib, 1))
        if kind.gpus:
            until = int(np.searchsorted(self._device_place, ended))
            free = arrays.gpu_milli_free.ravel() + np.bincount(
                self._flat_device[:until], self._gpu_milli[:until], arrays.gpu_milli_free.size
            )
            whole = kind.gpu_milli == GPU_MILLI
            per_device = free == GPU_MILLI if whole else free // kind.gpu_milli
            per_node = per_device.reshape(nodes, -1).sum(axis=1)
            slots = np.minimum(slots, per_node // kind.gpus if whole else per_node)
        usable = self._usable
        if self._exclusive or self._room.exclusive_on.any():
            alone = self._room.tasks_on == np.bincount(row, minlength=nodes)
            usable = usable & (alone if self._exclusive else alone | ~self._room.exclusive_on)
        found: Ints = np.where(usable, slots, 0).astype(np.int64)
        return found
