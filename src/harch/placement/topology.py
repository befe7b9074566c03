"""How well do these GPUs talk to each other?

The live graph of a hub: every GPU, every link, with modelled bandwidths, and as plain values for API, CLI and
console.
"""

# harch: pure

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property

import numpy as np

from harch.fleet.model import Node
from harch.placement.devices import best_devices
from harch.placement.policy.shapes import GPU_MILLI, Floats, Ints
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.wire.hardware import IslandView, NodeView, RackView, TopologyView
from harch.workloads.spec import Level, Resources

# How fast do two GPUs talk? A table of modelled figures, by the smallest neighbourhood that they share.
#
# Figures are what a large all-reduce reaches per GPU (bus bandwidth), not what a link is sold as. Fleet files give the
# sold figures of a GPU, both directions added; the shares below turn them into reached ones. Everything here is
# modelled:
# say so wherever it is shown.


class Tier(IntEnum):
    """The smallest neighbourhood that two GPUs share, closest first."""

    DEVICE = 0  # two shares of one GPU
    ISLAND = 1
    PCIE_SWITCH = 2
    NUMA = 3
    NODE = 4
    RACK = 5
    ROW = 6
    HUB = 7


@dataclass(frozen=True, slots=True)
class BandwidthTable:
    """Replace what your site has measured."""

    # Reported by users: 8 x A100 NVSwitch 232 of 600 GB/s, 8 x H100 ring 370 of 900, A100 bridge pair 208 of 600.
    nvlink_share: float = 0.40
    # No report of its own: 80 % of one direction.
    pcie_switch_share: float = 0.40
    # Reported: three A100 across PCIe host bridges 20 of 64 GB/s.
    numa_share: float = 0.31
    # No report: below the former, because the link between the sockets is crossed as well.
    node_share: float = 0.25
    # A node's network cards together. Reported: 2 x 8 A100 over 4 x 200 Gb/s InfiniBand 86 GB/s, 2.7 times below 232.
    rack_gb_per_s: float = 86.0
    # No measurement found. Published claim: eight GPUs over two racks cost 4 to 6 times; this is 5 times below 232.
    row_gb_per_s: float = 46.0
    # No measurement: rows are modelled as sharing the spine 2 : 1.
    hub_gb_per_s: float = 23.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"`{field.name}` must be above 0")


# How well do these GPUs talk to each other? The live graph of a hub: every GPU, every link, as it is now.
#
# The model is a ring all-reduce in rank order: every GPU sends to the next, the last to the first, and the slowest edge
# sets the pace. An edge inside a node is as fast as the smallest neighbourhood that both GPUs share; between nodes it
# is
# as fast as the nodes' network cards or the PCIe links of the gang's GPUs there, whichever is less, and between racks
# as
# the racks' uplinks. The predicted slowdown is the bandwidth of the best placement on this hub, if it were empty and
# whole, over that of the placement in question. It is *modelled*, and about communication only: training slows less.


_BEST_MAX = 4096  # remembered answers to "how fast could so many GPUs be at best"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of one placement. `slowdown` is 1 for the best that this hub can do."""

    level: Level  # the lowest domain that holds all of it
    gb_per_s: float  # all-reduce bus bandwidth; infinite for a single GPU
    best_gb_per_s: float
    slowdown: float

    def __str__(self) -> str:
        if self.gb_per_s == np.inf:
            return "one GPU: no communication"
        return f"in one {self.level}, {self.gb_per_s:.0f} GB/s all-reduce, {self.slowdown:.1f}x the best (modelled)"


