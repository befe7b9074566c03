"""Where does a request fit now? The hard rules, then one node by score or a gang in the lowest domain that fits."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement import scoring
from harch.placement.devices import choose_devices
from harch.placement.gangs import RankNodes, place_gang
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.queueing.reservations import Reservation, may_backfill
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scoring import Burden, Choice
from harch.placement.state import PlacementState, is_anchor
from harch.workloads.spec import Level


class FoundPlace(NamedTuple):
    """Slots in rank order, and what the scorer said of the first."""

    slots: tuple[TaskSlot, ...]
    choice: Choice


# Lays out so many tasks of a gang on the allowed nodes, all of them or none. `place_gang` sees the topology.
LayOutGang = Callable[[Room, PlacementRequest, int, RankNodes, Bools], "tuple[TaskSlot, ...] | None"]


def by_topology(
    room: Room, request: PlacementRequest, tasks: int, rank_nodes: RankNodes, allowed: Bools
) -> tuple[TaskSlot, ...] | None:
    return place_gang(room, request, tasks, rank_nodes=rank_nodes, allowed=allowed)


def find_place(
    books: PlacementState,
    request: PlacementRequest,
    reservations: Sequence[Reservation],
    *,
    now_s: float,
    lay_out: LayOutGang,
) -> FoundPlace | None:
    """Takes nothing. None: it does not fit, or may not run here."""
    if not may_run_here(books.hub, request):
        return None
    allowed = allowed_nodes(books.room, request, reservations, now_s)
    for tasks in sizes(request, now_s):
        if request.runs_process and tasks > books.room.process_slots_free:
            continue
        if books.queue.quota_rejection(request, tasks) is not None:
            continue
        found = _place(books, request, tasks, allowed, lay_out)
        if found is not None:
            return found
    return None


def may_run_here(hub: Hub, request: PlacementRequest) -> bool:
    """Residency comes first, and no later step ever sees a forbidden request."""
    return not request.countries_allowed or hub.country in request.countries_allowed


def allowed_nodes(room: Room, request: PlacementRequest, reservations: Sequence[Reservation], now_s: float) -> Bools:
    """What exclusive work, power and the reservations leave over. Capacity is the placement's to see."""
    allowed = ~room.exclusive_on
    if request.topology.exclusive:
        allowed &= room.tasks_on == 0
    if request.needs.storage_gb:
        allowed &= room.has_storage(request.needs)
    if request.needs.gpus and room.power_can_bind:
        allowed &= room.watts_free() >= room.watts(request.needs)
    if reservations:
        own = next((kept for kept in reservations if kept.request.id == request.id), None)
        for reservation in reservations:
            allowed &= may_backfill(request, reservation, room, now_s, stop_grace_s=request.stop_grace_s, own=own)
    return allowed


def sizes(request: PlacementRequest, now_s: float) -> Sequence[int]:
    """How many tasks it would start with: all of them, and once that is due fewer, down to its minimum."""
    if request.tasks_min < request.tasks and now_s - request.submitted_s >= request.degrade_after_s:
        return range(request.tasks, request.tasks_min - 1, -1)
    return (request.tasks,)


def candidates(books: PlacementState, request: PlacementRequest, allowed: Bools, limit: int) -> list[Choice]:
    """The nodes that one task of it would get, in the order in which the decision prefers them."""
    found: dict[int, Choice] = {}
    burden = books.degradation.of(request)
    for kind, preference in _preferences(books, request, allowed, burden):
        for choice in scoring.candidates(books.scorer, kind, preference, burden, limit):
            found.setdefault(choice.row, choice)
        if len(found) >= limit:
            break
    return list(found.values())[:limit]


