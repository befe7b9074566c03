"""Who decides at a simulated hub?

The real scheduler (also made blind to the topology, to show what seeing is worth), or a plain one: FIFO, bin packing,
dominant resource fairness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol, get_args

import numpy as np

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement.gangs import RankNodes
from harch.placement.learned import LearnedPolicy
from harch.placement.placer import LayOutGang, by_topology
from harch.placement.policy.shapes import GPU_MILLI, Bools
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.request import PlacementRequest
from harch.placement.room import MIB_PER_GB, Room, TaskSlot
from harch.placement.scheduler import Scheduler


def fit(
    room: Room, request: PlacementRequest, *, best: bool, tasks: int | None = None, allowed: Bools | None = None
) -> tuple[TaskSlot, ...] | None:
    """Nodes in their order, or (`best`) those with the least free GPU first. Takes nothing.

    `tasks` is fewer than wanted for a degraded gang; `allowed` holds the nodes that may be used.
    """
    wanted = request.tasks if tasks is None else tasks
    slots = room.slots(request.needs, exclusive=request.topology.exclusive)
    if allowed is not None:
        slots = np.where(allowed, slots, 0)
    if int(slots.sum()) < wanted:
        return None
    rows = np.flatnonzero(slots)
    if best:
        rows = rows[np.argsort(room.arrays.gpu_milli_free_sum[rows], kind="stable")]
    kind = room.kind(request.needs)
    placed: list[TaskSlot] = []
    for row in rows.tolist():
        free_milli = room.arrays.gpu_milli_free[row].tolist()
        for _ in range(min(int(slots[row]), wanted - len(placed))):
            devices = _devices(free_milli, kind.gpus, kind.gpu_milli, best=best)
            placed.append(TaskSlot(row, devices))
        if len(placed) == wanted:
            return tuple(placed) if wanted == 1 or _power_holds(room, request, placed) else None
    return None


def _devices(free_milli: list[int], gpus: int, milli: int, *, best: bool) -> tuple[int, ...]:
    """Takes the devices from `free_milli`, so that the next task of the gang does not get them too."""
    fitting = [index for index, left in enumerate(free_milli) if left >= milli]
    if best and milli < GPU_MILLI:
        fitting.sort(key=lambda index: free_milli[index])
    devices = tuple(sorted(fitting[:gpus]))
    for index in devices:
        free_milli[index] -= milli
    return devices


def _power_holds(room: Room, request: PlacementRequest, placed: Sequence[TaskSlot]) -> bool:
    """Slots are counted per node; a rack's feed and a hall's cooling are shared by what is on several of them."""
    watts = room.watts(request.needs)
    by_rack = np.bincount([room.rack[slot.row] for slot in placed], [watts[slot.row] for slot in placed])
    racks = np.arange(len(by_rack))
    by_zone = np.bincount(room.rack_zone[racks], by_rack, len(room.zone_heat_w))
    return bool(
        (by_rack <= room.rack_power_w_free[racks]).all() and (room.zone_heat_w + by_zone <= room.zone_heat_w_max).all()
    )


# The real scheduler at a simulated hub; and the same one made blind to the topology, to show what seeing is worth.


class HarchPolicy:
    """`placement.scheduler.Scheduler` with the learned policy, as a hub runs it: it learns online, from nothing."""

    _lay_out: LayOutGang = staticmethod(by_topology)

    def __init__(self, hub: Hub) -> None:
        self._scheduler = Scheduler(hub, lay_out=self._lay_out)
        self.room: Room = self._scheduler.room
        self._learned = LearnedPolicy(self.room)
        self._scheduler.use(self._learned)
        self._scheduler.serve(tuple(node.id for node in hub.nodes), True)

    @property
    def kept(self) -> Mapping[int, str]:
        return {row: kept.request.id for kept in self._scheduler.reservations for row in kept.rows}

    def submit(self, request: PlacementRequest, *, now_s: float) -> None:
        self._scheduler.submit(request, now_s=now_s)
        if self._learned.learning_due:
            self._learned.learn()

    def withdraw(self, request_id: str) -> None:
        self._scheduler.withdraw(request_id)

    def ended(self, request_id: str, *, now_s: float) -> None:
        self._scheduler.ended(request_id, now_s=now_s)

    def decide(self, *, now_s: float, starts_max: int) -> Decisions:
        plan = self._scheduler.plan(now_s=now_s, placed_max=starts_max)
        starts = tuple(Start(assignment.request, assignment.slots) for assignment in plan.assignments)
        stops = tuple(victim.request.id for preemption in plan.preemptions for victim in preemption.victims)
        return Decisions(starts, stops, plan.complete)


def _by_best_fit(
    room: Room, request: PlacementRequest, tasks: int, rank_nodes: RankNodes, allowed: Bools
) -> tuple[TaskSlot, ...] | None:
    return fit(room, request, best=True, tasks=tasks, allowed=allowed)


class BlindPolicy(HarchPolicy):
    """The same queue, reservations, scores and limits; only gangs are laid out by best fit, whatever the links."""

    _lay_out: LayOutGang = staticmethod(_by_best_fit)


# Who waits, and who of them could fit now? The queue behind the plain schedulers that pass others over.
#
# A shape that did not fit cannot fit before something is given back on a node that takes a task of it. So what is
# blocked
# is set aside, and each event looks at few of the thousands that may wait.


_Queue = OrderedDict[str, tuple[int, PlacementRequest]]


@dataclass
class Backlog:
    """Waiting requests by tenant and shape, in order of arrival."""

    room: Room
    _arrivals: int = 0
    _open: dict[str, dict[int, _Queue]] = field(default_factory=dict)
    _blocked: dict[int, dict[str, _Queue]] = field(default_factory=dict)
    _kinds: dict[int, Kind] = field(default_factory=dict)  # of a task of that shape
    _numbers: dict[Hashable, int] = field(default_factory=dict)  # hashing a shape is slow, a number is not
    _found: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, tenant: str, request: PlacementRequest) -> None:
        self._arrivals += 1
        shape = self._numbers.setdefault(request.shape, len(self._numbers))
        self._kinds.setdefault(shape, self.room.kind(request.needs))
        if shape in self._blocked:
            queue = self._blocked[shape].setdefault(tenant, OrderedDict())
        else:
            queue = self._open.setdefault(tenant, {}).setdefault(shape, OrderedDict())
        queue[request.id] = (self._arrivals, request)
        self._found[request.id] = (tenant, shape)

    def remove(self, request_id: str) -> None:
        found = self._found.pop(request_id, None)
        if found is None:
            return
        tenant, shape = found
        if shape in self._blocked:
            queue = self._blocked[shape][tenant]
            del queue[request_id]
            if not queue:
                del self._blocked[shape][tenant]
            if not self._blocked[shape]:
                del self._blocked[shape]
            return
        shapes = self._open[tenant]
        del shapes[shape][request_id]
        if not shapes[shape]:
            del shapes[shape]
        if not shapes:
            del self._open[tenant]

    def tenants(self) -> Iterable[str]:
        """Those of whom something could fit."""
        return self._open

    def oldest(self, tenant: str) -> PlacementRequest:
        """The tenant's oldest request that could fit."""
        heads = (next(iter(queue.values())) for queue in self._open[tenant].values())
        return min(heads, key=lambda head: head[0])[1]

    def block(self, request: PlacementRequest) -> None:
        """It did not fit: nothing of its shape does."""
        shape = self._found[request.id][1]
        aside = self._blocked.setdefault(shape, {})
        for tenant in list(self._open):
            queue = self._open[tenant].pop(shape, None)
            if queue is not None:
                aside[tenant] = queue
            if not self._open[tenant]:
                del self._open[tenant]

    def unblock(self, rows: Iterable[int]) -> None:
        """Something was given back there: what a task of could fit is looked at again."""
        for row in rows:
            now = _NodeNow(self.room, row)
            for shape in [shape for shape in self._blocked if now.takes(self._kinds[shape])]:
                for tenant, queue in self._blocked.pop(shape).items():
                    self._open.setdefault(tenant, {})[shape] = queue


