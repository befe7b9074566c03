"""What does a fleet file say before it is spelled out, and can that fleet exist?

Kinds and counts and how they become every GPU; power, heat, borders and distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harch.base.errors import Problems
from harch.fleet.format import GPUS_MAX
from harch.fleet.model import (
    NOTHING_DECLARED,
    CoolingZone,
    Fleet,
    Gpu,
    GpuModel,
    Hub,
    HubSafeguards,
    Link,
    Node,
    Provenance,
    Rack,
)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A machine type: GPUs of one model, how they are wired, and the host around them."""

    name: str
    gpu_model: GpuModel
    gpus: int
    nvlink_island_size: int
    pcie_switch_size: int
    numa_nodes: int
    cpus: int
    memory_gb: int
    storage_gb: int
    host_power_w: int = 0

    @property
    def power_w_max(self) -> int:
        return self.gpus * self.gpu_model.power_w + self.host_power_w


@dataclass(frozen=True, slots=True)
class RackGroup:
    """`count` equal racks side by side; `nodes` are kinds with how many of each stand in every rack."""

    count: int
    row: str
    cooling_zone: str  # its name in the file, without the hub
    power_kw_max: float
    nodes: tuple[tuple[NodeKind, int], ...]

    @property
    def gpus_per_rack(self) -> int:
        return sum(kind.gpus * count for kind, count in self.nodes)

    @property
    def power_kw_per_rack(self) -> float:
        """What one rack draws when everything in it runs."""
        return sum(kind.power_w_max * count for kind, count in self.nodes) / 1000


@dataclass(frozen=True, slots=True)
class HubBlueprint:
    name: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float
    cooling_zones: tuple[CoolingZone, ...]  # with their names in the file as ids
    racks: tuple[RackGroup, ...]
    safeguards: HubSafeguards = NOTHING_DECLARED

    @property
    def id(self) -> str:
        return self.name.lower()

    @property
    def gpu_count(self) -> int:
        return sum(group.count * group.gpus_per_rack for group in self.racks)


@dataclass(frozen=True, slots=True)
class FleetBlueprint:
    name: str
    gpu_models: tuple[GpuModel, ...]
    node_kinds: tuple[NodeKind, ...]
    hubs: tuple[HubBlueprint, ...]
    links: tuple[Link, ...]

    @property
    def gpu_count(self) -> int:
        return sum(hub.gpu_count for hub in self.hubs)


def expand(blueprint: FleetBlueprint) -> Fleet:
    """Every rack, node and GPU by its id. What a file describes is modelled until a hub has discovered it."""
    return Fleet(
        blueprint.name, blueprint.gpu_models, tuple(_expand_hub(hub) for hub in blueprint.hubs), blueprint.links
    )


def _expand_hub(hub: HubBlueprint) -> Hub:
    racks: list[Rack] = []
    for group in hub.racks:
        for _ in range(group.count):
            # Numbers run through the hub and are never padded anew: racks added at the end rename nothing.
            rack_id = f"{hub.id}-r{len(racks) + 1:02d}"
            zone_id = f"{hub.id}-{group.cooling_zone}"
            racks.append(Rack(rack_id, group.row, zone_id, group.power_kw_max, _expand_nodes(rack_id, group)))
    return Hub(
        id=hub.id,
        name=hub.name,
        country=hub.country,
        grid_zone=hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        cooling_zones=tuple(CoolingZone(f"{hub.id}-{zone.id}", zone.heat_kw_max) for zone in hub.cooling_zones),
        racks=tuple(racks),
        safeguards=hub.safeguards,
    )


def _expand_nodes(rack_id: str, group: RackGroup) -> tuple[Node, ...]:
    kinds = [kind for kind, count in group.nodes for _ in range(count)]
    return tuple(_expand_node(f"{rack_id}-n{number:02d}", rack_id, kind) for number, kind in enumerate(kinds, start=1))


def _expand_node(node_id: str, rack_id: str, kind: NodeKind) -> Node:
    gpus = tuple(
        Gpu(
            id=f"{node_id}-g{index}",
            index=index,
            model=kind.gpu_model,
            island=index // kind.nvlink_island_size,
            pcie_switch=index // kind.pcie_switch_size,
            numa=index * kind.numa_nodes // kind.gpus,
        )
        for index in range(kind.gpus)
    )
    return Node(
        id=node_id,
        rack_id=rack_id,
        gpus=gpus,
        cpus=kind.cpus,
        memory_gb=kind.memory_gb,
        storage_gb=kind.storage_gb,
        provenance=Provenance.MODELLED,
        host_power_w=kind.host_power_w,
    )


