"""What do the hard checks know of a hub? The same facts: live for one's own hub, published ones for peers."""

from __future__ import annotations

from dataclasses import dataclass

from harch.placement.nodes import NodeState
from harch.placement.request import Request


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """GPUs of one model at a hub. `free_shapes[k]` counts nodes with exactly k+1 free GPUs."""

    model: str
    memory_gb: int
    total: int
    free: int
    gpus_per_node_max: int
    free_shapes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HubFacts:
    """One hub, as far as the hard checks need it. `slots_*` count tasks of the request at hand."""

    hub_id: str
    country: str
    accepts_work: bool
    status_detail: str
    models: tuple[ModelFacts, ...]
    cpus_per_node_max: float
    memory_gb_per_node_max: float
    nodes_up: int
    process_slots_total: int
    process_slots_free: int
    slots_empty: int
    slots_now: int
    source: str = "live"
    age_s: float | None = None

    def suitable(self, request: Request) -> tuple[ModelFacts, ...]:
        """The models that the request may use."""
        needs = request.needs
        return tuple(
            model
            for model in self.models
            if (needs.gpu_model is None or model.model == needs.gpu_model)
            and model.memory_gb >= needs.gpu_memory_gb_min
        )


def model_facts(state: NodeState) -> tuple[ModelFacts, ...]:
    """Counts per GPU model, from the live arrays."""
    facts = []
    table = state.table
    for index, name in enumerate(table.models):
        rows = table.model_index == index
        free = state.gpus_free[rows & state.available]
        most = int(table.gpu_count[rows].max())
        facts.append(
            ModelFacts(
                model=name,
                memory_gb=int(table.gpu_memory_gb[rows].max()),
                total=int(table.gpu_count[rows].sum()),
                free=int(free.sum()),
                gpus_per_node_max=most,
                free_shapes=tuple(int((free == count).sum()) for count in range(1, most + 1)),
            )
        )
    return tuple(facts)


def live_facts(
    *,
    hub_id: str,
    country: str,
    accepts_work: bool,
    status_detail: str,
    state: NodeState,
    process_slots_total: int,
    request: Request,
) -> HubFacts:
    """One's own hub: exact."""
    table = state.table
    return HubFacts(
        hub_id=hub_id,
        country=country,
        accepts_work=accepts_work,
        status_detail=status_detail,
        models=model_facts(state),
        cpus_per_node_max=float(table.cpus.max()),
        memory_gb_per_node_max=float(table.memory_gb.max()),
        nodes_up=int(state.available.sum()),
        process_slots_total=process_slots_total,
        process_slots_free=state.process_slots_free,
        slots_empty=int(table.slots_when_empty(request.needs).sum()),
        slots_now=int(state.slots_now(request.needs).sum()),
    )


def published_slots(models: tuple[ModelFacts, ...], request: Request, nodes_up: int) -> tuple[int, int]:
    """Tasks that a peer could take (empty, now), estimated from its published histogram, which lacks CPU and memory."""
    needs = request.needs
    if not needs.gpus:
        return request.tasks * (nodes_up > 0), request.tasks * (nodes_up > 0)
    empty = sum((m.gpus_per_node_max // needs.gpus) * (m.total // max(m.gpus_per_node_max, 1)) for m in models)
    now = sum(count * (free // needs.gpus) for m in models for free, count in enumerate(m.free_shapes, start=1))
    return empty, now