class _NodeNow:
    """What is free on one node, as plain numbers: it is compared with hundreds of shapes."""

    def __init__(self, room: Room, row: int) -> None:
        arrays = room.arrays
        self._cpu_milli = int(arrays.cpu_milli_free[row])
        self._memory_mib = int(arrays.memory_mib_free[row])
        self._model_bit = 1 << int(arrays.model[row])
        self._gpu_milli = sorted(arrays.gpu_milli_free[row].tolist(), reverse=True)

    def takes(self, kind: Kind) -> bool:
        if kind.cpu_milli > self._cpu_milli or kind.memory_mib > self._memory_mib:
            return False
        if not kind.gpus:
            return True
        enough = len(self._gpu_milli) >= kind.gpus and self._gpu_milli[kind.gpus - 1] >= kind.gpu_milli
        return enough and bool(kind.models & self._model_bit)


# What would plain schedulers do? FIFO, bin packing and dominant resource fairness, on the same room and arrivals.
#
# They know no classes, no reservations, no preemption and no topology. Residency and capacity bind them like everybody.


class _Plain:
    """What the three share: the book of what is held."""

    best_fit = True
    kept: Mapping[int, str] = MappingProxyType({})

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.room: Room = open_room(hub)
        self._held: dict[str, Start] = {}

    def _start(self, request: PlacementRequest) -> Start | None:
        if request.countries_allowed and self.hub.country not in request.countries_allowed:
            return None
        slots = fit(self.room, request, best=self.best_fit)
        if slots is None:
            return None
        for slot in slots:
            self.room.take(request.needs, slot, exclusive=request.topology.exclusive)
        start = Start(request, slots)
        self._held[request.id] = start
        return start

    def _give_back(self, request_id: str) -> Start:
        start = self._held.pop(request_id, None)
        if start is None:
            raise InvariantBroken("only held GPUs are freed", request_id)
        for slot in start.slots:
            self.room.give_back(start.request.needs, slot, exclusive=start.request.topology.exclusive)
        return start


