"""What does a hub tell about itself? Capacity in numbers, for people, peers and the public clients."""

# harch: pure

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter

from harch.base.errors import HarchError
from harch.hub.jobs.state import Closed, JobState
from harch.hub.store.records import Condition, ConditionKind
from harch.placement.facts import model_facts
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.room import MIB_PER_GB
from harch.wire.hardware import ConditionView, GpuView, NodeState, RackState, ZoneState
from harch.wire.hubs import HubSummary, ModelCapacity, NodeMaxima, Remaining
from harch.workloads.lifecycle import State

_kind_of = attrgetter("state", "borrowed", "leased")


def summarise(
    state: JobState, *, not_ready: str, version: str, started_at: datetime, now: datetime, url: str
) -> HubSummary:
    """`not_ready`: why the hub takes no calls at the moment."""
    hub, room = state.hub, state.scheduler.room
    arrays = room.arrays
    up = arrays.available
    models = [
        ModelCapacity(
            model=m.model,
            memory_gb=m.memory_gb,
            total=m.total,
            free=m.free,
            gpus_per_node_max=m.gpus_per_node_max,
            free_shapes=list(m.free_shapes),
        )
        for m in model_facts(room)
    ]
    # May be many: no loop of our own over all of them.
    counted = Counter(map(_kind_of, state.registry.workloads.values()))
    return HubSummary(
        hub_id=hub.id,
        name=hub.name,
        country=hub.country,
        grid_zone=hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        provenance=hub.provenance.value,
        status="error" if not_ready else state.closed.name.lower() if state.closed else "ready",
        status_detail=not_ready or (remaining(state).sentence if state.closed else ""),
        version=version,
        started_at=started_at,
        at=now,
        url=url,
        gpus_total=hub.gpu_count,
        gpus_free=sum(m.free for m in models),
        gpus_allocated=_allocated(state),
        models=models,
        node_max=NodeMaxima(
            cpus=float(arrays.cpu_milli.max()) / 1000,
            memory_gb=float(arrays.memory_mib.max()) / MIB_PER_GB,
            storage_gb=float(room.storage_mib.max()) / MIB_PER_GB,
        ),
        nodes_total=len(hub.nodes),
        nodes_up=int(up.sum()),
        cpus_total=float(arrays.cpu_milli.sum()) / 1000,
        cpus_free=float(arrays.cpu_milli_free[up].sum()) / 1000,
        memory_gb_total=float(arrays.memory_mib.sum()) / MIB_PER_GB,
        memory_gb_free=round(float(arrays.memory_mib_free[up].sum()) / MIB_PER_GB, 3),
        storage_gb_total=float(sum(node.storage_gb for node in hub.nodes)),
        process_slots_total=state.agents.process_slots,
        process_slots_free=max(room.process_slots_free, 0),
        workloads=_by_state(counted, borrowed=False),
        agents=len(state.agents.agents),
        storage_gb_free=round(float(room.storage_mib_free[up].sum()) / MIB_PER_GB, 3),
        lent=_by_state(counted, borrowed=False, leased=True),
        borrowed=_by_state(counted, borrowed=True),
        counts_gpu_memory=True,
        capabilities=state.agents.capabilities(),
    )


def _by_state(
    counted: Counter[tuple[State, bool, bool]], *, borrowed: bool, leased: bool | None = None
) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (state, is_borrowed, is_leased), count in counted.items():
        if not state.is_final and is_borrowed is borrowed and leased in (None, is_leased):
            found[state.value] += count
    return dict(found)


def nodes_by_state(state: JobState) -> dict[str, int]:
    """How many nodes an agent serves, an operator has taken out of service, and nobody serves."""
    room = state.scheduler.room
    cordoned, served = int(room.cordoned.sum()), int(room.arrays.available.sum())
    return {"served": served, "cordoned": cordoned, "unserved": len(state.hub.nodes) - served - cordoned}


def _tenant(state: JobState, workload_id: str) -> str | None:
    """None: GPUs held for a bid to another hub."""
    workload = state.registry.workloads.get(workload_id)
    return workload.tenant if workload is not None else None


def _allocated(state: JobState) -> int:
    """GPUs of which work holds at least a part."""
    room = state.scheduler.room
    held = room.arrays.gpu_milli_free + room.withheld_milli < GPU_MILLI
    return int((held & (room.island >= 0)).sum())


