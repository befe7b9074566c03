"""What does a hub answer about its hardware? The values that `client.nodes` returns; see `types` on versions."""

from __future__ import annotations

from msgspec import Struct


class Condition(Struct, frozen=True, kw_only=True):
    """Something that is not as the fleet file says: cordoned, unhealthy, cooling_kw, nvlink or uplink."""

    kind: str
    subject: str
    value: float = 0.0
    why: str = ""


class Node(Struct, frozen=True, kw_only=True):
    """One node now. `conditions` are also those of its GPUs, its rack and its cooling zone."""

    id: str
    hub_id: str = ""
    rack_id: str = ""
    row: str = ""
    cooling_zone: str = ""
    model: str = ""
    provenance: str = ""
    served: bool = True
    cordoned: bool = False
    available: bool = True
    gpus_total: int = 0
    gpus_free: int = 0
    gpus_unhealthy: int = 0
    gpus_held: float = 0.0
    cpus_total: float = 0.0
    cpus_free: float = 0.0
    memory_gb_total: float = 0.0
    memory_gb_free: float = 0.0
    tasks: int = 0
    nvlink_factor: float = 1.0
    rack_power_kw_free: float = 0.0
    zone_cooling_kw_free: float = 0.0
    conditions: tuple[Condition, ...] = ()


class CoolingZone(Struct, frozen=True, kw_only=True):
    """`heat_kw_max` is what the plant removes now, `heat_kw_built` what the fleet file says."""

    id: str
    hub_id: str = ""
    heat_kw_built: float = 0.0
    heat_kw_max: float = 0.0
    heat_kw: float = 0.0
    cooling_kw_free: float = 0.0
    racks: tuple[str, ...] = ()
    why: str = ""


class Rack(Struct, frozen=True, kw_only=True):
    id: str
    hub_id: str = ""
    row: str = ""
    cooling_zone: str = ""
    power_kw_max: float = 0.0
    power_kw_free: float = 0.0
    uplink_factor: float = 1.0
    nodes: tuple[str, ...] = ()
    why: str = ""


class Island(Struct, frozen=True, kw_only=True):
    """GPUs that NVLink joins; the bandwidth is modelled."""

    island: int
    gpu_ids: tuple[str, ...] = ()
    gpus_idle: int = 0
    gpus_unhealthy: int = 0
    gb_per_s: float = 0.0


class TopologyNode(Struct, frozen=True, kw_only=True):
    node_id: str
    gpu_model: str = ""
    available: bool = True
    nvlink_factor: float = 1.0
    islands: tuple[Island, ...] = ()


class TopologyRack(Struct, frozen=True, kw_only=True):
    rack_id: str
    row: str = ""
    cooling_zone: str = ""
    power_w_free: float = 0.0
    cooling_w_free: float = 0.0
    uplink_factor: float = 1.0
    nodes: tuple[TopologyNode, ...] = ()


class Topology(Struct, frozen=True, kw_only=True):
    """Racks, nodes and islands; `between_gb_per_s` by level. `bandwidth_source` says where the figures come from."""

    hub_id: str
    racks: tuple[TopologyRack, ...] = ()
    between_gb_per_s: dict[str, float] = {}
    bandwidth_source: str = ""


class Move(Struct, frozen=True, kw_only=True):
    workload_id: str
    name: str = ""
    tenant: str = ""
    gpus: float = 0.0
    from_nodes: tuple[str, ...] = ()
    to_nodes: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0


class Defragmentation(Struct, frozen=True, kw_only=True):
    """Which moves make room for a waiting workload, where, and how much work is done again."""

    workload_id: str
    possible: bool = False
    sentence: str = ""
    applied: bool = False
    pays: bool = False
    level: str = ""
    nodes: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0
    moves: tuple[Move, ...] = ()
