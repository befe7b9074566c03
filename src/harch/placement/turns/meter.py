"""How much has somebody had? Dominant shares of a hub, and virtual times that grow with them."""

from __future__ import annotations

from dataclasses import dataclass

from harch.placement.request import Request
from harch.placement.room import MIB_PER_GB, Room


@dataclass(frozen=True, slots=True)
class Capacity:
    """The whole of a hub, as the denominator of every share."""

    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    storage_mib: int
    room: Room  # knows what a share takes

    @classmethod
    def of(cls, room: Room) -> Capacity:
        arrays = room.arrays
        return cls(
            arrays.gpu_milli_total,
            int(arrays.cpu_milli.sum()),
            int(arrays.memory_mib.sum()),
            int(room.storage_mib.sum()),
            room,
        )

    def share(self, request: Request, tasks: int) -> float:
        """The largest of its shares of GPUs, CPUs, memory and storage."""
        needs = request.needs
        return tasks * max(
            self.room.kind(needs).gpu_milli_total / max(self.gpu_milli, 1),
            needs.cpus * 1000 / max(self.cpu_milli, 1),
            needs.memory_gb * MIB_PER_GB / max(self.memory_mib, 1),
            needs.storage_gb * MIB_PER_GB / max(self.storage_mib, 1),
        )


@dataclass(slots=True)
class Meter:
    """The virtual time `v` of one flow or class: hub-seconds held, divided by its weight."""

    v: float = 0.0
    share_held: float = 0.0
    holders: int = 0

    def advance(self, seconds: float, weight: float) -> None:
        self.v += self.share_held * seconds / weight

    def ahead(self, lookahead_s: float, weight: float) -> float:
        """Where `v` will be if nothing changes: what the serving order compares."""
        return self.v + self.share_held * lookahead_s / weight

    def join(self, v_system: float, memory: float) -> None:
        """On becoming backlogged: no credit is hoarded, and debt beyond `memory` is forgiven."""
        self.v = min(max(self.v, v_system), v_system + memory)

    def take(self, share: float) -> None:
        self.share_held += share
        self.holders += 1

    def give_back(self, share: float) -> None:
        self.holders -= 1
        # Rounding must not leave a share behind when nothing is held.
        self.share_held = self.share_held - share if self.holders else 0.0