class TopologyGraph:
    """Follows `room`; knows in addition which links are degraded. One owner, one thread."""

    def __init__(self, room: Room, table: BandwidthTable | None = None) -> None:
        self.room = room
        self.table = table or BandwidthTable()
        nodes, width = room.hub.nodes, room.island.shape[1]
        self._switch: Ints = np.full((len(nodes), width), -1)
        self._numa: Ints = np.full((len(nodes), width), -1)
        for row, node in enumerate(nodes):
            for gpu in node.gpus:
                self._switch[row, gpu.index] = gpu.pcie_switch
                self._numa[row, gpu.index] = gpu.numa
        self._nvlink_gb_per_s: Floats = np.array([float(node.gpu_model.nvlink_gb_per_s) for node in nodes])
        self._pcie_gb_per_s: Floats = np.array([float(node.gpu_model.pcie_gb_per_s) for node in nodes])
        self.nvlink_factor: Floats = np.ones(len(nodes))
        self.uplink_factor: Floats = np.ones(len(room.hub.racks))
        self._rack_index = {rack.id: index for index, rack in enumerate(room.hub.racks)}
        self._best: dict[tuple[Resources, int], float] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> TopologyGraph:
        """Shares what never changes: how the hub was built, and remembered answers about that."""
        memo[id(self)] = twin = copy(self)
        twin.room = deepcopy(self.room, memo)
        twin.nvlink_factor, twin.uplink_factor = self.nvlink_factor.copy(), self.uplink_factor.copy()
        return twin

    # The hardware changes; the next prediction sees it

    def set_nvlink(self, node_id: str, factor: float) -> None:
        """The NVLink of a node works at `factor` of its bandwidth; 0: not at all, so that PCIe remains."""
        _check_factor(factor, least=0.0)
        self.nvlink_factor[self.room.row_of[node_id]] = factor

    def set_uplink(self, rack_id: str, factor: float) -> None:
        """The uplink of a rack works at `factor` of its bandwidth. A rack without one is cordoned instead."""
        _check_factor(factor, least=1e-6)
        self.uplink_factor[self._rack_index[rack_id]] = factor

    # Asking

    def tier(self, one: tuple[int, int], other: tuple[int, int]) -> Tier:
        """The smallest neighbourhood of two GPUs, each given as row and device."""
        rows, devices = np.array([[one[0], other[0]]]), np.array([[one[1], other[1]]])
        return Tier(int(self._tiers(rows, devices)[0, 0]))

    def gb_per_s(self, one: tuple[int, int], other: tuple[int, int]) -> float:
        """Modelled bandwidth between two GPUs, each given as row and device."""
        rows, devices = np.array([[one[0], other[0]]]), np.array([[one[1], other[1]]])
        return float(self._ring_gb_per_s(rows, devices, whole=True)[0])

    def predicted_slowdown(self, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> float:
        """Modelled communication slowdown against the best possible for so many GPUs: 1 is best."""
        return self.predict(request, slots).slowdown

    def predict(self, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> Prediction:
        rows = np.array([[slot.row for slot in slots for _ in slot.devices]], np.int64)
        devices = np.array([[device for slot in slots for device in slot.devices]], np.int64)
        best = self.best_gb_per_s(request.needs, len(slots))
        found = float(self._ring_gb_per_s(rows, devices)[0]) if rows.size > 1 else np.inf
        slowdown = max(1.0, best / found) if np.isfinite(best) else 1.0
        return Prediction(self.level_of(slots), found, best, slowdown)

    def predicted_slowdowns(self, request: PlacementRequest, rows: Ints, devices: Ints) -> Floats:
        """The same for many placements at once: row and device of each GPU, as [placement, GPU in rank order]."""
        gpus = rows.shape[1]
        best = self.best_gb_per_s(request.needs, gpus // max(request.needs.gpus, 1))
        if gpus < 2 or not np.isfinite(best):
            return np.ones(len(rows))
        return np.maximum(1.0, best / self._ring_gb_per_s(rows, devices))

    def level_of(self, slots: tuple[TaskSlot, ...]) -> Level:
        """The lowest domain that holds all of it."""
        room = self.room
        nodes = {slot.row for slot in slots}
        racks = {int(room.rack[row]) for row in nodes}
        if len({int(room.rack_row[rack]) for rack in racks}) > 1:
            return Level.HUB
        if len(racks) > 1:
            return Level.ROW
        if len(nodes) > 1:
            return Level.RACK
        islands = {int(room.island[slot.row, device]) for slot in slots for device in slot.devices}
        return Level.ISLAND if len(islands) == 1 else Level.NODE

    def best_gb_per_s(self, needs: Resources, tasks: int) -> float:
        """What so many GPUs could have on this hub, were it empty and all its links whole; infinite for one GPU."""
        gpus = tasks * needs.gpus
        if gpus < 2:
            return np.inf
        key = (needs, tasks)
        if key not in self._best:
            if len(self._best) >= _BEST_MAX:
                self._best.clear()
            self._best[key] = max(
                (self._whole._best_on(row, gpus) for row in self._first_of_each_kind(needs)),
                default=self.table.hub_gb_per_s,
            )
        return self._best[key]

    @cached_property
    def _whole(self) -> TopologyGraph:
        """The same hub with all its links as they were built."""
        return TopologyGraph(self.room, self.table)

    @property
    def is_degraded(self) -> bool:
        return bool((self.nvlink_factor < 1).any() or (self.uplink_factor < 1).any())

    def node_slowdowns(self, gpus: int) -> Floats:
        """Per node: how many times slower so many of its GPUs talk now than with whole links, 1 where nothing is lost.

        The best GPUs of the node are meant, all of them where it has fewer.
        """
        found = np.ones(self.room.arrays.size)
        for row in np.flatnonzero(self.nvlink_factor < 1).tolist():
            size = len(self.room.hub.nodes[row].gpus)
            devices = best_devices(self.room.neighbourhoods[row], (1 << size) - 1, min(gpus, size)) or ()
            if len(devices) > 1:
                rows, chosen = np.full((1, len(devices)), row), np.array([devices])
                found[row] = self._whole._ring_gb_per_s(rows, chosen)[0] / self._ring_gb_per_s(rows, chosen)[0]
        return found

    # The model

    def _ring_gb_per_s(self, rows: Ints, devices: Ints, *, whole: bool = False) -> Floats:
        """The slowest edge of each ring. `whole`: the pair alone, with the PCIe links of all GPUs of its nodes."""
        table, room = self.table, self.room
        tiers = self._tiers(rows, devices)
        after = np.roll(rows, -1, axis=1)
        pcie = self._pcie_gb_per_s[rows]
        shares = np.array(
            [np.inf, table.pcie_switch_share, table.pcie_switch_share, table.numa_share, table.node_share]
        )
        inside = np.minimum(tiers, Tier.NODE)
        speed = pcie * shares[inside]
        nvlink = self._nvlink_gb_per_s[rows] * table.nvlink_share * self.nvlink_factor[rows]
        speed = np.where(tiers == Tier.ISLAND, np.maximum(speed, nvlink), speed)
        if (tiers > Tier.NODE).any():
            network = np.array([table.rack_gb_per_s, table.row_gb_per_s, table.hub_gb_per_s])
            between = network[np.maximum(tiers, Tier.RACK) - Tier.RACK]
            uplink = np.minimum(self.uplink_factor[room.rack[rows]], self.uplink_factor[room.rack[after]])
            between = np.where(tiers > Tier.RACK, between * uplink, between)
            gpus = room.arrays.gpus[rows] if whole else _same_row_counts(rows)
            out = pcie * table.pcie_switch_share * gpus
            between = np.minimum(between, np.minimum(out, np.roll(out, -1, axis=1)))
            speed = np.where(tiers > Tier.NODE, between, speed)
        slowest: Floats = speed.min(axis=1)
        return slowest

    def _tiers(self, rows: Ints, devices: Ints) -> Ints:
        """Of each GPU and the next in its ring."""
        room = self.room
        after, next_device = np.roll(rows, -1, axis=1), np.roll(devices, -1, axis=1)
        racks, next_racks = room.rack[rows], room.rack[after]
        conditions = [
            room.rack_row[racks] != room.rack_row[next_racks],
            racks != next_racks,
            rows != after,
            devices == next_device,
            (room.island[rows, devices] == room.island[after, next_device]) & (self._nvlink_gb_per_s[rows] > 0),
            self._switch[rows, devices] == self._switch[after, next_device],
            self._numa[rows, devices] == self._numa[after, next_device],
        ]
        tiers = [Tier.HUB, Tier.ROW, Tier.RACK, Tier.DEVICE, Tier.ISLAND, Tier.PCIE_SWITCH, Tier.NUMA]
        return np.select(conditions, [np.int64(tier) for tier in tiers], np.int64(Tier.NODE))

    def _best_on(self, row: int, gpus: int) -> float:
        """So many GPUs on as few nodes like this one as possible, in as few racks as possible."""
        table, node = self.table, self.room.hub.nodes[row]
        size = len(node.gpus)
        devices = best_devices(self.room.neighbourhoods[row], (1 << size) - 1, min(gpus, size)) or ()
        here = float("inf")
        if len(devices) > 1:
            here = float(self._ring_gb_per_s(np.full((1, len(devices)), row), np.array([devices]))[0])
        if gpus <= size:
            return here
        alike = np.array([other.gpu_model == node.gpu_model for other in self.room.hub.nodes])
        per_rack = np.bincount(self.room.rack, alike * self.room.arrays.gpus)
        per_row = np.bincount(self.room.rack_row, per_rack)
        if per_rack.max() >= gpus:
            network = table.rack_gb_per_s
        else:
            network = table.row_gb_per_s if per_row.max() >= gpus else table.hub_gb_per_s
        return min(here, network, size * node.gpu_model.pcie_gb_per_s * table.pcie_switch_share)

    def _first_of_each_kind(self, needs: Resources) -> list[int]:
        kinds: dict[object, int] = {}
        nodes: tuple[Node, ...] = self.room.hub.nodes
        for row in np.flatnonzero(self.room.suits(needs)).tolist():
            kinds.setdefault((nodes[row].gpu_model, self.room.neighbourhoods[row]), row)
        return list(kinds.values())


def _same_row_counts(rows: Ints) -> Ints:
    """For every GPU: how many of its placement stand on the same node."""
    span = int(rows.max()) + 1
    keys = rows + np.arange(len(rows))[:, None] * span
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    found: Ints = counts[inverse].reshape(rows.shape)
    return found


def _check_factor(factor: float, *, least: float) -> None:
    if not least <= factor <= 1:
        raise ValueError(f"a link runs at {least:g} to 1 of its bandwidth, not {factor}")


# What does the topology of a hub look like now? The live graph as plain values, for API, CLI and console.


def topology_view(graph: TopologyGraph) -> TopologyView:
    room = graph.room
    cooling_w_free = room.zone_heat_w_max - room.zone_heat_w
    racks = tuple(
        RackView(
            rack_id=rack.id,
            row=rack.row,
            cooling_zone=rack.cooling_zone,
            power_w_free=float(room.rack_power_w_free[index]),
            cooling_w_free=float(cooling_w_free[room.rack_zone[index]]),
            uplink_factor=float(graph.uplink_factor[index]),
            nodes=tuple(_node_view(graph, room.row_of[node.id]) for node in rack.nodes),
        )
        for index, rack in enumerate(room.hub.racks)
    )
    table = graph.table
    between = {
        Level.RACK.value: table.rack_gb_per_s,
        Level.ROW.value: table.row_gb_per_s,
        Level.HUB.value: table.hub_gb_per_s,
    }
    return TopologyView(hub_id=room.hub.id, racks=racks, between_gb_per_s=between, bandwidth_source="modelled")


def _node_view(graph: TopologyGraph, row: int) -> NodeView:
    room = graph.room
    node = room.hub.nodes[row]
    members: dict[int, list[int]] = {}
    for gpu in node.gpus:
        members.setdefault(gpu.island, []).append(gpu.index)
    islands = tuple(
        IslandView(
            island=island,
            gpu_ids=tuple(node.gpus[index].id for index in indexes),
            gpus_idle=int((room.arrays.gpu_milli_free[row, indexes] == GPU_MILLI).sum()),
            gpus_unhealthy=int((~room.healthy[row, indexes]).sum()),
            gb_per_s=graph.gb_per_s((row, indexes[0]), (row, indexes[1])) if len(indexes) > 1 else 0.0,
        )
        for island, indexes in members.items()
    )
    return NodeView(
        node_id=node.id,
        gpu_model=node.gpu_model.name,
        available=bool(room.arrays.available[row]),
        nvlink_factor=float(graph.nvlink_factor[row]),
        islands=islands,
    )
