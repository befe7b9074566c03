"""How does a hub empty, if what runs ends as late as it promised and nobody comes? The room at every moment ahead."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools, Ints
from harch.placement.request import Request
from harch.placement.room import Room
from harch.placement.turns.releases import Releases
from harch.placement.turns.running import domains


class Outlook:
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

    def first_look(self, request: Request, tasks: int, allowed: Bools) -> int | None:
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

    def __init__(self, room: Room, releases: Releases, place: Ints, request: Request, allowed: Bools) -> None:
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