class FirstComeFirstServed(_Plain):
    """Strictly in order of arrival, first fit: whoever is first and does not fit keeps all others waiting."""

    best_fit = False

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._waiting: OrderedDict[str, PlacementRequest] = OrderedDict()

    def submit(self, request: PlacementRequest, *, now_s: float) -> None:
        self._waiting[request.id] = request

    def withdraw(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def ended(self, request_id: str, *, now_s: float) -> None:
        self._give_back(request_id)

    def decide(self, *, now_s: float, starts_max: int) -> Decisions:
        starts: list[Start] = []
        while self._waiting and len(starts) < starts_max:
            start = self._start(next(iter(self._waiting.values())))
            if start is None:
                return Decisions(tuple(starts))
            self._waiting.popitem(last=False)
            starts.append(start)
        return Decisions(tuple(starts), complete=not self._waiting)


class BinPack(_Plain):
    """Best fit in order of arrival; whoever does not fit is passed over until something fits him (backfill)."""

    by_tenant = False

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._backlog = Backlog(self.room)
        self._held_by: dict[str, list[float]] = {}
        arrays = self.room.arrays
        self._whole = (arrays.gpu_milli_total, int(arrays.cpu_milli.sum()), int(arrays.memory_mib.sum()))

    def submit(self, request: PlacementRequest, *, now_s: float) -> None:
        self._backlog.add(self._queue_of(request), request)

    def withdraw(self, request_id: str) -> None:
        self._backlog.remove(request_id)

    def ended(self, request_id: str, *, now_s: float) -> None:
        start = self._give_back(request_id)
        self._count(start, -1)
        self._backlog.unblock({slot.row for slot in start.slots})

    def decide(self, *, now_s: float, starts_max: int) -> Decisions:
        starts: list[Start] = []
        while len(starts) < starts_max:
            tenant = min(self._backlog.tenants(), key=self._dominant_share, default=None)
            if tenant is None:
                return Decisions(tuple(starts))
            request = self._backlog.oldest(tenant)
            start = self._start(request)
            if start is None:
                self._backlog.block(request)
                continue
            self._backlog.remove(request.id)
            self._count(start, 1)
            starts.append(start)
        return Decisions(tuple(starts), complete=False)

    def _queue_of(self, request: PlacementRequest) -> str:
        return request.tenant if self.by_tenant else ""

    def _dominant_share(self, tenant: str) -> tuple[float, str]:
        return max(self._held_by.get(tenant, (0.0,))), tenant

    def _count(self, start: Start, sign: int) -> None:
        needs = start.request.needs
        requested = (self.room.kind(needs).gpu_milli_total, needs.cpus * 1000, needs.memory_gb * MIB_PER_GB)
        held = self._held_by.setdefault(self._queue_of(start.request), [0.0, 0.0, 0.0])
        for index, (amount, whole) in enumerate(zip(requested, self._whole, strict=True)):
            held[index] += sign * len(start.slots) * amount / whole


class DominantFair(BinPack):
    """Dominant resource fairness: the tenant with the smallest largest share is next; best fit, with backfill."""

    by_tenant = True


# Who decides at a simulated hub? The real scheduler, or one of the plain ones that it is compared with.


FleetPolicy = Literal["harch", "blind", "fifo", "binpack", "drf"]
FLEET_POLICIES: tuple[FleetPolicy, ...] = get_args(FleetPolicy)


@dataclass(frozen=True, slots=True)
class Start:
    """A request was given these slots, in rank order."""

    request: PlacementRequest
    slots: tuple[TaskSlot, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What one round decided: who starts, and who must stop for somebody of a higher class."""

    starts: tuple[Start, ...] = ()
    stops: tuple[str, ...] = ()
    complete: bool = True  # False: the limit was reached, ask again at once


class HubPolicy(Protocol):
    """One hub's decisions. Starts are booked in `room` when they are answered."""

    room: Room

    @property
    def kept(self) -> Mapping[int, str]:
        """Rows of nodes that are kept, and the request that they are kept for."""
        ...

    def submit(self, request: PlacementRequest, *, now_s: float) -> None: ...

    def withdraw(self, request_id: str) -> None: ...

    def ended(self, request_id: str, *, now_s: float) -> None: ...

    def decide(self, *, now_s: float, starts_max: int) -> Decisions: ...


def new_policy(name: FleetPolicy) -> Callable[[Hub], HubPolicy]:
    """The maker of one policy per hub. Imports what it needs only: plain policies need no compiled kernels."""
    if name in ("harch", "blind"):
        return HarchPolicy if name == "harch" else BlindPolicy

    plain: dict[str, Callable[[Hub], HubPolicy]] = {
        "fifo": FirstComeFirstServed,
        "binpack": BinPack,
        "drf": DominantFair,
    }
    return plain[name]


def open_room(hub: Hub) -> Room:
    """The room of a hub whose nodes are all served."""
    room = Room(hub)
    room.serve((node.id for node in hub.nodes), True)
    return room
