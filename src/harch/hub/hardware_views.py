"""What does an operator see of the hardware? Nodes, racks and cooling zones with what is free, odd or out of use."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from harch.hub.desk import Desk
from harch.hub.hardware import Condition, ConditionKind
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.room import MIB_PER_GB


class ConditionView(Struct, frozen=True, kw_only=True):
    """One thing that is not as the fleet file says, since somebody said so."""

    kind: str  # cordoned, unhealthy, cooling_kw, nvlink, uplink
    subject: str
    value: float
    why: str


class NodeState(Struct, frozen=True, kw_only=True):
    """One node now. `conditions` are those of the node, of its GPUs, of its rack and of its cooling zone."""

    id: str
    hub_id: str
    rack_id: str
    row: str
    cooling_zone: str
    model: str
    provenance: str
    served: bool  # an agent is connected
    cordoned: bool
    available: bool  # served and not cordoned: may be given new work
    gpus_total: int
    gpus_free: int  # wholly free and healthy
    gpus_unhealthy: int
    gpus_held: float  # with shares of GPUs
    cpus_total: float
    cpus_free: float
    memory_gb_total: float
    memory_gb_free: float
    tasks: int
    nvlink_factor: float
    rack_power_kw_free: float
    zone_cooling_kw_free: float
    conditions: tuple[ConditionView, ...] = ()


class ZoneState(Struct, frozen=True, kw_only=True):
    """One cooling zone now. `heat_kw_max` is what its plant removes now, `heat_kw_built` what the fleet file says."""

    id: str
    hub_id: str
    heat_kw_built: float
    heat_kw_max: float
    heat_kw: float  # of hosts and of the GPUs that are given, at full load: modelled
    cooling_kw_free: float
    racks: tuple[str, ...]
    why: str = ""


class RackState(Struct, frozen=True, kw_only=True):
    """One rack now. `uplink_factor` below 1: its links to other racks are degraded."""

    id: str
    hub_id: str
    row: str
    cooling_zone: str
    power_kw_max: float
    power_kw_free: float
    uplink_factor: float
    nodes: tuple[str, ...]
    why: str = ""


def node_states(desk: Desk, conditions: Iterable[Condition]) -> list[NodeState]:
    room, hub = desk.scheduler.room, desk.hub
    arrays = room.arrays
    zone_kw_free = (room.zone_heat_w_max - room.zone_heat_w) / 1000
    by_subject: dict[str, list[ConditionView]] = {}
    for condition in conditions:
        by_subject.setdefault(condition.subject, []).append(_view(condition))
    states = []
    for row, node in enumerate(hub.nodes):
        rack = hub.racks[int(room.rack[row])]
        here = [gpu.index for gpu in node.gpus]
        free, withheld = arrays.gpu_milli_free[row, here], room.withheld_milli[row, here]
        subjects = (node.id, *(gpu.id for gpu in node.gpus), rack.id, rack.cooling_zone)
        states.append(
            NodeState(
                id=node.id,
                hub_id=hub.id,
                rack_id=rack.id,
                row=rack.row,
                cooling_zone=rack.cooling_zone,
                model=node.gpu_model.name,
                provenance=node.provenance.value,
                served=bool(room.served[row]),
                cordoned=bool(room.cordoned[row]),
                available=bool(arrays.available[row]),
                gpus_total=len(here),
                gpus_free=int((free == GPU_MILLI).sum()),
                gpus_unhealthy=int((~room.healthy[row, here]).sum()),
                gpus_held=float((GPU_MILLI - free - withheld).sum()) / GPU_MILLI,
                cpus_total=float(arrays.cpu_milli[row]) / 1000,
                cpus_free=float(arrays.cpu_milli_free[row]) / 1000,
                memory_gb_total=float(arrays.memory_mib[row]) / MIB_PER_GB,
                memory_gb_free=round(float(arrays.memory_mib_free[row]) / MIB_PER_GB, 3),
                tasks=int(room.tasks_on[row]),
                nvlink_factor=float(desk.scheduler.topology.nvlink_factor[row]),
                rack_power_kw_free=_kw(room.rack_power_w_free[room.rack[row]]),
                zone_cooling_kw_free=round(float(zone_kw_free[room.rack_zone[room.rack[row]]]), 3),
                conditions=tuple(found for subject in subjects for found in by_subject.get(subject, ())),
            )
        )
    return states


def zone_states(desk: Desk, conditions: Iterable[Condition]) -> list[ZoneState]:
    room, hub = desk.scheduler.room, desk.hub
    why = _reasons(conditions, ConditionKind.COOLING_KW)
    return [
        ZoneState(
            id=zone.id,
            hub_id=hub.id,
            heat_kw_built=zone.heat_kw_max,
            heat_kw_max=_kw(room.zone_heat_w_max[index]),
            heat_kw=_kw(room.zone_heat_w[index]),
            cooling_kw_free=_kw(room.zone_heat_w_max[index] - room.zone_heat_w[index]),
            racks=tuple(rack.id for rack in hub.racks if rack.cooling_zone == zone.id),
            why=why.get(zone.id, ""),
        )
        for index, zone in enumerate(hub.cooling_zones)
    ]


def rack_states(desk: Desk, conditions: Iterable[Condition]) -> list[RackState]:
    room, hub = desk.scheduler.room, desk.hub
    why = _reasons(conditions, ConditionKind.UPLINK)
    return [
        RackState(
            id=rack.id,
            hub_id=hub.id,
            row=rack.row,
            cooling_zone=rack.cooling_zone,
            power_kw_max=rack.power_kw_max,
            power_kw_free=_kw(room.rack_power_w_free[index]),
            uplink_factor=float(desk.scheduler.topology.uplink_factor[index]),
            nodes=tuple(node.id for node in rack.nodes),
            why=why.get(rack.id, ""),
        )
        for index, rack in enumerate(hub.racks)
    ]


def _view(condition: Condition) -> ConditionView:
    value = 0.0 if condition.value is None else condition.value
    return ConditionView(kind=condition.kind.value, subject=condition.subject, value=value, why=condition.why)


def _reasons(conditions: Iterable[Condition], kind: ConditionKind) -> dict[str, str]:
    return {condition.subject: condition.why for condition in conditions if condition.kind is kind}


def _kw(watts: float) -> float:
    return round(float(watts) / 1000, 3)