# Can the fleet that a file describes exist? Power, heat, borders and distances: what no single value can tell.
#
# Values that were already reported arrive here as 0, NaN or empty text; no check may answer those with a second report.


EARTH_RADIUS_KM = 6371.0
LIGHT_KM_PER_MS = 299.8  # in vacuum; fibre carries two thirds of it, so no cable can be faster
KW_TOLERANCE = 1e-6  # sums of decimal fractions


def check_node_kind(kind: NodeKind, path: str, problems: Problems) -> None:
    for name, size in (("nvlink_island_size", kind.nvlink_island_size), ("pcie_switch_size", kind.pcie_switch_size)):
        if 0 < kind.gpus < size:
            problems.add(f"{path}.{name}", f"{size} is more than the node's {kind.gpus} GPUs; use {kind.gpus} or less")
    model = kind.gpu_model
    if kind.nvlink_island_size > 1 and model.memory_gb and not model.nvlink_gb_per_s:
        problems.add(
            f"{path}.nvlink_island_size",
            f"`{model.name}` has no NVLink (nvlink_gb_per_s = 0); use 1, or give the model its bandwidth",
        )


def check_hub(hub: HubBlueprint, path: str, problems: Problems) -> None:
    """Each rack's feed carries its nodes, each cooling zone removes their heat: with every GPU running."""
    heat_kw: dict[str, float] = {}
    for index, group in enumerate(hub.racks):
        need_kw = group.power_kw_per_rack
        if need_kw > group.power_kw_max + KW_TOLERANCE:
            problems.add(
                f"{path}.racks[{index}].power_kw_max",
                f"{group.power_kw_max:g} kW cannot carry its nodes, which draw {need_kw:g} kW when all run; "
                f"raise it to {math.ceil(need_kw)} or put fewer nodes in the rack",
            )
        heat_kw[group.cooling_zone] = heat_kw.get(group.cooling_zone, 0) + group.count * need_kw
    for index, zone in enumerate(hub.cooling_zones):
        need_kw = heat_kw.get(zone.id, 0)
        if need_kw > zone.heat_kw_max + KW_TOLERANCE:
            problems.add(
                f"{path}.cooling_zones[{index}].heat_kw_max",
                f"{zone.heat_kw_max:g} kW cannot cool its racks, which give {need_kw:g} kW when all run; "
                f"raise it to {math.ceil(need_kw)} or move racks to another zone",
            )


def check_link(link: Link, ends: tuple[HubBlueprint, HubBlueprint], path: str, problems: Problems) -> None:
    for hub in ends:
        if hub.country and link.countries_crossed and hub.country not in link.countries_crossed:
            problems.add(
                f"{path}.countries_crossed",
                f'lacks "{hub.country}", where {hub.name} stands; a link crosses the countries of its ends: add it',
            )
    if link.reserved_gbps > link.bandwidth_gbps:
        problems.add(
            f"{path}.reserved_gbps",
            f"{link.reserved_gbps:g} is more than the link carries; lower it, or raise bandwidth_gbps to at least that",
        )
    rtt_ms_min = 2 * distance_km(*ends) / LIGHT_KM_PER_MS
    if link.rtt_ms < rtt_ms_min:
        problems.add(
            f"{path}.rtt_ms",
            f"{link.rtt_ms:g} ms is faster than light between {ends[0].name} and {ends[1].name} "
            f"(at least {rtt_ms_min:.1f} ms); correct it, or the coordinates of the hubs",
        )


def check_totals(fleet: FleetBlueprint, problems: Problems) -> None:
    if fleet.gpu_count > GPUS_MAX:
        problems.add("hubs", f"hold {fleet.gpu_count:,} GPUs together, the limit is {GPUS_MAX:,}; lower the counts")


def distance_km(one: HubBlueprint, other: HubBlueprint) -> float:
    """Great-circle distance."""
    lat_1, lat_2 = math.radians(one.latitude), math.radians(other.latitude)
    lon = math.radians(other.longitude - one.longitude)
    half = math.sin((lat_2 - lat_1) / 2) ** 2 + math.cos(lat_1) * math.cos(lat_2) * math.sin(lon / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half)))
