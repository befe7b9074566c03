"""Where do all tasks of a gang go together?

The lowest domain that holds them all, and how many tasks go to each of its nodes, with power and cooling shared.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property

import numpy as np

from harch.base.errors import InvariantBroken
from harch.placement.devices import choose_among
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.request import PlacementRequest
from harch.placement.room import Neighbourhoods, Room, TaskSlot
from harch.workloads.spec import Level, Resources, Strategy

# How many tasks of a gang go to each node of a domain? Racks, rows and the whole hub, with power and cooling shared.
#
# Where all GPUs in question draw the same power, a layout exists exactly if `domain_caps` says so: limits of nodes,
# racks
# and zones are nested, so filling greedily never paints itself into a corner. With mixed models it is an upper bound.


NEVER = 2**63 - 1  # the key of what is not to be chosen
_SCORE_MIN = -1e12  # a node that the policy finds impossible drags its domain down, without making it infinite

# From the policy: a score for every node of the room (higher is better) as the place of one task of that kind. Only
# nodes of the mask need one, the others may say anything. Asked at most once per gang, and only if there is a tie.
RankNodes = Callable[[Kind, Bools], Floats]


class GangDemand:
    """One task's needs against the room: how many such tasks each node takes, and which node to prefer among equals.

    `nodes` are those of the GPU models in question: what is free of other models makes no domain wider for this gang.
    """

    def __init__(
        self, room: Room, needs: Resources, slots: Ints, scores: Callable[[], Floats], *, nodes: Bools
    ) -> None:
        self.room = room
        self.needs = needs
        self.slots = slots
        self._scores = scores
        arrays = room.arrays
        # What is still free on a node, in the unit that the gang competes for: the less, the tighter.
        counted = arrays.available & nodes
        self.tightness: Ints = np.where(counted, arrays.gpu_milli_free_sum, 0) if needs.gpus else slots
        self.watts: Floats | None = np.maximum(room.watts(needs), 1.0) if needs.gpus else None

    @cached_property
    def node_scores(self) -> Floats:
        scores = np.maximum(np.nan_to_num(self._scores(), nan=_SCORE_MIN), _SCORE_MIN)
        return np.where(self.slots > 0, scores, 0.0)

    def only(self, nodes: Bools) -> GangDemand:
        """The same on nodes of fewer models."""
        return GangDemand(self.room, self.needs, np.where(nodes, self.slots, 0), self._scores, nodes=nodes)

    @cached_property
    def rack_tightness(self) -> Ints:
        return np.bincount(self.room.rack, self.tightness, len(self.room.rack_row)).astype(np.int64)

    @cached_property
    def rack_scores(self) -> Floats:
        """The mean over the nodes that could take a task."""
        racks = len(self.room.rack_row)
        nodes = np.bincount(self.room.rack, self.slots > 0, racks)
        return np.bincount(self.room.rack, self.node_scores, racks) / np.maximum(nodes, 1)

    def first(self, keys: Ints, scores: Callable[[], Floats]) -> int:
        """The place of the smallest key; the best score decides between equals, then the order of the hub."""
        equal = np.flatnonzero(keys == keys.min())
        return int(equal[0] if equal.size == 1 else equal[scores()[equal].argmax()])


class GangLayout:
    """Tasks per node, growing; what is left of slots, power and cooling shrinks with it."""

    def __init__(self, demand: GangDemand) -> None:
        room = demand.room
        self._demand = demand
        self._room = room
        self._slots = demand.slots.copy()
        self._rack_w = room.rack_power_w_free.copy()
        self._zone_w = room.zone_heat_w_max - room.zone_heat_w
        self.counts: Ints = np.zeros_like(demand.slots)

    def domain_caps(self, domain_of_rack: Ints) -> Ints:
        """How many more tasks each domain takes."""
        room, zones = self._room, len(self._zone_w)
        rack_caps = self._rack_caps()
        domains = int(domain_of_rack.max()) + 1
        if self._demand.watts is None:
            return np.bincount(domain_of_rack, rack_caps, domains).astype(np.int64)
        parts = np.bincount(domain_of_rack * zones + room.rack_zone, rack_caps, domains * zones)
        least_w = np.full(zones, np.inf)
        np.minimum.at(least_w, room.rack_zone, self._rack_watts_min)
        zone_caps = np.floor_divide(np.maximum(self._zone_w, 0.0), least_w)
        caps: Ints = np.minimum(parts.reshape(domains, zones), zone_caps).sum(axis=1).astype(np.int64)
        return caps

    def pack(self, racks: Ints, tasks: int) -> bool:
        """Fewest rows, in them fewest racks, in them fewest nodes; False if it did not go in after all."""
        room, demand = self._room, self._demand
        here = np.zeros(len(room.rack_row), np.bool_)
        here[racks] = True
        row_tightness = np.bincount(room.rack_row, demand.rack_tightness).astype(np.int64)

        def row_caps() -> Ints:
            return np.where(np.bincount(room.rack_row, here) > 0, self.domain_caps(room.rack_row), 0)

        def fill_row(row: int, wanted: int) -> int:
            return self._fill(
                lambda: np.where(here & (room.rack_row == row), self._rack_caps(), 0),
                demand.rack_tightness,
                lambda: demand.rack_scores,
                self._fill_rack,
                wanted,
            )

        def row_scores() -> Floats:
            return np.bincount(room.rack_row, demand.rack_scores) / np.bincount(room.rack_row)

        if len({int(room.rack_row[rack]) for rack in racks}) == 1:  # the usual case needs no choice of rows
            return fill_row(int(room.rack_row[racks[0]]), tasks) == tasks
        return self._fill(row_caps, row_tightness, row_scores, fill_row, tasks) == tasks

    def spread(self, racks: Ints, tasks: int) -> bool:
        """One task per node and round; in each round the first node of every rack, then the second of every rack."""
        room, demand = self._room, self._demand
        nodes = np.flatnonzero(np.isin(room.rack, racks) & (self._slots > 0))
        nodes = nodes[np.lexsort((-demand.node_scores[nodes], demand.tightness[nodes], room.rack[nodes]))]
        rack = room.rack[nodes]
        nth_in_rack = np.arange(len(nodes)) - np.searchsorted(rack, rack)
        nodes = nodes[np.lexsort((rack, demand.rack_tightness[rack], nth_in_rack))]
        left = tasks
        while left:
            before = left
            for node in nodes.tolist():
                if left and self._node_cap(node):
                    self._put(node, 1)
                    left -= 1
            if left == before:
                return False
        return True

    def _fill(
        self,
        caps: Callable[[], Ints],
        tightness: Ints,
        scores: Callable[[], Floats],
        put: Callable[[int, int], int],
        tasks: int,
    ) -> int:
        """Part by part: the tightest that holds all that is left, else the largest. Returns how many went in."""
        left = tasks
        while left:
            now = caps()
            enough = now >= left
            if enough.any():
                keys = np.where(enough, tightness, NEVER)
            elif now.any():
                keys = np.where(now == now.max(), tightness, NEVER)
            else:
                break
            part = self._demand.first(keys, scores)
            wanted = min(left, int(now[part]))
            placed = put(part, wanted)
            left -= placed
            if placed < wanted:
                break
        return tasks - left

    def _fill_rack(self, rack: int, tasks: int) -> int:
        room, demand = self._room, self._demand
        nodes = np.flatnonzero(room.rack == rack)
        left = tasks
        while left:
            caps = [self._node_cap(node) for node in nodes.tolist()]
            most = max(caps)
            if not most:
                break
            wanted = min(left, most)  # the tightest that holds all that is left, else one of the largest
            keys = np.where(np.array(caps) >= wanted, demand.tightness[nodes], NEVER)
            node = int(nodes[demand.first(keys, lambda: demand.node_scores[nodes])])
            self._put(node, wanted)
            left -= wanted
        return tasks - left

    def _put(self, node: int, tasks: int) -> None:
        self.counts[node] += tasks
        self._slots[node] -= tasks
        if self._demand.watts is not None:
            watts = float(self._demand.watts[node]) * tasks
            rack = self._room.rack[node]
            self._rack_w[rack] -= watts
            self._zone_w[self._room.rack_zone[rack]] -= watts

    def _node_cap(self, node: int) -> int:
        slots = int(self._slots[node])
        if not slots or self._demand.watts is None:
            return slots
        rack = self._room.rack[node]
        watts_free = min(float(self._rack_w[rack]), float(self._zone_w[self._room.rack_zone[rack]]))
        return min(slots, int(max(watts_free, 0.0) // float(self._demand.watts[node])))

    def _rack_caps(self) -> Ints:
        room, racks = self._room, len(self._room.rack_row)
        caps = np.bincount(room.rack, self._slots, racks)
        if self._demand.watts is not None:
            watts_free = np.maximum(np.minimum(self._rack_w, self._zone_w[room.rack_zone]), 0.0)
            caps = np.minimum(caps, np.floor_divide(watts_free, self._rack_watts_min))
        return caps.astype(np.int64)

    @cached_property
    def _rack_watts_min(self) -> Floats:
        """Per rack: the least that a task draws on any node that takes one; infinite where none does."""
        least = np.full(len(self._room.rack_row), np.inf)
        if self._demand.watts is not None:
            np.minimum.at(least, self._room.rack, np.where(self._demand.slots > 0, self._demand.watts, np.inf))
        return least


# Where do all tasks of a gang go together? The lowest domain that holds them all, or nowhere.
#
# The levels are tried from the preferred one upwards, never above the required one. At each level the tightest domain
# that fits wins (fewest free GPUs), so that wide ones stay whole for wider gangs. Inside a domain as few rows, racks
# and
# nodes as possible are used, each as full as it goes, and one GPU model rather than several. Ranks follow the hardware:
# those of one island, node, rack and row are neighbours.
#
# `spread` turns the inside round: as many nodes as possible, then as many racks. It has no use for small domains, so it
# takes the required level at once, unless a rack or more is preferred.
#
# Power and cooling are shared by nodes, so they are counted down while the gang is laid out.


DOMAINS_TRIED_MAX = 8  # per level. The second is needed only where GPUs of one rack draw different power


def place_gang(
    room: Room, request: PlacementRequest, tasks: int, *, rank_nodes: RankNodes, allowed: Bools | None = None
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
        demand = GangDemand(room, request.needs, np.where(usable, slots, 0), scores, nodes=usable)
        for level in levels_tried(request):
            for part in _alike_first(demand, request, tasks, level):
                if (placed := _place_at(part, request, tasks, level)) is not None:
                    return placed
    return None


def levels_tried(request: PlacementRequest) -> tuple[Level, ...]:
    """The levels at which the request may be placed, first choice first."""
    topology = request.topology
    first = min(topology.preferred.rank, topology.required.rank)
    if topology.strategy is Strategy.SPREAD and topology.preferred.rank < Level.RACK.rank:
        first = topology.required.rank
    if not request.needs.gpus:
        first = max(first, min(Level.NODE.rank, topology.required.rank))
    return tuple(level for level in Level if first <= level.rank <= topology.required.rank)


def _model_choices(room: Room, needs: Resources) -> Iterator[Bools]:
    """One preferred model after the other, each for the whole gang; then all that will do, mixed."""
    wanted = needs.models_wanted
    if len(wanted) > 1 and needs.gpus:
        for model in wanted:
            if model in room.models:
                yield room.arrays.model == room.models.index(model)
    yield room.suits(needs)


def _alike_first(demand: GangDemand, request: PlacementRequest, tasks: int, level: Level) -> Iterator[GangDemand]:
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


def _place_at(demand: GangDemand, request: PlacementRequest, tasks: int, level: Level) -> tuple[TaskSlot, ...] | None:
    if level is Level.ISLAND and request.needs.gpus:
        return _in_island(demand, request, tasks)
    if level in (Level.ISLAND, Level.NODE):
        return _in_node(demand, request, tasks)
    return _in_racks(demand, request, tasks, level)


def _in_island(demand: GangDemand, request: PlacementRequest, tasks: int) -> tuple[TaskSlot, ...] | None:
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


def _in_node(demand: GangDemand, request: PlacementRequest, tasks: int) -> tuple[TaskSlot, ...] | None:
    rows = np.flatnonzero(demand.slots >= tasks)
    if not rows.size:
        return None
    row = int(rows[demand.first(demand.tightness[rows], lambda: demand.node_scores[rows])])
    return _slots_on(demand, request, {row: tasks})


def _in_racks(demand: GangDemand, request: PlacementRequest, tasks: int, level: Level) -> tuple[TaskSlot, ...] | None:
    room = demand.room
    racks = len(room.rack_row)
    domain = {Level.RACK: np.arange(racks), Level.ROW: room.rack_row}.get(level, np.zeros(racks, np.int64))
    caps = GangLayout(demand).domain_caps(domain)
    tightness = np.bincount(domain, demand.rack_tightness).astype(np.int64)
    fitting = caps >= tasks
    for _ in range(DOMAINS_TRIED_MAX):
        if not fitting.any():
            break
        keys = np.where(fitting, tightness, NEVER)
        best = demand.first(keys, lambda: np.bincount(domain, demand.rack_scores) / np.bincount(domain))
        layout = GangLayout(demand)
        inside = np.flatnonzero(domain == best)
        lay_out = layout.spread if request.topology.strategy is Strategy.SPREAD else layout.pack
        if lay_out(inside, tasks):
            rows = np.flatnonzero(layout.counts)
            in_order = rows[np.lexsort((rows, room.rack[rows], room.rack_row[room.rack[rows]]))]
            return _slots_on(demand, request, {int(row): int(layout.counts[row]) for row in in_order})
        fitting[best] = False
    return None


def _slots_on(
    demand: GangDemand, request: PlacementRequest, counts: dict[int, int], within: int = -1
) -> tuple[TaskSlot, ...]:
    """Devices for the tasks of each node, task by task: each keeps its own GPUs together."""
    room, needs = demand.room, request.needs
    milli = room.kind(needs).gpu_milli
    placed: list[TaskSlot] = []
    for row, tasks in counts.items():
        free_milli: list[int] = room.arrays.gpu_milli_free[row].tolist()
        kind = room.neighbourhoods[row]
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
