"""What does a hub tell about itself? Capacity in numbers, for people, peers and the public clients."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from harch.hub.desk import Desk
from harch.hub.views import GpuView, HubSummary, ModelCapacity, NodeMaxima
from harch.placement.facts import model_facts


def summarise(
    desk: Desk, *, status: str, status_detail: str, version: str, started_at: datetime, now: datetime, url: str
) -> HubSummary:
    hub, state = desk.hub, desk.book.state
    table = state.table
    models = [
        ModelCapacity(
            model=m.model,
            memory_gb=m.memory_gb,
            total=m.total,
            free=m.free,
            gpus_per_node_max=m.gpus_per_node_max,
            free_shapes=list(m.free_shapes),
        )
        for m in model_facts(state)
    ]
    unfinished = [w for w in desk.registry.workloads.values() if not w.state.is_final]
    return HubSummary(
        hub_id=hub.id,
        name=hub.name,
        country=hub.country,
        grid_zone=hub.grid_zone,
        latitude=hub.latitude,
        longitude=hub.longitude,
        pue=hub.pue,
        provenance=hub.provenance.value,
        status=status,
        status_detail=status_detail,
        version=version,
        started_at=started_at,
        at=now,
        url=url,
        gpus_total=hub.gpu_count,
        gpus_free=sum(m.free for m in models),
        gpus_allocated=len(desk.book.holder),
        models=models,
        node_max=NodeMaxima(cpus=float(table.cpus.max()), memory_gb=float(table.memory_gb.max())),
        nodes_total=len(hub.nodes),
        nodes_up=int(state.available.sum()),
        cpus_total=float(table.cpus.sum()),
        cpus_free=round(float(state.cpus_free[state.available].sum()), 3),
        memory_gb_total=float(table.memory_gb.sum()),
        memory_gb_free=round(float(state.memory_gb_free[state.available].sum()), 3),
        storage_gb_total=float(sum(node.storage_gb for node in hub.nodes)),
        process_slots_total=desk.agents.process_slots,
        process_slots_free=max(state.process_slots_free, 0),
        workloads=dict(Counter(w.state.value for w in unfinished)),
        agents=len(desk.agents.agents),
    )


def list_gpus(desk: Desk, *, tenant: str | None) -> list[GpuView]:
    """Every GPU with its holder; other tenants' work stays nameless."""
    book = desk.book
    views = []
    for row, node in enumerate(book.state.table.nodes):
        up = bool(book.state.available[row])
        for gpu in node.gpus:
            holder = book.holder.get(gpu.id, "")
            visible = holder and (tenant is None or desk.registry.workloads[holder].tenant == tenant)
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
                    status="allocated" if holder else "free" if up else "unavailable",
                    workload_id=holder if visible else "",
                )
            )
    return views
