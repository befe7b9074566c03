"""What do the hard checks know of a hub, and what keeps a request from starting?

Live facts for the own hub, published ones for peers; constraints lifted one after the other.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.placement.placer import allowed_nodes, sizes
from harch.placement.policy.shapes import GPU_MILLI, Ints
from harch.placement.queueing.reservations import Reservation
from harch.placement.queueing.running import find_slots
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot, gpu_slots
from harch.workloads.spec import Level

# What keeps a request from starting? The functions of the decision, with one constraint lifted after the other.
#
# An explanation that evaluates anything else than the decision does will be untrue some day.


_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What is in the way of a request, in a room as it is. Free GPUs, processes and quotas come from others."""

    fits: bool = True
    kept_by: tuple[Reservation, ...] = ()  # it would fit, but for what they keep
    power_short: str = ""  # it would fit, but for the power or cooling that its tasks share


def find_obstacles(
    room: Room, request: PlacementRequest, reservations: Sequence[Reservation], *, now_s: float
) -> Obstacles:
    if _slots(room, request, reservations, now_s) is not None:
        return Obstacles()
    least = sizes(request, now_s)[-1]
    if request.runs_process and room.process_slots_free < least:  # what else is in the way, were they there?
        room = room.copy()
        room.process_slots_free = least
        if _slots(room, request, reservations, now_s) is not None:
            return Obstacles(fits=False)
    if _slots(room, request, (), now_s) is not None:
        alone = [kept for kept in reservations if _slots(room, request, (kept,), now_s) is None]
        return Obstacles(fits=False, kept_by=tuple(alone or reservations))
    wished = _slots(room.without_power_limits(), request, (), now_s)
    return Obstacles(fits=False, power_short="" if wished is None else _power_short(room, request, wished))


def power_limit(room: Room, request: PlacementRequest) -> str:
    """Which feeds and plants would not carry it, if nothing else ran and everything was as the fleet file says; empty
    if they would, or if there are not even GPUs enough. The fewest tasks that it would ever start with count."""
    whole = room.whole_and_empty
    everywhere = np.ones(whole.arrays.size, np.bool_)
    if not whole.power_can_bind or find_slots(whole, request, request.tasks_min, everywhere) is not None:
        return ""
    wished = find_slots(whole.without_power_limits(), request, request.tasks_min, everywhere)
    return "" if wished is None else _power_short(whole, request, wished)


def _slots(
    room: Room, request: PlacementRequest, reservations: Sequence[Reservation], now_s: float
) -> tuple[TaskSlot, ...] | None:
    allowed = allowed_nodes(room, request, reservations, now_s)
    found = (find_slots(room, request, tasks, allowed) for tasks in sizes(request, now_s))
    return next((slots for slots in found if slots is not None), None)


def _power_short(room: Room, request: PlacementRequest, wished: tuple[TaskSlot, ...]) -> str:
    """Which feeds and plants cannot carry the layout that it would have without them. Where each node alone could be
    carried, it is their sum that cannot."""
    rows = np.array([slot.row for slot in wished])
    watts = room.watts(request.needs)[rows]
    racks = room.rack[rows]
    rack_w = np.bincount(racks, watts, len(room.rack_row))
    zone_w = np.bincount(room.rack_zone[racks], watts, len(room.zone_heat_w))
    zone_w_free = room.zone_heat_w_max - room.zone_heat_w
    zones = [f"cooling zone {zone.id}" for zone in room.hub.cooling_zones]
    feeds = [f"the feed of rack {rack.id}" for rack in room.hub.racks]
    short = [
        *_short_of(zones, zone_w_free.tolist(), zone_w.tolist()),
        *_short_of(feeds, room.rack_power_w_free.tolist(), rack_w.tolist()),
    ]
    return "; ".join(short[:_NAMED_MAX]) or "no feed and cooling plant together can carry all its tasks"


def _short_of(names: list[str], free_w: list[float], wanted_w: list[float]) -> list[str]:
    return [
        f"{name} has {max(free, 0.0) / 1000:.1f} kW free; it would draw {wanted / 1000:.1f} kW there"
        for name, free, wanted in zip(names, free_w, wanted_w, strict=True)
        if wanted > max(free, 0.0)
    ]


# What do the hard checks know of a hub? The same facts: live for one's own hub, published ones for peers.


