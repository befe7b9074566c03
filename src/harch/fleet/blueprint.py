"""What does a fleet file say, before it is spelled out? Kinds and counts, and how they become every GPU."""

from __future__ import annotations

from dataclasses import dataclass

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
