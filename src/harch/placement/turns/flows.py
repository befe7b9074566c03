"""Who waits for what? Classes of tenants, tenants with groups, groups of requests that fit or fail alike."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from harch.placement.request import Request
from harch.placement.turns.meter import Meter
from harch.placement.turns.settings import CLASS_ORDER
from harch.workloads.spec import SchedulingClass

_DURATION_BUCKETS_PER_OCTAVE = 0.5
_DEAD_KEPT_MAX = 16  # so that small groups are not swept at every removal


class Rank(NamedTuple):
    """Order inside a flow. Arrival numbers are unique, so no two ranks are equal."""

    urgency: int  # minus the priority
    since_s: float
    arrival: int


class Waiting(NamedTuple):
    """One request in the queue."""

    rank: Rank
    request: Request

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Group:
    """Requests of one flow that fit or fail alike, in order of rank.

    Removed ones are skipped, and swept out once they are the larger part. A sweep makes a new list, so an iteration
    that has begun goes on, and sees every removal.
    """

    __slots__ = ("_entries", "_first", "_live", "index", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.index = -1  # among those whose heads did not fit (`blocked`); -1: is not one of them
        self._entries: list[Waiting] = []
        self._first = 0  # nothing before it is live
        self._live: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def head(self) -> Waiting:
        """The first; a group that is kept has one."""
        return self._entries[self._first]

    def __iter__(self) -> Iterator[Waiting]:
        entries, live = self._entries, self._live
        for index in range(self._first, len(entries)):
            entry = entries[index]
            if live.get(entry.request.id) is entry:
                yield entry

    def add(self, waiting: Waiting) -> None:
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
class Flow:
    """One tenant's requests of one class."""

    turn_class: SchedulingClass
    tenant: str
    weight: float
    number: int  # no other flow has it
    meter: Meter = field(default_factory=Meter)
    clock_s: float = 0.0  # of its lane, when `meter` was last advanced
    groups: dict[Hashable, Group] = field(default_factory=dict)
    to_try: dict[Hashable, Group] = field(default_factory=dict)  # those of `groups` that are not blocked

    def advance(self, lane_clock_s: float) -> None:
        self.meter.advance(lane_clock_s - self.clock_s, self.weight)
        self.clock_s = lane_clock_s

    def add(self, waiting: Waiting) -> Group:
        """The group that it waits in."""
        key = group_key(waiting.request)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self.to_try[key] = Group(key)
        group.add(waiting)
        return group

    def remove(self, request: Request) -> Group:
        """The group that it waited in; without anybody else it is forgotten."""
        group = self.groups[group_key(request)]
        group.remove(request.id)
        if not group:
            del self.groups[group.key]
            self.to_try.pop(group.key, None)
        return group


@dataclass(slots=True)
class Lane:
    """One class. Its clock runs only while somebody of it waits: what nobody else wanted is not held against anyone."""

    turn_class: SchedulingClass
    meter: Meter = field(default_factory=Meter)
    clock_s: float = 0.0
    v_system: float = 0.0  # where flows join
    flows: dict[str, Flow] = field(default_factory=dict)
    backlogged: dict[str, Flow] = field(default_factory=dict)  # those of `flows` that wait
    flows_made: int = 0

    def flow(self, tenant: str, weight: float) -> Flow:
        flow = self.flows.get(tenant)
        if flow is None:
            self.flows_made += 1
            number = self.flows_made * len(CLASS_ORDER) + CLASS_ORDER.index(self.turn_class)
            flow = Flow(self.turn_class, tenant, weight, number, clock_s=self.clock_s)
            self.flows[tenant] = flow
        flow.advance(self.clock_s)
        return flow

    def join(self, flow: Flow, memory_s: float) -> None:
        """`flow` becomes backlogged. Costs one look at each flow that already is."""
        for other in self.backlogged.values():
            other.advance(self.clock_s)
        lowest = min((other.meter.v for other in self.backlogged.values()), default=self.v_system)
        self.v_system = max(self.v_system, lowest)
        flow.meter.join(self.v_system, memory_s / flow.weight)
        self.backlogged[flow.tenant] = flow

    def leave(self, flow: Flow) -> None:
        """Forgets a flow that neither waits nor holds, unless it is in debt."""
        if not flow.groups:
            self.backlogged.pop(flow.tenant, None)
            if not flow.meter.holders and flow.meter.v <= self.v_system:
                self.flows.pop(flow.tenant, None)


def group_key(request: Request) -> Hashable:
    """Requests of one flow that fit or fail alike.

    The promised duration decides over backfill, so it is part of the key, but only by factors of four: the number of
    groups is what a round costs.
    """
    bound_s = request.duration_s_max
    bucket = -1 if bound_s is None else int(math.log2(max(bound_s, 1.0)) * _DURATION_BUCKETS_PER_OCTAVE)
    return request.priority, bucket, request.shape