NODES_NAMED_MAX = 3  # the rest is counted


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
    storage_gb_per_node_max: float | None  # None: not published
    counts_gpu_memory: bool  # False: a hub of an earlier version, which knows no memory of shares
    nodes_up: int
    process_slots_total: int
    process_slots_free: int
    slots_empty: int
    slots_now: int
    domain_slots_empty: int | None = None
    domain_slots_now: int | None = None
    domain_best: str = ""  # where that is
    tasks_now: int | None = None  # the fewest that it would start with now; None: all of them
    power_limit: str = ""  # an empty hub would take it, but for its power or cooling
    power_short: str | None = ""  # it would fit, but for power or cooling; None: not published
    kept_free: str = ""  # it would fit, but for what is kept for others
    fits: bool | None = None  # what the decision itself says, quota and turn left out; None: not known of peers
    turn: str = ""  # it would fit, but the next round does not start it
    quota_limit: str = ""  # larger than the whole quota of its tenant
    held_back: str = ""  # what would do, but was taken out of use by somebody
    held_back_slots: int = 0  # tasks that would fit, were all nodes open
    quota_rejection: str = ""
    source: str = "live"
    age_s: float | None = None

    def wanted(self, request: PlacementRequest) -> int:
        """The fewest tasks that it would start with now."""
        return request.tasks if self.tasks_now is None else self.tasks_now

    def suitable(self, request: PlacementRequest) -> tuple[ModelFacts, ...]:
        """The models that the request may use."""
        needs = request.needs
        return tuple(
            model
            for model in self.models
            if (not needs.models_wanted or model.model in needs.models_wanted)
            and model.memory_gb >= needs.gpu_memory_gb_needed
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
    request: PlacementRequest,
    now_s: float,
    reservations: Sequence[Reservation] = (),
    turn: str = "",
    quota_rejection: str = "",
    quota_limit: str = "",
) -> HubFacts:
    """One's own hub, exactly: what it says of a request is what a round of its scheduler would do with this room.

    Each fact stands for itself: what is short of power is not short of capacity, too.
    """
    unlimited = room.without_power_limits()
    empty = room.slots_when_empty(request.needs)
    now = unlimited.slots(request.needs, exclusive=request.topology.exclusive)
    level = request.topology.required
    domain_slots_empty, _ = _best_domain(room, empty, level, request, whole_islands=True)
    domain_slots_now, domain_best = _best_domain(room, now, level, request, whole_islands=False)
    held_back, held_back_slots = _held_back(unlimited, request, int(now.sum()))
    obstacles = find_obstacles(room, request, reservations, now_s=now_s)
    return HubFacts(
        hub_id=room.hub.id,
        country=country,
        accepts_work=accepts_work,
        status_detail=status_detail,
        models=model_facts(room),
        cpus_per_node_max=float(room.arrays.cpu_milli.max()) / 1000,
        memory_gb_per_node_max=float(room.arrays.memory_mib.max()) / 1024,
        storage_gb_per_node_max=float(room.storage_mib.max()) / 1024,
        counts_gpu_memory=True,
        nodes_up=int(room.arrays.available.sum()),
        process_slots_total=process_slots_total,
        process_slots_free=room.process_slots_free,
        slots_empty=int(empty.sum()),
        slots_now=int(now.sum()),
        domain_slots_empty=domain_slots_empty,
        domain_slots_now=domain_slots_now,
        domain_best=domain_best,
        tasks_now=sizes(request, now_s)[-1],
        power_limit=power_limit(room, request),
        power_short=obstacles.power_short,
        kept_free="; ".join(kept.describe(now_s) for kept in obstacles.kept_by),
        fits=obstacles.fits,
        turn=turn if obstacles.fits and not quota_rejection else "",
        held_back=held_back,
        held_back_slots=held_back_slots,
        quota_rejection=quota_rejection,
        quota_limit=quota_limit,
    )


def _held_back(room: Room, request: PlacementRequest, slots_now: int) -> tuple[str, int]:
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
        reasons.append(f"{unhealthy} suitable GPUs are idle but unhealthy")
    return "; ".join(reasons), more


def _best_domain(
    room: Room, slots: Ints, level: Level, request: PlacementRequest, *, whole_islands: bool
) -> tuple[int, str]:
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
    free = np.where(room.island >= 0, GPU_MILLI, 0) if whole_islands else room.arrays.gpu_milli_free
    kind = room.kind(request.needs)
    best, where = -1, ""
    for island in range(int(room.island.max()) + 1):
        held = np.minimum(slots, gpu_slots(kind, np.where(room.island == island, free, 0)))
        if held.max() > best:
            best, where = int(held.max()), f"island {island} of node {hub.nodes[int(held.argmax())].id}"
    return best, where


def published_slots(models: tuple[ModelFacts, ...], request: PlacementRequest, nodes_up: int) -> tuple[int, int]:
    """Tasks that a peer could take (empty, now), estimated from its published histogram, which lacks CPU and memory.

    Empty it takes no more than that: its nodes may differ, and nothing may be called impossible that is not.
    """
    needs = request.needs
    if not needs.gpus:
        return request.tasks, request.tasks * (nodes_up > 0)
    memory_gb = min((m.memory_gb for m in models), default=0)  # of the smallest that will do, as its room counts
    milli = needs.gpu_milli_of(memory_gb) if memory_gb else needs.gpu_milli
    share = GPU_MILLI // milli  # a share of a GPU fits a free one so many times
    empty = sum(m.total // needs.gpus for m in models if m.gpus_per_node_max >= needs.gpus)
    now = sum(count * (free // needs.gpus) for m in models for free, count in enumerate(m.free_shapes, start=1))
    return empty * share, now * share