def _place(
    books: PlacementState, request: PlacementRequest, tasks: int, allowed: Bools, lay_out: LayOutGang
) -> FoundPlace | None:
    room = books.room
    one_island = request.topology.required is Level.ISLAND and request.needs.gpus > 1
    if tasks > 1 or request.tasks > 1 or one_island:
        slots = _lay_out(books, request, tasks, allowed, lay_out)
        return None if slots is None else FoundPlace(slots, Choice(slots[0].row, None, 0.0, {}))
    choice = _choose(books, request, allowed)
    if choice is None:
        return None
    devices = choose_devices(room, choice.row, request.needs, device=choice.device)
    if devices is None:
        raise InvariantBroken("a scorer chooses nodes with room", books.hub.nodes[choice.row].id, request.id)
    return FoundPlace((TaskSlot(choice.row, devices),), choice)


def _lay_out(
    books: PlacementState, request: PlacementRequest, tasks: int, allowed: Bools, lay_out: LayOutGang
) -> tuple[TaskSlot, ...] | None:
    """On worn hardware the lowest domain is not always the fastest: of what whole and of what worn nodes offer, the
    one with the highest modelled bandwidth is taken, and among equals the one that is less worn."""
    burden = books.degradation.of(request, tasks)
    if burden is None:
        return lay_out(books.room, request, tasks, books.scorer.node_scores, allowed)

    def rank_nodes(kind: Kind, nodes: Bools) -> Floats:
        return books.scorer.node_scores(kind, nodes) - burden.points

    best, fastest = None, 0.0
    for layer in burden.layers():
        slots = lay_out(books.room, request, tasks, rank_nodes, allowed & layer)
        if slots is not None:
            prediction = books.topology.predict(request, slots)
            if prediction.gb_per_s > fastest:
                best, fastest = slots, prediction.gb_per_s
            if fastest >= prediction.best_gb_per_s:
                break
    return best


def _has_island_for(room: Room, gpus: int) -> Bools:
    """Nodes with so many wholly free GPUs in one NVLink island; a GPU without NVLink is an island by itself."""
    free = room.arrays.gpu_milli_free == GPU_MILLI
    islands = range(int(room.island.max(initial=-1)) + 1)
    found = np.zeros(room.arrays.size, np.bool_)
    for island in islands:
        found |= (free & (room.island == island)).sum(axis=1) >= gpus
    return found


def _choose(books: PlacementState, request: PlacementRequest, allowed: Bools) -> Choice | None:
    burden = books.degradation.of(request)
    for kind, preference in _preferences(books, request, allowed, burden):
        choice = scoring.choose(books.scorer, kind, preference, burden)
        if choice is not None:
            return choice
    return None


def _preferences(
    books: PlacementState, request: PlacementRequest, allowed: Bools, burden: Burden | None
) -> Iterable[tuple[Kind, Bools]]:
    """What to ask the scorer for, the most welcome first.

    Links that are down to half of their speed or less come last, whatever else is wished for.
    The first wanted model that has room, so that a preference is one; any model at once if none is preferred.
    Several GPUs go where they can talk fast, if there is room: an island is preferred by default.
    What stays where it is goes beside its like, if there is room: so whole nodes are left that gangs can have cleared.
    """
    needs, kind_of = request.needs, books.room.kind
    preferences = [allowed]  # least welcome last
    if needs.gpus and is_anchor(request):
        preferences.insert(0, allowed & (books.anchored > 0))
    if needs.gpus > 1 and request.topology.preferred is Level.ISLAND:
        close = _has_island_for(books.room, needs.gpus)
        preferences = [*(preference & close for preference in preferences), *preferences]
    kinds = [kind_of(needs)]
    if len(needs.gpu_models) > 1:  # whichever model it gets, it takes as much of it as is booked
        ones = [replace(needs, gpu_model=model, gpu_models=()) for model in needs.gpu_models]
        kinds = [kinds[0]._replace(models=kind_of(one).models) for one in ones]
    if burden is None or not burden.crippled.any():
        return [(kind, preference) for kind in kinds for preference in preferences]
    return (
        (kind, preference & usable)
        for usable in (~burden.crippled, burden.crippled)
        for kind in kinds
        for preference in preferences
    )
