"""Can the fleet that a file describes exist? Power, heat, borders and distances: what no single value can tell.

Values that were already reported arrive here as 0, NaN or empty text; no check may answer those with a second report.
"""

from __future__ import annotations

import math

from harch.base.errors import Problems
from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind
from harch.fleet.format import GPUS_MAX
from harch.fleet.model import Link

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
