"""Which GPUs, for whom, right now? A pure function from the state of a hub and its queue to a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harch.fleet.model import Node
from harch.placement.explanation import Candidate
from harch.placement.nodes import NodeState
from harch.placement.request import Request
from harch.workloads.lifecycle import TaskPlacement


@dataclass(frozen=True, slots=True)
class Assignment:
    """A whole workload placed: one entry per task, in rank order, with the reason in a sentence."""

    request: Request
    tasks: tuple[TaskPlacement, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What to place now. What is not in it waits; `harch why` tells for what. `complete`: nobody else was left out."""

    assignments: tuple[Assignment, ...]
    complete: bool


class ServingOrder(Protocol):
    """Requests in the order in which they are served, in groups of equal shape."""

    def __iter__(self) -> Iterator[Request]: ...

    def skip_group(self) -> None: ...


def plan_placements(state: NodeState, country: str, queue: ServingOrder, *, placed_max: int) -> PlacementPlan:
    """Serves the queue in its order. What does not fit is passed over; `state` itself is not changed."""
    working = state.copy()
    placed: list[Assignment] = []
    for request in queue:
        assignment = place(working, country, request)
        if assignment is None:
            queue.skip_group()
            continue
        placed.append(assignment)
        if len(placed) == placed_max:
            return PlacementPlan(tuple(placed), complete=False)
    return PlacementPlan(tuple(placed), complete=True)


def place(state: NodeState, country: str, request: Request) -> Assignment | None:
    """Places one request on `state`, all tasks or none. The first check is residency: a hard rule."""
    if request.countries_allowed and country not in request.countries_allowed:
        return None
    if request.runs_process and request.tasks > state.process_slots_free:
        return None
    rows = _best_fit(state, request) if request.tasks == 1 else _gang(state, request)
    if rows is None:
        return None
    tasks = []
    for rank, row in enumerate(rows):
        node = state.table.nodes[row]
        devices = choose_devices(node, state.devices_free[row].tolist(), request.needs.gpus)
        state.take(row, devices, request.needs)
        tasks.append(TaskPlacement(rank=rank, node_id=node.id, gpu_ids=tuple(node.gpus[i].id for i in devices)))
    if request.runs_process:
        state.process_slots_free -= request.tasks
    return Assignment(request, tuple(tasks), _reason(state, request, rows))


def _best_fit(state: NodeState, request: Request) -> list[int] | None:
    """The node that is left with the fewest free GPUs: whole nodes stay whole for those who need them."""
    fits = state.fits_now(request.needs)
    left = np.where(fits, state.gpus_free, np.iinfo(np.int16).max)
    row = int(left.argmin())
    return [row] if fits[row] else None


def _gang(state: NodeState, request: Request) -> list[int] | None:
    """One rack if any holds the whole gang (the tightest such), else the racks with most room; fullest use per node."""
    slots = state.slots_now(request.needs)
    if int(slots.sum()) < request.tasks:
        return None
    racks = state.table.rack_index
    per_rack = np.bincount(racks, weights=slots).astype(np.int64)
    whole = np.flatnonzero(per_rack >= request.tasks)
    if whole.size:
        order = [int(whole[per_rack[whole].argmin()])]
    else:
        order = [int(rack) for rack in np.argsort(-per_rack, kind="stable")]
    rows: list[int] = []
    for rack in order:
        members = np.flatnonzero((racks == rack) & (slots > 0))
        for row in members[np.argsort(-slots[members], kind="stable")]:
            rows += [int(row)] * min(int(slots[row]), request.tasks - len(rows))
            if len(rows) == request.tasks:
                return rows
    return None


def choose_devices(node: Node, free: list[bool], count: int) -> list[int]:
    """`count` free devices: from the tightest NVLink island that holds them, else over the fullest islands."""
    if count == 0:
        return []
    islands: dict[int, list[int]] = {}
    for gpu in node.gpus:
        if free[gpu.index]:
            islands.setdefault(gpu.island, []).append(gpu.index)
    fitting = [devices for devices in islands.values() if len(devices) >= count]
    if fitting:
        return min(fitting, key=len)[:count]
    ordered = sorted(islands.values(), key=len, reverse=True)
    return sorted([device for devices in ordered for device in devices][:count])


def top_candidates(state: NodeState, request: Request, limit: int = 5) -> tuple[Candidate, ...]:
    """The nodes that best fit would look at first, with their scores."""
    rows = np.flatnonzero(state.fits_now(request.needs))
    left = state.gpus_free[rows] - request.needs.gpus
    best = rows[np.argsort(left, kind="stable")[:limit]]
    candidates = []
    for row in best:
        free = int(state.gpus_free[row])
        score = float(request.needs.gpus - free)
        candidates.append(
            Candidate(node_id=state.table.nodes[row].id, gpus_free=free, score=score, parts={"best_fit": score})
        )
    return tuple(candidates)


def _reason(state: NodeState, request: Request, rows: list[int]) -> str:
    if request.tasks == 1:
        left = int(state.gpus_free[rows[0]])
        return f"best fit: leaves {left} GPUs free on {state.table.nodes[rows[0]].id}"
    racks = len({int(state.table.rack_index[row]) for row in rows})
    where = "one rack" if racks == 1 else f"{racks} racks"
    return f"gang of {request.tasks} on {len(set(rows))} nodes in {where}"
