"""What does a hub answer about its hardware? GPUs, nodes, racks, cooling zones, links, and what moves would free."""

# harch: pure

from __future__ import annotations

from msgspec import Struct


class GpuView(Struct, frozen=True, kw_only=True):
    """One GPU with who holds it. `workload_id` is empty for free ones and for other tenants' work."""

    id: str
    hub_id: str
    node_id: str
    rack_id: str = ""
    index: int = 0
    model: str
    memory_gb: int = 0
    island: int = 0
    pcie_switch: int = 0
    numa: int = 0
    provenance: str = ""
    status: str  # free, allocated (at least a part of it), unavailable
    free_milli: int = 1000  # thousandths that may be given
    held_milli: int = 0  # thousandths that work holds; an unhealthy GPU gives nothing, whatever is held of it
    healthy: bool = True
    power_w: int = 0  # rated
    workload_id: str = ""


class ConditionView(Struct, frozen=True, kw_only=True):
    """One thing that is not as the fleet file says, since somebody said so."""

    kind: str  # cordoned, unhealthy, cooling_kw, nvlink, uplink
    subject: str
    value: float = 0.0
    why: str = ""


class NodeState(Struct, frozen=True, kw_only=True):
    """One node now. `conditions` are those of the node, of its GPUs, of its rack and of its cooling zone."""

    id: str
    hub_id: str = ""
    rack_id: str = ""
    row: str = ""
    cooling_zone: str = ""
    model: str = ""
    provenance: str = ""
    served: bool = True  # an agent is connected
    cordoned: bool = False
    available: bool = True  # served and not cordoned: may be given new work
    gpus_total: int = 0
    gpus_free: int = 0  # wholly free and healthy
    gpus_unhealthy: int = 0
    gpus_held: float = 0.0  # with shares of GPUs
    cpus_total: float = 0.0
    cpus_free: float = 0.0
    memory_gb_total: float = 0.0
    memory_gb_free: float = 0.0
    tasks: int = 0
    nvlink_factor: float = 1.0
    rack_power_kw_free: float = 0.0
    zone_cooling_kw_free: float = 0.0
    conditions: tuple[ConditionView, ...] = ()


class ZoneState(Struct, frozen=True, kw_only=True):
    """One cooling zone now. `heat_kw_max` is what its plant removes now, `heat_kw_built` what the fleet file says."""

    id: str
    hub_id: str = ""
    heat_kw_built: float = 0.0
    heat_kw_max: float = 0.0
    heat_kw: float = 0.0  # of hosts and of the GPUs that are given, at full load: modelled
    cooling_kw_free: float = 0.0
    racks: tuple[str, ...] = ()
    why: str = ""


class RackState(Struct, frozen=True, kw_only=True):
    """One rack now. `uplink_factor` below 1: its links to other racks are degraded."""

    id: str
    hub_id: str = ""
    row: str = ""
    cooling_zone: str = ""
    power_kw_max: float = 0.0
    power_kw_free: float = 0.0
    uplink_factor: float = 1.0
    nodes: tuple[str, ...] = ()
    why: str = ""


class IslandView(Struct, frozen=True, kw_only=True):
    """GPUs that NVLink joins. The bandwidth is modelled, 0 where a single GPU has nobody to talk to."""

    island: int
    gpu_ids: tuple[str, ...] = ()
    gpus_idle: int = 0
    gpus_unhealthy: int = 0
    gb_per_s: float = 0.0


class NodeView(Struct, frozen=True, kw_only=True):
    node_id: str
    gpu_model: str = ""
    available: bool = True
    nvlink_factor: float = 1.0  # below 1: degraded
    islands: tuple[IslandView, ...] = ()


class RackView(Struct, frozen=True, kw_only=True):
    """Headroom is what new work may still draw, and its cooling zone remove."""

    rack_id: str
    row: str = ""
    cooling_zone: str = ""
    power_w_free: float = 0.0
    cooling_w_free: float = 0.0
    uplink_factor: float = 1.0  # below 1: degraded
    nodes: tuple[NodeView, ...] = ()


class TopologyView(Struct, frozen=True, kw_only=True):
    """`between_gb_per_s`: what a node reaches to another one of its rack, of its row and of the hub."""

    hub_id: str
    racks: tuple[RackView, ...] = ()
    between_gb_per_s: dict[str, float] = {}
    bandwidth_source: str = ""


class MoveView(Struct, frozen=True, kw_only=True):
    """One workload that would leave its nodes. `to_nodes` is where it fits as things stand, not a promise."""

    workload_id: str
    name: str = ""
    tenant: str = ""
    gpus: float = 0.0
    from_nodes: tuple[str, ...] = ()
    to_nodes: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0


class Defragmentation(Struct, frozen=True, kw_only=True):
    """Which moves make room for a waiting workload. `lost_gpu_s` is work that is done again, since each restarts."""

    workload_id: str
    possible: bool = False
    sentence: str = ""
    applied: bool = False
    pays: bool = False  # more GPU-seconds start now than are done again
    level: str = ""
    nodes: tuple[str, ...] = ()  # where it would start
    lost_gpu_s: float = 0.0
    moves: tuple[MoveView, ...] = ()
