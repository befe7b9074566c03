"""What came free since the last round, and who could use it? A full hub must not try everybody again each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harch.placement.policy.shapes import Request as Kind
from harch.placement.request import Request
from harch.placement.room import Room
from harch.placement.turns.reservations import Reservation

_NOTHING: Mapping[int, Reservation] = {}


class Vacancies:
    """Rows where something came free. A request that did not fit before can fit now only with a task on one of them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._rows: dict[int, _Free | None] = {}
        self._anything = True  # also what no row can tell, e.g. a node that is served again
        self._open_to: dict[Kind, bool] = {}  # answers for the rows that are not kept: many wait for the same
        self._kept: Mapping[int, Reservation] = _NOTHING  # what they were given for

    def add(self, rows: Iterable[int]) -> None:
        self._rows.update(dict.fromkeys(rows))
        self._open_to.clear()

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
        self._anything = self._room.power_can_bind  # watts that come free help other nodes too: no row can tell whom

    def may_serve(self, request: Request, kept: Mapping[int, Reservation] = _NOTHING, now_s: float = 0.0) -> bool:
        """False: a task of it fits on none of them. True promises nothing.

        `kept` are the rows that are reserved: they serve only whom the reservation lets in.
        """
        if self._anything:
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

    def _takes(self, row: int, kind: Kind) -> bool:
        free = self._rows[row]
        if free is None:
            free = self._rows[row] = _Free(self._room, row)
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