def list_gpus(state: JobState, *, tenant: str | None) -> list[GpuView]:
    """Every GPU with its holder; other tenants' work stays nameless."""
    room = state.scheduler.room
    holders: dict[tuple[int, int], list[str]] = {}
    for running in state.scheduler.running.values():
        for slot in running.slots:
            for device in slot.devices:
                holders.setdefault((slot.row, device), []).append(running.request.id)
    views = []
    for row, node in enumerate(state.hub.nodes):
        up = bool(room.arrays.available[row])
        for gpu in node.gpus:
            holding = holders.get((row, gpu.index), [])
            visible = [key for key in holding if tenant is None or _tenant(state, key) == tenant]
            healthy = bool(room.healthy[row, gpu.index])
            free_milli = int(room.arrays.gpu_milli_free[row, gpu.index])
            views.append(
                GpuView(
                    id=gpu.id,
                    hub_id=state.hub.id,
                    node_id=node.id,
                    rack_id=node.rack_id,
                    index=gpu.index,
                    model=gpu.model.name,
                    memory_gb=gpu.model.memory_gb,
                    island=gpu.island,
                    pcie_switch=gpu.pcie_switch,
                    numa=gpu.numa,
                    provenance=node.provenance.value,
                    status="allocated" if holding else "free" if up and healthy else "unavailable",
                    free_milli=free_milli,
                    held_milli=GPU_MILLI - free_milli - int(room.withheld_milli[row, gpu.index]),
                    healthy=healthy,
                    power_w=gpu.model.power_w,
                    workload_id=visible[0] if visible else "",
                )
            )
    return views


# What does an operator see of the hardware? Nodes, racks and cooling zones with what is free, odd or out of use.


def node_states(state: JobState, conditions: Iterable[Condition]) -> list[NodeState]:
    room, hub = state.scheduler.room, state.hub
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
                nvlink_factor=float(state.scheduler.topology.nvlink_factor[row]),
                rack_power_kw_free=_kw(room.rack_power_w_free[room.rack[row]]),
                zone_cooling_kw_free=round(float(zone_kw_free[room.rack_zone[room.rack[row]]]), 3),
                conditions=tuple(found for subject in subjects for found in by_subject.get(subject, ())),
            )
        )
    return states


def zone_states(state: JobState, conditions: Iterable[Condition]) -> list[ZoneState]:
    room, hub = state.scheduler.room, state.hub
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


def rack_states(state: JobState, conditions: Iterable[Condition]) -> list[RackState]:
    room, hub = state.scheduler.room, state.hub
    why = _reasons(conditions, ConditionKind.UPLINK)
    return [
        RackState(
            id=rack.id,
            hub_id=hub.id,
            row=rack.row,
            cooling_zone=rack.cooling_zone,
            power_kw_max=rack.power_kw_max,
            power_kw_free=_kw(room.rack_power_w_free[index]),
            uplink_factor=float(state.scheduler.topology.uplink_factor[index]),
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


# What keeps a hub from leaving? The work that it still has, counted; it may retire once there is none.


def remaining(state: JobState) -> Remaining:
    running = waiting = lent = 0
    for workload in state.registry.workloads.values():
        if workload.borrowed or workload.state.is_final:
            continue
        if workload.leased:
            lent += 1
        elif workload.is_placed:
            running += 1
        else:
            waiting += 1
    lending = state.lending
    borrowed = len(lending.borrowed) + len(lending.unbooked) + len(lending.bids)
    return Remaining(running=running, waiting=waiting, lent=lent, borrowed=borrowed)


def check_change(state: JobState, wanted: Closed) -> None:
    """Raises E0304 for a change that cannot be made."""
    name = state.hub.name
    if state.closed is Closed.RETIRED and wanted is not Closed.RETIRED:
        raise HarchError(
            "E0304",
            f"{name} has been retired",
            hint=f"let it join again: `harch hub invite {state.hub.id} --again` where the authority is",
        )
    if wanted is not Closed.RETIRED:
        return
    left = remaining(state)
    if left.total:
        raise HarchError(
            "E0304",
            f"{name} cannot retire: {left.sentence}",
            hint=f"`harch hub drain {state.hub.id} --wait` waits until nothing is left",
            meta={"remaining": left.total},
        )
