"""What holds GPUs now, and would a request fit into such a room? Small values and quick looks."""

# harch: pure

from __future__ import annotations

import math
from typing import Self

import numpy as np
from msgspec import Struct

from harch.placement.gangs import place_gang
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level

MOVABLE_SHARE_MAX = 0.25  # of the GPUs of the request that others make room for


class RunningRequest(Struct, frozen=True, gc=False):
    """One request with the places of its tasks."""

    request: PlacementRequest
    slots: tuple[TaskSlot, ...]
    started_s: float
    restarts: int = 0
    stop_grace_s: float = 0.0
    checkpoint_s: float | None = None  # when it last saved its work, if known

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def ends_s_max(self, now_s: float, margin_s: float = 0.0) -> float:
        """When it has surely ended, by its promise; infinite without one. A broken promise is none."""
        bound_s = self.request.duration_s_max
        if bound_s is None:
            return math.inf
        ends_s = self.started_s + bound_s + self.stop_grace_s + margin_s
        return ends_s if ends_s >= now_s else math.inf

    def lost_gpu_s(self, now_s: float) -> float:
        """Work that is done again after a restart. Tasks without GPUs count a thousandth: cheap, but not free."""
        since_s = max(self.started_s, -math.inf if self.checkpoint_s is None else self.checkpoint_s)
        return max(0.0, now_s - since_s) * len(self.slots) * self.gpu_milli_per_task / GPU_MILLI

    @property
    def gpu_milli_per_task(self) -> int:
        """Of compute: work that is lost is what was computed, however much memory it had."""
        return max(self.request.needs.gpus * self.request.needs.gpu_milli, 1)


def is_movable(candidate: PlacementRequest, request: PlacementRequest) -> bool:
    """May it be asked to restart elsewhere for `request`, once that has waited long?

    Preemptible work of its class or a lower one that holds far less: so two large gangs never drive each other out.
    """
    return (
        candidate.preemptible
        and CLASS_ORDER.index(candidate.turn_class) >= CLASS_ORDER.index(request.turn_class)
        and candidate.gpu_milli_total <= request.gpu_milli_total * MOVABLE_SHARE_MAX
    )


def domains(room: Room, level: Level) -> Ints:
    """The number of the domain in which each node stands. Islands lie inside nodes, so their domain is the node."""
    if level.rank <= Level.NODE.rank:
        return np.arange(room.arrays.size)
    if level is Level.RACK:
        return room.rack
    return room.rack_row[room.rack] if level is Level.ROW else np.zeros(room.arrays.size, np.int64)


def could_fit(room: Room, request: PlacementRequest, tasks: int, allowed: Bools) -> bool:
    """False: `find_slots` would find none. A quick look, as power is counted per node and islands are not looked at."""
    slots = np.where(allowed, room.slots(request.needs, exclusive=request.topology.exclusive), 0)
    return bool(np.bincount(domains(room, request.topology.required), slots).max() >= tasks)


def find_slots(room: Room, request: PlacementRequest, tasks: int, allowed: Bools) -> tuple[TaskSlot, ...] | None:
    """Would it fit in such a room, and where? The rules of the real placement; only scores are left out."""
    if request.runs_process and tasks > room.process_slots_free:
        return None
    if not could_fit(room, request, tasks, allowed):
        return None
    return place_gang(room, request, tasks, rank_nodes=_all_alike, allowed=allowed)


def _all_alike(kind: Kind, nodes: Bools) -> Floats:
    return np.zeros(nodes.size)
