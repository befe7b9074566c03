"""How is a fleet written as a fleet file? The inverse of reading: kinds and counts, in the order of the format."""

from __future__ import annotations

import json

from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind, RackGroup
from harch.fleet.model import NOTHING_DECLARED, CoolingZone, GpuModel, HubSafeguards, Link


def to_toml(blueprint: FleetBlueprint, *, comment: str = "") -> str:
    """The text of a fleet file; reading it gives an equal blueprint. `comment` goes on top, line by line."""
    names = {hub.id: hub.name for hub in blueprint.hubs}
    blocks = [[f"# {line}".rstrip() for line in comment.splitlines()]] if comment else []
    blocks.append([_pair("name", blueprint.name)])
    blocks.extend(_gpu_model(model) for model in blueprint.gpu_models)
    blocks.extend(_node_kind(kind) for kind in blueprint.node_kinds)
    for hub in blueprint.hubs:
        blocks.append(_hub(hub))
        if hub.safeguards != NOTHING_DECLARED:
            blocks.append(_safeguards(hub.safeguards))
        blocks.extend(_cooling_zone(zone) for zone in hub.cooling_zones)
        blocks.extend(_racks(group) for group in hub.racks)
    blocks.extend(_link(link, names) for link in blueprint.links)
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _gpu_model(model: GpuModel) -> list[str]:
    keys = ("memory_gb", "power_w", "nvlink_gb_per_s", "pcie_gb_per_s")
    return [f"[gpu_models.{_key(model.name)}]", *(_pair(key, getattr(model, key)) for key in keys)]


def _node_kind(kind: NodeKind) -> list[str]:
    keys = ("gpus", "nvlink_island_size", "pcie_switch_size", "numa_nodes", "cpus", "memory_gb", "storage_gb")
    return [
        f"[node_kinds.{_key(kind.name)}]",
        _pair("gpu_model", kind.gpu_model.name),
        *(_pair(key, getattr(kind, key)) for key in keys),
        _pair("host_power_w", kind.host_power_w),
    ]


def _hub(hub: HubBlueprint) -> list[str]:
    keys = ("name", "country", "grid_zone", "latitude", "longitude", "pue")
    return ["[[hubs]]", *(_pair(key, getattr(hub, key)) for key in keys)]


def _safeguards(declared: HubSafeguards) -> list[str]:
    """What is absent means no, so only what is there is written."""
    lines = ["[hubs.safeguards]"]
    lines += [_pair(key, True) for key in ("encrypts_at_rest", "encrypts_in_transit") if getattr(declared, key)]
    lines += [_pair(key, list(words)) for key in ("keys_in", "frameworks") if (words := getattr(declared, key))]
    return lines


def _cooling_zone(zone: CoolingZone) -> list[str]:
    return ["[[hubs.cooling_zones]]", _pair("name", zone.id), _pair("heat_kw_max", zone.heat_kw_max)]


def _racks(group: RackGroup) -> list[str]:
    nodes = ", ".join(f"{{ {_pair('kind', kind.name)}, {_pair('count', count)} }}" for kind, count in group.nodes)
    keys = ("count", "row", "cooling_zone", "power_kw_max")
    return ["[[hubs.racks]]", *(_pair(key, getattr(group, key)) for key in keys), f"nodes = [{nodes}]"]


def _link(link: Link, names: dict[str, str]) -> list[str]:
    return [
        "[[links]]",
        _pair("between", [names[end] for end in link.ends]),
        _pair("rtt_ms", link.rtt_ms),
        _pair("bandwidth_gbps", link.bandwidth_gbps),
        _pair("countries_crossed", list(link.countries_crossed)),
        *([_pair("dedicated", True)] if link.dedicated else []),
        *([_pair("reserved_gbps", link.reserved_gbps)] if link.reserved_gbps else []),
    ]


def _key(name: str) -> str:
    """A dot would open a table inside the table."""
    return f'"{name}"' if "." in name else name


def _pair(key: str, value: str | float | list[str]) -> str:
    if isinstance(value, float):
        return f"{key} = {int(value) if value.is_integer() else value!r}"
    return f"{key} = {json.dumps(value)}"  # for plain names, booleans and whole numbers JSON and TOML agree
