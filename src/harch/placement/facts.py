"""What do the hard checks know of a hub? The same facts: live for one's own hub, published ones for peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Ints
from harch.placement.request import Request
from harch.placement.room import Room
from harch.workloads.spec import Level

NODES_NAMED_MAX = 3  # the rest is counted
_PLENTY_W = 1e12


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """GPUs of one model at a hub. `free_shapes[k]` counts nodes with exactly k+1 wholly free GPUs."""

    model: str
    memory_gb: int
    total: int
    free: int
    gpus_per_node_max: int
    free_shapes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HubFacts:
    """One hub, as far as the hard checks need it. `*slots*` count tasks of the request at hand.

    The `domain_` figures are of the best single domain of the required level; None where a peer does not publish them.
    """

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
    domain_slots_empty: int | None = None
    domain_slots_now: int | None = None
    domain_best: str = ""  # where that is
    power_kw_free: float | None = None  # of the rack and cooling zone with most to spare
    task_kw: float = 0.0  # what the GPUs of one task draw there; 0 if no node has room for it, whatever the power
    held_back: str = ""  # what would do, but was taken out of use by somebody
    held_back_slots: int = 0  # tasks that would fit, were all nodes open
    quota_rejection: str = ""
    source: str = "live"
    age_s: float | None = None

    def suitable(self, request: Request) -> tuple[ModelFacts, ...]:
        """The models that the request may use."""
        needs = request.needs
        return tuple(
            model
            for model in self.models
            if (not needs.models_wanted or model.model in needs.models_wanted)
            and model.memory_gb >= needs.gpu_memory_gb_min
        )


def model_facts(room: Room) -> tuple[ModelFacts, ...]:
    """Counts per GPU model, from the live arrays."""
    arrays = room.arrays
    whole = (arrays.gpu_milli_free == GPU_MILLI).sum(axis=1)
    facts = []
    for index, name in enumerate(room.models):
        rows = arrays.model == index
        free = whole[rows & arrays.available]
        most = int(arrays.gpus[rows].max())
        counts = np.bincount(free, minlength=most + 1)
        facts.append(
            ModelFacts(
                model=name,
                memory_gb=int(room.gpu_memory_gb[rows].max()),
                total=int(arrays.gpus[rows].sum()),
                free=int(free.sum()),
                gpus_per_node_max=most,
                free_shapes=tuple(counts[1 : most + 1].tolist()),
            )
        )
    return tuple(facts)


def live_facts(
    *,
    country: str,
    accepts_work: bool,
    status_detail: str,
    room: Room,
    process_slots_total: int,
    request: Request,
    quota_rejection: str = "",
) -> HubFacts:
    """One's own hub: exact, but that power and cooling are judged for one node at a time."""
    empty = room.slots_when_empty(request.needs)
    now = room.slots(request.needs, exclusive=request.topology.exclusive)
    level = request.topology.required
    domain_slots_empty, _ = _best_domain(room, empty, level, request, whole_islands=True)
    domain_slots_now, domain_best = _best_domain(room, now, level, request, whole_islands=False)
    power_kw_free, task_kw = _power(room, request)
    held_back, held_back_slots = _held_back(room, request, int(now.sum()))
    return HubFacts(
        hub_id=room.hub.id,
        country=country,
        accepts_work=accepts_work,
        status_detail=status_detail,
        models=model_facts(room),
        cpus_per_node_max=float(room.arrays.cpu_milli.max()) / 1000,
        memory_gb_per_node_max=float(room.arrays.memory_mib.max()) / 1024,
        nodes_up=int(room.arrays.available.sum()),
        process_slots_total=process_slots_total,
        process_slots_free=room.process_slots_free,
        slots_empty=int(empty.sum()),
        slots_now=int(now.sum()),
        domain_slots_empty=domain_slots_empty,
        domain_slots_now=domain_slots_now,
        domain_best=domain_best,
        power_kw_free=power_kw_free,
        task_kw=task_kw,
        held_back=held_back,
        held_back_slots=held_back_slots,
        quota_rejection=quota_rejection,
    )


