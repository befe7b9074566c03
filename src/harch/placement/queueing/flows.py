"""Who waits for what, and how much has each had?

Classes, tenants, groups of requests that fit or fail alike; dominant shares and the virtual times that grow with
them.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import MIB_PER_GB, Room
from harch.workloads.spec import Resources, SchedulingClass

_SHARES_MAX = 4096  # remembered


@dataclass(frozen=True, slots=True)
class Capacity:
    """The whole of a hub, as the denominator of every share."""

    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    storage_mib: int
    room: Room  # knows what a share takes
    _shares: dict[Resources, float] = field(default_factory=dict)  # of one task

    @classmethod
    def of(cls, room: Room) -> Capacity:
        arrays = room.arrays
        return cls(
            arrays.gpu_milli_total,
            int(arrays.cpu_milli.sum()),
            int(arrays.memory_mib.sum()),
            int(room.storage_mib.sum()),
            room,
        )

    def __deepcopy__(self, memo: object) -> Self:
        """The whole of a hub never changes, and neither does what a request takes of it."""
        return self

    def share(self, request: PlacementRequest, tasks: int) -> float:
        """The largest of its shares of GPUs, CPUs, memory and storage."""
        share = self._shares.get(request.needs)
        if share is None:
            if len(self._shares) >= _SHARES_MAX:
                self._shares.clear()
            share = self._shares[request.needs] = self._share(request.needs)
        return tasks * share

    def _share(self, needs: Resources) -> float:
        return max(
            self.room.kind(needs).gpu_milli_total / max(self.gpu_milli, 1),
            needs.cpus * 1000 / max(self.cpu_milli, 1),
            needs.memory_gb * MIB_PER_GB / max(self.memory_mib, 1),
            needs.storage_gb * MIB_PER_GB / max(self.storage_mib, 1),
        )


@dataclass(slots=True)
class ShareMeter:
    """The virtual time `v` of one flow or class: hub-seconds held, divided by its weight."""

    v: float = 0.0
    share_held: float = 0.0
    holders: int = 0

    def advance(self, seconds: float, weight: float) -> None:
        self.v += self.share_held * seconds / weight

    def ahead(self, lookahead_s: float, weight: float) -> float:
        """Where `v` will be if nothing changes: what the serving order compares."""
        return self.v + self.share_held * lookahead_s / weight

    def join(self, v_system: float, memory: float) -> None:
        """On becoming backlogged: no credit is hoarded, and debt beyond `memory` is forgiven."""
        self.v = min(max(self.v, v_system), v_system + memory)

    def take(self, share: float) -> None:
        self.share_held += share
        self.holders += 1

    def give_back(self, share: float) -> None:
        self.holders -= 1
        # Rounding must not leave a share behind when nothing is held.
        self.share_held = self.share_held - share if self.holders else 0.0


# Who waits for what? Classes of tenants, tenants with groups, groups of requests that fit or fail alike.


_DURATION_BUCKETS_PER_OCTAVE = 0.5
_DEAD_KEPT_MAX = 16  # so that small groups are not swept at every removal


class Rank(NamedTuple):
    """Order inside a flow. Arrival numbers are unique, so no two ranks are equal."""

    urgency: int  # minus the priority
    since_s: float
    arrival: int


class WaitingRequest(NamedTuple):
    """One request in the queue."""

    rank: Rank
    request: PlacementRequest

    def __deepcopy__(self, memo: object) -> Self:
        return self


class RequestGroup:
    """Requests of one flow that fit or fail alike, in order of rank.

    Removed ones are skipped, and swept out once they are the larger part. A sweep makes a new list, so an iteration
    that has begun goes on, and sees every removal.
    """

    __slots__ = ("_entries", "_first", "_live", "index", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.index = -1  # among those whose heads did not fit (`blocked`); -1: is not one of them
        self._entries: list[WaitingRequest] = []
        self._first = 0  # nothing before it is live
        self._live: dict[str, WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def head(self) -> WaitingRequest:
        """The first; a group that is kept has one."""
        return self._entries[self._first]

    def __iter__(self) -> Iterator[WaitingRequest]:
        entries, live = self._entries, self._live
        for index in range(self._first, len(entries)):
            entry = entries[index]
            if live.get(entry.request.id) is entry:
                yield entry

    def add(self, waiting: WaitingRequest) -> None:
        late = bool(self._entries) and self._entries[-1].rank > waiting.rank
        self._live[waiting.request.id] = waiting
        self._entries.append(waiting)
        if late:  # rare: something that keeps the place it had before
            self._entries, self._first = sorted(self._live.values(), key=lambda entry: entry.rank), 0

    def remove(self, request_id: str) -> None:
        del self._live[request_id]
        if len(self._entries) > 2 * len(self._live) + _DEAD_KEPT_MAX:
            self._entries, self._first = list(self), 0
        while self._first < len(self._entries):
            entry = self._entries[self._first]
            if self._live.get(entry.request.id) is entry:
                break
            self._first += 1


@dataclass(slots=True)
class TenantFlow:
    """One tenant's requests of one class."""

    turn_class: SchedulingClass
    tenant: str
    weight: float
    number: int  # no other flow has it
    meter: ShareMeter = field(default_factory=ShareMeter)
    clock_s: float = 0.0  # of its lane, when `meter` was last advanced
    groups: dict[Hashable, RequestGroup] = field(default_factory=dict)
    group_of: dict[str, RequestGroup] = field(default_factory=dict)  # by request
    to_try: dict[Hashable, RequestGroup] = field(default_factory=dict)  # those of `groups` that are not blocked

    def advance(self, lane_clock_s: float) -> None:
        if lane_clock_s != self.clock_s:
            self.meter.advance(lane_clock_s - self.clock_s, self.weight)
            self.clock_s = lane_clock_s

    def add(self, waiting: WaitingRequest) -> RequestGroup:
        """The group that it waits in."""
        key = group_key(waiting.request)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self.to_try[key] = RequestGroup(key)
        group.add(waiting)
        self.group_of[waiting.request.id] = group
        return group

    def remove(self, request: PlacementRequest) -> RequestGroup:
        """The group that it waited in; without anybody else it is forgotten."""
        group = self.group_of.pop(request.id)
        group.remove(request.id)
        if not group:
            del self.groups[group.key]
            self.to_try.pop(group.key, None)
        return group


