"""What came free since the last round, and who could use it? A full hub must not try everybody again each time."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.reservations import Reservation
from harch.placement.request import PlacementRequest
from harch.placement.room import Room

_NOTHING: Mapping[int, Reservation] = {}
_MANY = 2**31  # more than anybody starts


class Vacancies:
    """Rows where something came free. A request that did not fit before can fit now only with a task on one of them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._rows: dict[int, _Free | None] = {}
        self.additions = 0  # how often something came free
        self._processes_before = 0  # those that could be started when everybody had been tried
        self._processes_moved = False  # reservations count on others than before
        self._anything = True  # also what no row can tell, e.g. a node that is served again
        self._open_to: dict[Kind, bool] = {}  # answers for the rows that are not kept: many wait for the same
        self._kept: Mapping[int, Reservation] = _NOTHING  # what they were given for

    def add(self, rows: Iterable[int]) -> None:
        found = dict.fromkeys(rows)
        if found:
            self.additions += 1
            self._rows.update(found)
            self._open_to.clear()

    def add_processes(self) -> None:
        """A reservation no longer counts on the processes that it counted on."""
        self._processes_moved = True

    def add_everything(self) -> None:
        self._anything = True

    def changed(self, rows: Iterable[int]) -> None:
        """Something was taken there."""
        for row in rows:
            if row in self._rows:
                self._rows[row] = None
                self._open_to.clear()

    def is_on(self, rows: Iterable[int]) -> bool:
        return self._anything or not self._rows.keys().isdisjoint(rows)

    def clear(self) -> None:
        """Everybody who could use them was tried."""
        self._rows.clear()
        self._open_to.clear()
        self._processes_before = self._room.process_slots_free
        self._processes_moved = False
        self._anything = self._room.power_can_bind  # watts that come free help other nodes too: no row can tell whom

    def may_serve(
        self, request: PlacementRequest, kept: Mapping[int, Reservation] = _NOTHING, now_s: float = 0.0
    ) -> bool:
        """False: a task of it fits on none of them. True promises nothing.

        `kept` are the rows that are reserved: they serve only whom the reservation lets in.
        """
        if self._anything:
            return True
        if request.runs_process:
            enough, free = self._processes_for(kept)
            if request.tasks > enough and request.tasks_min <= free:
                return True
        if not self._rows:
            return False
        if kept is not self._kept:
            self._kept = kept
            self._open_to.clear()
        kind = self._room.kind(request.needs)
        is_open = self._open_to.get(kind)
        if is_open is None:
            is_open = self._open_to[kind] = any(self._takes(row, kind) for row in self._rows if row not in kept)
        return is_open or any(
            kept[row].lets_in(request, now_s) and self._takes(row, kind) for row in self._rows if row in kept
        )

    def may_serve_of(self, blocked: Blocked, kept: Mapping[int, Reservation] = _NOTHING, now_s: float = 0.0) -> Bools:
        """The same for everybody who is blocked, by index: in columns, as thousands may be."""
        if self._anything:
            return blocked.everybody.copy()
        served = np.zeros(blocked.everybody.size, np.bool_)
        let_in: dict[str, Bools] = {}
        for row in self._rows:
            takes = self._free(row).takes_of(blocked)
            holder = kept.get(row)
            if holder is not None:
                if holder.request.id not in let_in:
                    let_in[holder.request.id] = holder.lets_in_of(blocked, now_s)
                takes &= let_in[holder.request.id]
            served |= takes
        enough, free = self._processes_for(kept)
        processes, processes_min = blocked.processes
        served |= (processes > enough) & (processes_min <= free)
        return served & blocked.everybody

    def _processes_for(self, kept: Mapping[int, Reservation]) -> tuple[int, int]:
        """Who starts more processes than the first can have been waiting for them; the second are free now."""
        free = self._room.process_slots_free
        if free <= self._processes_before and not self._processes_moved:
            return _MANY, free
        # Some of those that were free may have been counted on by a reservation.
        shared = self._processes_moved or any(reservation.processes for reservation in kept.values())
        return 0 if shared else self._processes_before, free

    def _free(self, row: int) -> _Free:
        free = self._rows[row]
        if free is None:
            free = self._rows[row] = _Free(self._room, row)
        return free

    def _takes(self, row: int, kind: Kind) -> bool:
        free = self._free(row)
        if free.cpu_milli < kind.cpu_milli or free.memory_mib < kind.memory_mib:
            return False
        return not kind.gpus or bool(
            kind.models & free.model_bit
            and len(free.gpu_milli) >= kind.gpus
            and free.gpu_milli[kind.gpus - 1] >= kind.gpu_milli
        )


class _Free:
    """One node as plain numbers: they are compared with hundreds of requests."""

    __slots__ = ("cpu_milli", "gpu_milli", "memory_mib", "model_bit")

    def __init__(self, room: Room, row: int) -> None:
        arrays = room.arrays
        self.cpu_milli = int(arrays.cpu_milli_free[row])
        self.memory_mib = int(arrays.memory_mib_free[row])
        self.model_bit = 1 << int(arrays.model[row])
        self.gpu_milli: list[int] = sorted(arrays.gpu_milli_free[row].tolist(), reverse=True)

    def takes_of(self, blocked: Blocked) -> Bools:
        """Which of them could have a task there, by index."""
        cpu_milli, memory_mib, gpus, gpu_milli, models = blocked.task
        # Entry k: what is free of the k-th GPU, the emptiest first; entry 0 is for those who want none.
        free_milli = np.array([GPU_MILLI, *self.gpu_milli, -1])
        has_gpus = free_milli[np.minimum(gpus, len(self.gpu_milli) + 1)] >= gpu_milli
        suits = (gpus == 0) | (models & self.model_bit != 0)
        found: Bools = (self.cpu_milli >= cpu_milli) & (self.memory_mib >= memory_mib) & has_gpus & suits
        return found
