"""What would plain schedulers do? FIFO, bin packing and dominant resource fairness, on the same room and arrivals.

They know no classes, no reservations, no preemption and no topology. Residency and capacity bind them like everybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement.request import Request
from harch.placement.room import MIB_PER_GB, Room
from harch.simulate.backlog import Backlog
from harch.simulate.fitting import fit
from harch.simulate.policies import Decisions, Start, open_room


class _Plain:
    """What the three share: the book of what is held."""

    best_fit = True
    kept: Mapping[int, str] = MappingProxyType({})

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.room: Room = open_room(hub)
        self._held: dict[str, Start] = {}

    def _start(self, request: Request) -> Start | None:
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
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def submit(self, request: Request, *, now_s: float) -> None:
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

    def submit(self, request: Request, *, now_s: float) -> None:
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

    def _queue_of(self, request: Request) -> str:
        return request.tenant if self.by_tenant else ""

    def _dominant_share(self, tenant: str) -> tuple[float, str]:
        return max(self._held_by.get(tenant, (0.0,))), tenant

    def _count(self, start: Start, sign: int) -> None:
        needs = start.request.needs
        asked = (self.room.kind(needs).gpu_milli_total, needs.cpus * 1000, needs.memory_gb * MIB_PER_GB)
        held = self._held_by.setdefault(self._queue_of(start.request), [0.0, 0.0, 0.0])
        for index, (amount, whole) in enumerate(zip(asked, self._whole, strict=True)):
            held[index] += sign * len(start.slots) * amount / whole


class DominantFair(BinPack):
    """Dominant resource fairness: the tenant with the smallest largest share is next; best fit, with backfill."""

    by_tenant = True
