"""How many tasks of a gang go to each node of a domain? Racks, rows and the whole hub, with power and cooling shared.

Where all GPUs in question draw the same power, a layout exists exactly if `domain_caps` says so: limits of nodes, racks
and zones are nested, so filling greedily never paints itself into a corner. With mixed models it is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from harch.placement.policy.shapes import Bools, Floats, Ints
from harch.placement.policy.shapes import Request as Kind
from harch.placement.room import Room
from harch.workloads.spec import Resources

NEVER = 2**63 - 1  # the key of what is not to be chosen
_SCORE_MIN = -1e12  # a node that the policy finds impossible drags its domain down, without making it infinite

# From the policy: a score for every node of the room (higher is better) as the place of one task of that kind. Only
# nodes of the mask need one, the others may say anything. Asked at most once per gang, and only if there is a tie.
RankNodes = Callable[[Kind, Bools], Floats]


class Demand:
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

    def only(self, nodes: Bools) -> Demand:
        """The same on nodes of fewer models."""
        return Demand(self.room, self.needs, np.where(nodes, self.slots, 0), self._scores, nodes=nodes)

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


class Layout:
    """Tasks per node, growing; what is left of slots, power and cooling shrinks with it."""

    def __init__(self, demand: Demand) -> None:
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

    def _put(self, node: int, tasks: int) -> int:
        self.counts[node] += tasks
        self._slots[node] -= tasks
        if self._demand.watts is not None:
            watts = float(self._demand.watts[node]) * tasks
            rack = self._room.rack[node]
            self._rack_w[rack] -= watts
            self._zone_w[self._room.rack_zone[rack]] -= watts
        return tasks

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