@dataclass(slots=True)
class ClassLane:
    """One class. Its clock runs only while somebody of it waits: what nobody else wanted is not held against anyone."""

    turn_class: SchedulingClass
    meter: ShareMeter = field(default_factory=ShareMeter)
    clock_s: float = 0.0
    v_system: float = 0.0  # where flows join
    flows: dict[str, TenantFlow] = field(default_factory=dict)
    backlogged: dict[str, TenantFlow] = field(default_factory=dict)  # those of `flows` that wait
    flows_made: int = 0

    def flow(self, tenant: str, weight_of: Callable[[str], float]) -> TenantFlow:
        flow = self.flows.get(tenant)
        if flow is None:
            self.flows_made += 1
            number = self.flows_made * len(CLASS_ORDER) + CLASS_ORDER.index(self.turn_class)
            flow = TenantFlow(self.turn_class, tenant, weight_of(tenant), number, clock_s=self.clock_s)
            self.flows[tenant] = flow
        flow.advance(self.clock_s)
        return flow

    def join(self, flow: TenantFlow, memory_s: float) -> None:
        """`flow` becomes backlogged. Costs one look at each flow that already is."""
        for other in self.backlogged.values():
            other.advance(self.clock_s)
        lowest = min((other.meter.v for other in self.backlogged.values()), default=self.v_system)
        self.v_system = max(self.v_system, lowest)
        flow.meter.join(self.v_system, memory_s / flow.weight)
        self.backlogged[flow.tenant] = flow

    def leave(self, flow: TenantFlow) -> None:
        """Forgets a flow that neither waits nor holds, unless it is in debt."""
        if not flow.groups:
            self.backlogged.pop(flow.tenant, None)
            if not flow.meter.holders and flow.meter.v <= self.v_system:
                self.flows.pop(flow.tenant, None)


def group_key(request: PlacementRequest) -> Hashable:
    """Requests of one flow that fit or fail alike.

    The promised duration decides over backfill, so it is part of the key, but only by factors of four: the number of
    groups is what a round costs.
    """
    bound_s = request.duration_s_max
    bucket = -1 if bound_s is None else int(math.log2(max(bound_s, 1.0)) * _DURATION_BUCKETS_PER_OCTAVE)
    return request.priority, bucket, request.shape
