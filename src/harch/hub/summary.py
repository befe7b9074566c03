"""What does a hub tell about itself? Capacity in numbers, for people, peers and the public clients."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from operator import attrgetter

from harch.hub.closing import remaining
from harch.hub.desk import Desk
from harch.hub.views import GpuView, HubSummary, ModelCapacity, NodeMaxima
from harch.placement.facts import model_facts
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.room import MIB_PER_GB
from harch.workloads.lifecycle import State

_kind_of = attrgetter("state", "guest", "leased")


def summarise(desk: Desk, *, not_ready: str, version: str, started_at: datetime, now: datetime, url: str) -> HubSummary:
    """`not_ready`: why the hub takes no calls at the moment."""
    hub, room = desk.hub, desk.scheduler.room
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
    counted = Counter(map(_kind_of, desk.registry.workloads.values()))
    return HubSummary(
        hub_id=hub.id,
        name=hub.name,
        country=hub.country,
        grid_zone=hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        provenance=hub.provenance.value,
        status="error" if not_ready else desk.closed.name.lower() if desk.closed else "ready",
        status_detail=not_ready or (remaining(desk).sentence if desk.closed else ""),
        version=version,
        started_at=started_at,
        at=now,
        url=url,
        gpus_total=hub.gpu_count,
        gpus_free=sum(m.free for m in models),
        gpus_allocated=_allocated(desk),
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
        process_slots_total=desk.agents.process_slots,
        process_slots_free=max(room.process_slots_free, 0),
        workloads=_by_state(counted, guest=False),
        agents=len(desk.agents.agents),
        storage_gb_free=round(float(room.storage_mib_free[up].sum()) / MIB_PER_GB, 3),
        lent=_by_state(counted, guest=False, leased=True),
        guests=_by_state(counted, guest=True),
        counts_gpu_memory=True,
    )


def _by_state(counted: Counter[tuple[State, bool, bool]], *, guest: bool, leased: bool | None = None) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (state, is_guest, is_leased), count in counted.items():
        if not state.is_final and is_guest is guest and leased in (None, is_leased):
            found[state.value] += count
    return dict(found)


def nodes_by_state(desk: Desk) -> dict[str, int]:
    """How many nodes an agent serves, an operator has taken out of service, and nobody serves."""
    room = desk.scheduler.room
    cordoned, served = int(room.cordoned.sum()), int(room.arrays.available.sum())
    return {"served": served, "cordoned": cordoned, "unserved": len(desk.hub.nodes) - served - cordoned}


def _tenant(desk: Desk, workload_id: str) -> str | None:
    """None: GPUs held for a bid to another hub."""
    workload = desk.registry.workloads.get(workload_id)
    return workload.tenant if workload is not None else None


def _allocated(desk: Desk) -> int:
    """GPUs of which work holds at least a part."""
    room = desk.scheduler.room
    held = room.arrays.gpu_milli_free + room.withheld_milli < GPU_MILLI
    return int((held & (room.island >= 0)).sum())


def list_gpus(desk: Desk, *, tenant: str | None) -> list[GpuView]:
    """Every GPU with its holder; other tenants' work stays nameless."""
    room = desk.scheduler.room
    holders: dict[tuple[int, int], list[str]] = {}
    for running in desk.scheduler.running.values():
        for slot in running.slots:
            for device in slot.devices:
                holders.setdefault((slot.row, device), []).append(running.request.id)
    views = []
    for row, node in enumerate(desk.hub.nodes):
        up = bool(room.arrays.available[row])
        for gpu in node.gpus:
            holding = holders.get((row, gpu.index), [])
            visible = [key for key in holding if tenant is None or _tenant(desk, key) == tenant]
            healthy = bool(room.healthy[row, gpu.index])
            free_milli = int(room.arrays.gpu_milli_free[row, gpu.index])
            views.append(
                GpuView(
                    id=gpu.id,
                    hub_id=desk.hub.id,
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
