"""What does the topology of a hub look like now? The live graph as plain values, for API, CLI and console."""

from __future__ import annotations

from msgspec import Struct

from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.topology import TopologyGraph
from harch.workloads.spec import Level


class IslandView(Struct, frozen=True, kw_only=True):
    """GPUs that NVLink joins. The bandwidth is modelled, 0 where a single GPU has nobody to talk to."""

    island: int
    gpu_ids: tuple[str, ...]
    gpus_idle: int
    gpus_unhealthy: int
    gb_per_s: float


class NodeView(Struct, frozen=True, kw_only=True):
    node_id: str
    gpu_model: str
    available: bool
    nvlink_factor: float  # below 1: degraded
    islands: tuple[IslandView, ...]


class RackView(Struct, frozen=True, kw_only=True):
    """Headroom is what new work may still draw, and its cooling zone remove."""

    rack_id: str
    row: str
    cooling_zone: str
    power_w_free: float
    cooling_w_free: float
    uplink_factor: float  # below 1: degraded
    nodes: tuple[NodeView, ...]


class TopologyView(Struct, frozen=True, kw_only=True):
    """`between_gb_per_s`: what a node reaches to another one of its rack, of its row and of the hub."""

    hub_id: str
    racks: tuple[RackView, ...]
    between_gb_per_s: dict[str, float]
    bandwidth_source: str = "modelled"


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
    return TopologyView(hub_id=room.hub.id, racks=racks, between_gb_per_s=between)


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
