"""The nouns of the fleet. Values only: what stands where, never what is free or busy."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Provenance(StrEnum):
    """Is the hardware there, or only described? Shown wherever a GPU is shown."""

    MODELLED = "modelled"
    DISCOVERED = "discovered"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A product. Figures are per device; bandwidths add both directions, and NVLink's is 0 where there is none."""

    name: str
    memory_gb: int
    power_w: int
    nvlink_gb_per_s: int
    pcie_gb_per_s: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. `island`, `pcie_switch` and `numa` number its neighbourhoods inside the node."""

    id: str
    index: int
    model: GpuModel
    island: int
    pcie_switch: int
    numa: int


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one model."""

    id: str
    rack_id: str
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_gb: int
    storage_gb: int
    provenance: Provenance
    host_power_w: int = 0  # processors, memory, fans and network at full load, beside the GPUs

    @property
    def gpu_model(self) -> GpuModel:
        return self.gpus[0].model

    @property
    def power_w_max(self) -> int:
        """What the node draws when everything in it runs: also the heat that must be removed."""
        return self.host_power_w + sum(gpu.model.power_w for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class CoolingZone:
    """Racks that share one cooling plant, which removes at most `heat_kw_max`."""

    id: str
    heat_kw_max: float


@dataclass(frozen=True, slots=True)
class Rack:
    """A rack in a row; all its nodes draw from one power feed and heat one cooling zone."""

    id: str
    row: str
    cooling_zone: str
    power_kw_max: float
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class HubSafeguards:
    """What its operator declares of a hub, for the rules about data. What is not declared is not there.

    A link is encrypted when the hubs at both its ends say that they encrypt in transit.
    """

    encrypts_at_rest: bool = False
    encrypts_in_transit: bool = False
    keys_in: tuple[str, ...] = ()  # countries whose key stores it can use
    frameworks: tuple[str, ...] = ()  # legal frameworks that it upholds beyond those of its country


NOTHING_DECLARED = HubSafeguards()


@dataclass(frozen=True)
class Hub:
    """A site: one country, one grid zone, one control plane. `id` is its name in lower case."""

    id: str
    name: str
    country: str  # ISO 3166-1 alpha-2: the jurisdiction
    grid_zone: str  # whose carbon intensity applies; not a jurisdiction
    latitude: float
    longitude: float
    pue: float
    cooling_zones: tuple[CoolingZone, ...]
    racks: tuple[Rack, ...]
    safeguards: HubSafeguards = NOTHING_DECLARED

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for rack in self.racks for node in rack.nodes)

    @cached_property
    def gpu_count(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)

    @cached_property
    def gpu_models(self) -> tuple[str, ...]:
        return tuple(sorted({node.gpu_model.name for node in self.nodes}))

    @cached_property
    def provenance(self) -> Provenance:
        modelled = any(node.provenance is Provenance.MODELLED for node in self.nodes)
        return Provenance.MODELLED if modelled else Provenance.DISCOVERED


@dataclass(frozen=True, slots=True)
class Link:
    """A fibre route between two hubs, with every country that it crosses, the end points included."""

    ends: tuple[str, str]
    rtt_ms: float
    bandwidth_gbps: float
    countries_crossed: tuple[str, ...]
    dedicated: bool = False  # set aside for moving state
    reserved_gbps: float = 0.0  # what bulk transfers may use, each direction; 0: a share of the bandwidth


@dataclass(frozen=True)
class Fleet:
    """All hubs and the links between them, in file order."""

    name: str
    gpu_models: tuple[GpuModel, ...]
    hubs: tuple[Hub, ...]
    links: tuple[Link, ...]

    def hub(self, hub_id: str) -> Hub | None:
        return next((hub for hub in self.hubs if hub.id == hub_id), None)

    def links_of(self, hub_id: str) -> Iterator[Link]:
        return (link for link in self.links if hub_id in link.ends)

    @cached_property
    def gpu_count(self) -> int:
        return sum(hub.gpu_count for hub in self.hubs)
