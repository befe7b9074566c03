"""Where do all tasks of a gang go together? The lowest domain that holds them all, or nowhere.

The levels are tried from the preferred one upwards, never above the required one. At each level the tightest domain
that fits wins (fewest free GPUs), so that wide ones stay whole for wider gangs. Inside a domain as few rows, racks and
nodes as possible are used, each as full as it goes, and one GPU model rather than several. Ranks follow the hardware:
those of one island, node, rack and row are neighbours.

`spread` turns the inside round: as many nodes as possible, then as many racks. It has no use for small domains, so it
takes the required level at once, unless a rack or more is preferred.

Power and cooling are shared by nodes, so they are counted down while the gang is laid out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from harch.base.errors import InvariantBroken
from harch.placement.devices import Neighbourhoods, choose_among, neighbourhoods
from harch.placement.gang_layout import NEVER, Demand, Layout, RankNodes
from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, Resources, Strategy

DOMAINS_TRIED_MAX = 8  # per level. The second is needed only where GPUs of one rack draw different power


def place_gang(
    room: Room, request: Request, tasks: int, *, rank_nodes: RankNodes, allowed: Bools | None = None
) -> tuple[TaskSlot, ...] | None:
    """Slots of `tasks` tasks in rank order, or None: never a part of them. The room itself is not changed.

    Residency and process slots are the caller's to check; `allowed` holds the nodes that it leaves over. A degraded
    gang is asked for with fewer tasks.
    """
    slots = room.slots(request.needs, exclusive=request.topology.exclusive)
    if allowed is not None:
        slots = np.where(allowed, slots, 0)
    kind = room.kind(request.needs)
    scores = cache(lambda: rank_nodes(kind, slots > 0))
    for usable in _model_choices(room, request.needs):
        if int(slots[usable].sum()) < tasks:
            continue
        demand = Demand(room, request.needs, np.where(usable, slots, 0), scores, nodes=usable)
        for level in levels_tried(request):
            for part in _alike_first(demand, request, tasks, level):
                if (placed := _place_at(part, request, tasks, level)) is not None:
                    return placed
    return None


def levels_tried(request: Request) -> tuple[Level, ...]:
    """The levels at which the request may be placed, first choice first."""
    wish = request.topology
    first = min(wish.preferred.rank, wish.required.rank)
    if wish.strategy is Strategy.SPREAD and wish.preferred.rank < Level.RACK.rank:
        first = wish.required.rank
    if not request.needs.gpus:
        first = max(first, min(Level.NODE.rank, wish.required.rank))
    return tuple(level for level in Level if first <= level.rank <= wish.required.rank)


def _model_choices(room: Room, needs: Resources) -> Iterator[Bools]:
    """One preferred model after the other, each for the whole gang; then all that will do, mixed."""
    wanted = needs.models_wanted
    if len(wanted) > 1 and needs.gpus:
        for model in wanted:
            if model in room.models:
                yield room.arrays.model == room.models.index(model)
    yield room.suits(needs)


def _alike_first(demand: Demand, request: Request, tasks: int, level: Level) -> Iterator[Demand]:
    """Nodes of one model before several models: a gang is as slow as its slowest GPU. What is spread stands alone."""
    room, slots = demand.room, demand.slots
    models = np.unique(room.arrays.model[slots > 0]).tolist()
    together = request.topology.strategy is Strategy.PACK and request.needs.gpus > 0
    if level.rank > Level.NODE.rank and len(models) > 1 and together:
        alone = {model: room.arrays.model == model for model in models}
        enough = [model for model in models if int(slots[alone[model]].sum()) >= tasks]
        if len(enough) > 1:  # the model whose nodes the policy likes best comes first
            enough.sort(key=lambda model: -float(demand.node_scores[alone[model] & (slots > 0)].mean()))
        yield from (demand.only(alone[model]) for model in enough)
    yield demand


def _place_at(demand: Demand, request: Request, tasks: int, level: Level) -> tuple[TaskSlot, ...] | None:
    if level is Level.ISLAND and request.needs.gpus:
        return _in_island(demand, request, tasks)
    if level in (Level.ISLAND, Level.NODE):
        return _in_node(demand, request, tasks)
    return _in_racks(demand, request, tasks, level)


def _in_island(demand: Demand, request: Request, tasks: int) -> tuple[TaskSlot, ...] | None:
    room, needs = demand.room, request.needs
    free = room.arrays.gpu_milli_free
    rows = np.flatnonzero(demand.slots >= tasks)
    if not rows.size:
        return None
    islands = np.arange(int(room.island.max()) + 1)
    milli = room.kind(needs).gpu_milli
    whole = milli == GPU_MILLI
    per_device = (free[rows] == GPU_MILLI).astype(np.int64) if whole else free[rows] // milli
    member = room.island[rows][:, None, :] == islands[None, :, None]  # [node, island, device]
    fits = (member * per_device[:, None, :]).sum(axis=2) // (needs.gpus if whole else 1)
    left = (member * free[rows][:, None, :]).sum(axis=2)
    where, island = np.nonzero(fits >= tasks)
    if not where.size:
        return None
    # The tightest island; among equals the one on the fullest node.
    keys = left[where, island] * (1 + int(demand.tightness.max())) + demand.tightness[rows[where]]
    best = demand.first(keys, lambda: demand.node_scores[rows[where]])
    row = int(rows[where[best]])
    within = sum(1 << index for index in np.flatnonzero(room.island[row] == island[best]).tolist())
    return _slots_on(demand, request, {row: tasks}, within)


def _in_node(demand: Demand, request: Request, tasks: int) -> tuple[TaskSlot, ...] | None:
    rows = np.flatnonzero(demand.slots >= tasks)
    if not rows.size:
        return None
    row = int(rows[demand.first(demand.tightness[rows], lambda: demand.node_scores[rows])])
    return _slots_on(demand, request, {row: tasks})


def _in_racks(demand: Demand, request: Request, tasks: int, level: Level) -> tuple[TaskSlot, ...] | None:
    room = demand.room
    racks = len(room.rack_row)
    domain = {Level.RACK: np.arange(racks), Level.ROW: room.rack_row}.get(level, np.zeros(racks, np.int64))
    caps = Layout(demand).domain_caps(domain)
    tightness = np.bincount(domain, demand.rack_tightness).astype(np.int64)
    fitting = caps >= tasks
    for _ in range(DOMAINS_TRIED_MAX):
        if not fitting.any():
            break
        keys = np.where(fitting, tightness, NEVER)
        best = demand.first(keys, lambda: np.bincount(domain, demand.rack_scores) / np.bincount(domain))
        layout = Layout(demand)
        inside = np.flatnonzero(domain == best)
        lay_out = layout.spread if request.topology.strategy is Strategy.SPREAD else layout.pack
        if lay_out(inside, tasks):
            rows = np.flatnonzero(layout.counts)
            in_order = rows[np.lexsort((rows, room.rack[rows], room.rack_row[room.rack[rows]]))]
            return _slots_on(demand, request, {int(row): int(layout.counts[row]) for row in in_order})
        fitting[best] = False
    return None


def _slots_on(demand: Demand, request: Request, counts: dict[int, int], within: int = -1) -> tuple[TaskSlot, ...]:
    """Devices for the tasks of each node, task by task: each keeps its own GPUs together."""
    room, needs = demand.room, request.needs
    milli = room.kind(needs).gpu_milli
    placed: list[TaskSlot] = []
    for row, tasks in counts.items():
        free_milli: list[int] = room.arrays.gpu_milli_free[row].tolist()
        kind = neighbourhoods(room.hub.nodes[row])
        here: list[tuple[int, ...]] = []
        for _ in range(tasks):
            devices = choose_among(kind, free_milli, needs.gpus, milli, within=within)
            if devices is None:
                raise InvariantBroken("a slot has devices", room.hub.nodes[row].id, request.id)
            for device in devices:
                free_milli[device] -= milli
            here.append(devices)
        if needs.gpus:
            here = _by_island(here, kind)
        placed += [TaskSlot(row, devices) for devices in here]
    return tuple(placed)


def _by_island(tasks: list[tuple[int, ...]], kind: Neighbourhoods) -> list[tuple[int, ...]]:
    """A task that bridges two islands stands between those of either."""
    return sorted(tasks, key=lambda devices: (kind[devices[0]][0], kind[devices[-1]][0], devices))
