"""Which work must move so that a waiting request fits, and at what cost? A plan; nobody moves before it is asked for.

A domain is cleared of work that fits elsewhere, the least lost work first, and only as much as needed. Everything that
moves has a place to go in the same plan. It is worth it only for requests that need whole nodes, racks or rows: a share
of a GPU fits into any gap.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools, Ints
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest, find_slots
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level

DOMAINS_TRIED_MAX = 12  # per level, those with most free GPUs first
MOVERS_LOOKED_AT_MAX = 48  # per domain, those that lose least first


@dataclass(frozen=True, slots=True)
class Move:
    """One workload leaves its place for another."""

    running: RunningRequest
    to: tuple[TaskSlot, ...]
    lost_gpu_s: float


@dataclass(frozen=True, slots=True)
class DefragmentationPlan:
    """`moves` free `rows` for `request`. `kind` restart: from the workload's own checkpoint folder."""

    request: PlacementRequest
    slots: tuple[TaskSlot, ...]
    level: Level
    rows: tuple[int, ...]
    moves: tuple[Move, ...]
    kind: Literal["restart"] = "restart"

    @property
    def lost_gpu_s(self) -> float:
        return sum(move.lost_gpu_s for move in self.moves)

    @property
    def pays(self) -> bool:
        """GPU-seconds that start now exceed those that are done again; unknown durations count as an hour."""
        gained_s = self.request.duration_s_max or 3600.0
        return self.request.gpu_milli_total / GPU_MILLI * gained_s > self.lost_gpu_s

    def describe(self) -> str:
        names = ", ".join(move.running.request.id for move in self.moves)
        return (
            f"moving {len(self.moves)} ({names}) frees one {self.level} for {self.request.id}; "
            f"{self.lost_gpu_s:.0f} GPU-seconds are repeated"
        )


def plan_defragmentation(
    room: Room,
    request: PlacementRequest,
    running: Sequence[RunningRequest],
    now_s: float,
    *,
    moves_max: int,
    within: Bools | None = None,
) -> DefragmentationPlan | None:
    """None if it fits already, or if no domain (of the nodes `within`) can be cleared within the limit."""
    everywhere = np.ones(room.arrays.size, np.bool_)
    if not request.needs.gpus or find_slots(room, request, request.tasks, everywhere) is not None:
        return None
    releases = Releases(room, running)
    for level in (Level.NODE, Level.RACK, Level.ROW, Level.HUB):
        if level.rank > max(request.topology.required.rank, Level.NODE.rank):
            break
        plans = [
            plan
            for domain in _promising(room, request, level, everywhere if within is None else within)
            if (plan := _clear(room, request, releases, level, domain, now_s, moves_max)) is not None
        ]
        if plans:
            return min(plans, key=lambda plan: (plan.lost_gpu_s, len(plan.moves), plan.rows))
    return None


def _promising(room: Room, request: PlacementRequest, level: Level, within: Bools) -> list[Bools]:
    """Domains that would hold the request when empty, those with most free GPUs first."""
    domain_of = _domain_of(room, level)
    capacity = np.bincount(domain_of, room.slots_when_empty(request.needs) * (room.arrays.available & within))
    free = np.bincount(domain_of, room.arrays.gpu_milli_free_sum)
    order = [domain for domain in np.argsort(-free, kind="stable").tolist() if capacity[domain] >= request.tasks]
    return [within & (domain_of == domain) for domain in order[:DOMAINS_TRIED_MAX]]


def _clear(
    room: Room, request: PlacementRequest, releases: Releases, level: Level, within: Bools, now_s: float, moves_max: int
) -> DefragmentationPlan | None:
    running = [releases.item(number) for number in releases.numbers]
    movers = [
        number
        for number, item in enumerate(running)
        if item.request.preemptible and all(within[slot.row] for slot in item.slots)
    ]
    movers.sort(key=lambda number: (running[number].lost_gpu_s(now_s), running[number].request.id))
    gone = np.zeros(len(releases), np.bool_)
    chosen: list[int] = []
    slots: tuple[TaskSlot, ...] | None = None
    for index in movers[: min(MOVERS_LOOKED_AT_MAX, 2 * moves_max)]:
        gone[index] = True
        chosen.append(index)
        slots = find_slots(releases.room_after(gone), request, request.tasks, within)
        if slots is not None:
            break
    if slots is None:
        return None
    for index in reversed(chosen[:-1]):  # who turned out not to be needed stays
        gone[index] = False
        spared = find_slots(releases.room_after(gone), request, request.tasks, within)
        if spared is None:
            gone[index] = True
        else:
            slots = spared
    leaving = [index for index in chosen if gone[index]]
    if len(leaving) > moves_max:
        return None
    moves = _rehouse(releases.room_after(gone), request, slots, [running[index] for index in leaving], now_s)
    if moves is None:
        return None
    rows = tuple(np.flatnonzero(within).tolist())
    return DefragmentationPlan(request=request, slots=slots, level=level, rows=rows, moves=moves)


def _rehouse(
    room: Room, request: PlacementRequest, slots: tuple[TaskSlot, ...], leaving: list[RunningRequest], now_s: float
) -> tuple[Move, ...] | None:
    """A place for everybody who leaves, beside the request; the largest first. None if somebody finds none."""
    everywhere = np.ones(room.arrays.size, np.bool_)
    _take(room, request, slots)
    moves = []

    def largest_first(item: RunningRequest) -> tuple[int, str]:
        return -item.request.tasks * room.kind(item.request.needs).gpu_milli_total, item.request.id

    for item in sorted(leaving, key=largest_first):
        to = find_slots(room, item.request, len(item.slots), everywhere)
        if to is None:
            return None
        _take(room, item.request, to)
        moves.append(Move(item, to, item.lost_gpu_s(now_s)))
    return tuple(moves)


def _take(room: Room, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> None:
    for slot in slots:
        room.take(request.needs, slot, exclusive=request.topology.exclusive)
    if request.runs_process:
        room.process_slots_free -= len(slots)


def _domain_of(room: Room, level: Level) -> Ints:
    if level is Level.NODE:
        return np.arange(room.arrays.size)
    if level is Level.RACK:
        return room.rack
    return room.rack_row[room.rack] if level is Level.ROW else np.zeros(room.arrays.size, np.int64)