def _power(room: Room, request: Request) -> tuple[float, float]:
    """Kilowatts to spare and needed, on the node that has room for a task and most to spare. A full hub is no matter
    of power, although little is left of it."""
    unlimited = room.copy()
    unlimited.rack_power_w_free[:] = unlimited.zone_heat_w_max[:] = _PLENTY_W
    has_room = unlimited.slots(request.needs, exclusive=request.topology.exclusive) > 0
    watts_free, watts = room.watts_free(), room.watts(request.needs)
    if not has_room.any():
        return float(watts_free.max()) / 1000, 0.0
    best = int(np.where(has_room, watts_free - watts, -np.inf).argmax())
    return float(watts_free[best]) / 1000, float(watts[best]) / 1000


def _held_back(room: Room, request: Request, slots_now: int) -> tuple[str, int]:
    """Cordoned nodes and GPUs marked unhealthy, in words; and how many more tasks would fit, were all nodes open."""
    reasons = []
    more = 0
    suits = room.suits(request.needs)
    cordoned = np.flatnonzero(room.cordoned & room.served & suits).tolist()
    if cordoned:
        open_room = room.copy()
        open_room.arrays.available[cordoned] = True
        more = int(open_room.slots(request.needs, exclusive=request.topology.exclusive).sum()) - slots_now
        names = ", ".join(room.hub.nodes[row].id for row in cordoned[:NODES_NAMED_MAX])
        names += f" and {len(cordoned) - NODES_NAMED_MAX} more" if len(cordoned) > NODES_NAMED_MAX else ""
        reasons.append(f"{more or 'none'} more would fit on cordoned nodes ({names})")
    unhealthy = int((room.withheld_milli[suits] == GPU_MILLI).sum()) if request.needs.gpus else 0
    if unhealthy:
        reasons.append(f"{unhealthy} suitable GPUs are idle but marked unhealthy")
    return "; ".join(reasons), more


def _best_domain(room: Room, slots: Ints, level: Level, request: Request, *, whole_islands: bool) -> tuple[int, str]:
    """Most tasks that one domain of this level takes, and which domain that is."""
    hub = room.hub
    if level is Level.HUB:
        return int(slots.sum()), hub.name
    if level is Level.ROW:
        per_row = np.bincount(room.rack_row[room.rack], slots)
        row = hub.racks[int(np.flatnonzero(room.rack_row == per_row.argmax())[0])].row
        return int(per_row.max()), f"row {row}"
    if level is Level.RACK:
        per_rack = np.bincount(room.rack, slots)
        return int(per_rack.max()), f"rack {hub.racks[int(per_rack.argmax())].id}"
    if level is Level.NODE or not request.needs.gpus:
        return int(slots.max()), f"node {hub.nodes[int(slots.argmax())].id}"
    free = room.arrays.gpu_milli_free == GPU_MILLI if not whole_islands else room.island >= 0
    best, where = -1, ""
    for island in range(int(room.island.max()) + 1):
        held = np.minimum(slots, ((room.island == island) & free).sum(axis=1) // request.needs.gpus)
        if held.max() > best:
            best, where = int(held.max()), f"island {island} of node {hub.nodes[int(held.argmax())].id}"
    return best, where


def published_slots(models: tuple[ModelFacts, ...], request: Request, nodes_up: int) -> tuple[int, int]:
    """Tasks that a peer could take (empty, now), estimated from its published histogram, which lacks CPU and memory."""
    needs = request.needs
    if not needs.gpus:
        return request.tasks * (nodes_up > 0), request.tasks * (nodes_up > 0)
    share = GPU_MILLI // needs.gpu_milli  # a share of a GPU fits a free one so many times
    empty = sum((m.gpus_per_node_max // needs.gpus) * (m.total // max(m.gpus_per_node_max, 1)) for m in models)
    now = sum(count * (free // needs.gpus) for m in models for free, count in enumerate(m.free_shapes, start=1))
    return empty * share, now * share
