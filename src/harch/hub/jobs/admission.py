"""May this be accepted at all? Refuses what no amount of waiting would make possible, with the reason and a way out."""

# harch: pure

from __future__ import annotations

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.fleet.model import Fleet
from harch.hub.views import PeerView
from harch.placement.checks import first_rejection
from harch.placement.facts import HubFacts, ModelFacts, live_facts, published_slots
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.wire.hubs import HubSummary

_CACHE_MAX = 4096


class Admission:
    """The permanent hard checks of one hub, remembered per shape: bursts repeat few shapes."""

    def __init__(self, fleet: Fleet, hub_id: str) -> None:
        self._fleet = fleet
        self._hub_id = hub_id
        self._models = frozenset(model.name for model in fleet.gpu_models)
        self._empty: dict[str, Room] = {}  # rooms of the fleet as if nothing ran there, made when first asked for
        self._verdicts: dict[object, Rejection | None] = {}
        self._elsewhere: dict[object, list[str]] = {}  # names of hubs that could run it; the fleet file does not change

    def forget_verdicts(self) -> None:
        """The process limit changes with the agents."""
        self._verdicts.clear()

    def check(self, request: PlacementRequest, process_slots: int) -> None:
        """Raises the error that tells why this hub can never run it, and which hub could."""
        if (model := self._unknown_model(request)) is not None:  # of several, too: the others would hide the mistake
            raise self._no_such_model(model, "gpu_models" if request.needs.gpu_models else "gpu_model")
        rejection = self._verdict(request, process_slots)
        if rejection is not None:
            raise self._error(request, rejection)

    def fits_only_elsewhere(self, request: PlacementRequest, process_slots: int) -> bool:
        """This hub can never run it, and another can."""
        return (
            self._unknown_model(request) is None
            and self._verdict(request, process_slots) is not None
            and bool(self._others(request))
        )

    def _verdict(self, request: PlacementRequest, process_slots: int) -> Rejection | None:
        shape = request.shape
        try:
            return self._verdicts[shape]
        except KeyError:
            pass
        if len(self._verdicts) >= _CACHE_MAX:
            self._verdicts.clear()
        facts = self._facts(self._hub_id, request, process_slots)
        verdict = self._verdicts[shape] = first_rejection(request, facts, permanent_only=True)
        return verdict

    def _others(self, request: PlacementRequest) -> list[str]:
        """Names of hubs that could run it, given room."""
        shape = request.shape
        if shape not in self._elsewhere:
            if len(self._elsewhere) >= _CACHE_MAX:
                self._elsewhere.clear()
            self._elsewhere[shape] = [
                hub.name
                for hub in self._fleet.hubs
                if hub.id != self._hub_id
                and first_rejection(request, self._facts(hub.id, request, process_slots=0), permanent_only=True) is None
            ]
        return self._elsewhere[shape]

    def _facts(self, hub_id: str, request: PlacementRequest, process_slots: int) -> HubFacts:
        hub = self._fleet.hub(hub_id)
        if hub is None:
            raise HarchError("E0305", f"hub `{hub_id}` is not in the fleet", hint="`harch hubs` lists them")
        room = self._empty.get(hub_id)
        if room is None:
            room = self._empty[hub_id] = Room(hub)
        room.arrays.available[:] = process_slots > 0
        return live_facts(
            country=hub.country,
            accepts_work=True,
            status_detail="",
            room=room,
            process_slots_total=process_slots,
            request=request,
            now_s=0.0,
        )

    def _error(self, request: PlacementRequest, rejection: Rejection) -> HarchError:
        name = self._name(self._hub_id)
        meta: dict[str, object] = {"rule": rejection.rule, "hub": self._hub_id}
        others = self._others(request)
        elsewhere = f"; it fits at {', '.join(others)}: `harch run --hub {others[0].lower()} …`" if others else ""
        code = "E0902" if rejection.rule == "residency" else "E0303"
        return HarchError(
            code,
            f"{name} can never run this: {rejection.rule}: {rejection.detail}",
            hint=f"{rejection.nearest_fix}{elsewhere}",
            meta=meta,
        )

    def _unknown_model(self, request: PlacementRequest) -> str | None:
        return next((model for model in request.needs.models_wanted if model not in self._models), None)

    def _no_such_model(self, model: str, field: str) -> HarchError:
        return HarchError(
            "E0203",
            f"no hub has GPUs of model `{model}`",
            hint=f"use one of: {', '.join(sorted(self._models))}",
            field=f"resources.{field}",
            meta={"rule": "gpu_model", "hub": self._hub_id},
        )

    def _name(self, hub_id: str) -> str:
        hub = self._fleet.hub(hub_id)
        return hub.name if hub else hub_id


# What do the hard rules see of another hub? The figures that it published, as placement wants them.


def published_facts(summary: HubSummary, peer: PeerView, request: PlacementRequest) -> HubFacts:
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
