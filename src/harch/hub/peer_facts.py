"""What do the hard rules see of another hub? The figures that it published, as placement wants them."""

from __future__ import annotations

from harch.hub.views import HubSummary, PeerView
from harch.placement.facts import HubFacts, ModelFacts, published_slots
from harch.placement.request import Request


def published_facts(summary: HubSummary, peer: PeerView, request: Request) -> HubFacts:
    models = tuple(
        ModelFacts(m.model, m.memory_gb, m.total, m.free, m.gpus_per_node_max, tuple(m.free_shapes))
        for m in summary.models
    )
    status = summary.status_detail or summary.status
    facts = HubFacts(
        hub_id=summary.hub_id,
        country=summary.country,
        accepts_work=peer.reachable and summary.status == "ready",
        status_detail=status if peer.reachable else f"does not answer: {peer.error}",
        models=models,
        cpus_per_node_max=summary.node_max.cpus,
        memory_gb_per_node_max=summary.node_max.memory_gb,
        storage_gb_per_node_max=summary.node_max.storage_gb,
        counts_gpu_memory=summary.counts_gpu_memory,
        nodes_up=summary.nodes_up,
        process_slots_total=summary.process_slots_total,
        process_slots_free=summary.process_slots_free,
        slots_empty=0,
        slots_now=0,
        power_short=None,
        source="summary",
        age_s=peer.age_s,
    )
    empty, now = published_slots(facts.suitable(request), request, summary.nodes_up)
    return HubFacts(
        **{name: getattr(facts, name) for name in HubFacts.__slots__} | {"slots_empty": empty, "slots_now": now}
    )
