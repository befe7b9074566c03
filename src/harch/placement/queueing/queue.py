"""Who waits, and whose turn is it?

Weighted fair queueing over classes, and over the tenants of each class; and where a request stands.
"""

# harch: pure

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Self

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.placement.policy.shapes import Bools
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import (
    Capacity,
    ClassLane,
    Rank,
    RequestGroup,
    ShareMeter,
    TenantFlow,
    WaitingRequest,
)
from harch.placement.queueing.quotas import QuotaBook, QuotaUse
from harch.placement.queueing.round import AgedTurn, FlowTurn, LaneTurn, Round, RoundRetries
from harch.placement.queueing.settings import CLASS_ORDER, LOWEST_CLASS, QueueSettings
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import SchedulingClass


@dataclass(frozen=True, slots=True)
class Position:
    """Where a request stands, for explanations. Virtual times are hub-seconds per weight; smaller goes first."""

    turn_class: SchedulingClass
    tenant: str
    class_weight: float  # with the floor, if that raises it now
    class_v: float
    tenant_weight: float
    tenant_v: float
    place_in_flow: int  # 1 is next of its class and tenant
    waiting_in_flow: int
    classes_ahead: tuple[SchedulingClass, ...]  # that wait, and are served before its class as things stand
    tenants_ahead: int  # of its class
    waited_s: float
    aged_in_s: float  # 0: it is in the lane of the aged
    aged_ahead: int  # who is in that lane and has waited longer

    def describe(self) -> str:
        text = (
            f"{self.place_in_flow} of {self.waiting_in_flow} pending in class {self.turn_class} of "
            f"{self.tenant or 'this hub'}"
        )
        if self.tenants_ahead:
            text += f"; {self.tenants_ahead} tenants of its class had a smaller share and come first"
        if self.classes_ahead:
            text += f"; classes ahead: {', '.join(self.classes_ahead)}"
        return text if self.aged_in_s else f"{text}; it has waited long: at most {self.aged_ahead} are ahead of it"


# Who waits, and whose turn is it? Weighted fair queueing over classes, and over the tenants of each class.
#
# Everybody has a virtual time: `v += dominant share held * seconds / weight`. The class with the smallest is served,
# and
# in it the tenant with the smallest; so over time each gets service in proportion to its weight, however many requests
# it sends. Classes come first, so that a class does not gain by having more tenants.
#
# No request starves. Whoever has waited `starvation_s` is also in the lane of the aged, which serves the longest
# waiting
# first and gets at least `aged_share` of the service while somebody is in it. So on a hub that is kept busy, a request
# that fits when its turn comes is served within
#
#     starvation_s + (work_older + share_max * lookahead_s) / aged_share + duration_max
#
# where `work_older` is the work (share of the hub * seconds) of those who have waited longer, `share_max` the largest
# share of one of them and `duration_max` the time until something that it can use comes free. What arrives later does
# not
# appear in it. A request too large for what comes free piece by piece needs a reservation on top (`reservations`).


class _Holding(Struct, frozen=True, gc=False):
    request: PlacementRequest
    tasks: int
    share: float
    as_aged: bool

    def __deepcopy__(self, memo: object) -> Self:
        return self


_Weights = tuple[Mapping[SchedulingClass, float], float]


class TurnQueue:
    """Everything that waits or holds GPUs at one hub. Times must not go back; a step back counts as no time."""

    def __init__(self, settings: QueueSettings, room: Room) -> None:
        self.capacity = Capacity.of(room)
        self.settings = settings
        self._blocked = Blocked(room)
        self._lanes = {turn_class: ClassLane(turn_class) for turn_class in CLASS_ORDER}
        self._aged = ShareMeter()
        self._aged_backlogged = False
        self._served_as_aged: set[str] = set()  # by the last round
        self._waiting: dict[str, WaitingRequest] = {}
        self._holdings: dict[str, _Holding] = {}
        self._quotas = QuotaBook(settings, room)
        self._v_system = 0.0
        self._now_s = 0.0
        self._arrivals = 0
        self._weights_when: dict[tuple[bool, ...], _Weights] = {}  # by which classes wait, in the order of `_lanes`

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def waiting(self, request_id: str) -> PlacementRequest | None:
        entry = self._waiting.get(request_id)
        return None if entry is None else entry.request

    def is_behind_its_like(self, request_id: str) -> bool:
        """Waits behind another of its group, which a pass looks at in its stead."""
        entry = self._waiting.get(request_id)
        if entry is None:
            return False
        return self._group(entry.request).head is not entry

    def _group(self, request: PlacementRequest) -> RequestGroup:
        return self._lanes[request.turn_class].flows[request.tenant].group_of[request.id]

    # Changing

    def add(self, request: PlacementRequest, now_s: float, *, waiting_since_s: float | None = None) -> None:
        """Waits from now on; or since `waiting_since_s`, for what was waiting before a restart of the hub."""
        if request.id in self._waiting:
            return
        self._advance(now_s)
        lane = self._lanes[request.turn_class]
        if not lane.backlogged:
            self._join(lane)
        flow = lane.flow(request.tenant, self.settings.tenant_weight)
        if not flow.groups:
            lane.join(flow, self.settings.memory_s)
        self._arrivals += 1
        since_s = now_s if waiting_since_s is None else waiting_since_s
        waiting = WaitingRequest(Rank(-request.priority, since_s, self._arrivals), request)
        self._follow_head(flow, flow.add(waiting))
        self._waiting[request.id] = waiting
        self._quotas.waits(request, 1)

    def remove(self, request_id: str, now_s: float | None = None) -> None:
        """Waits no longer: cancelled, paused, or given GPUs."""
        if now_s is not None:
            self._advance(now_s)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            request = waiting.request
            lane = self._lanes[request.turn_class]
            flow = lane.flow(request.tenant, self.settings.tenant_weight)
            self._follow_head(flow, flow.remove(request))
            self._quotas.waits(request, -1)
            lane.leave(flow)

    def holds(self, request_id: str, request: PlacementRequest, tasks: int, now_s: float) -> None:
        """Was given GPUs for `tasks` tasks; it waits no longer."""
        if request_id in self._holdings:
            raise InvariantBroken("a request is given GPUs once", request_id)
        self._advance(now_s)
        as_aged = request_id in self._served_as_aged
        self._served_as_aged.discard(request_id)
        lane = self._lanes[request.turn_class]
        flow = lane.flow(request.tenant, self.settings.tenant_weight)
        # Whoever was served last marks where newcomers join, also while somebody who cannot be served lags behind.
        if not as_aged:
            self._v_system = max(self._v_system, lane.meter.v)
            lane.v_system = max(lane.v_system, flow.meter.v)
        share = self.capacity.share(request, tasks)
        lane.meter.take(share)
        flow.meter.take(share)
        if as_aged:
            self._aged.take(share)
        self._holdings[request_id] = _Holding(request, tasks, share, as_aged)
        self._quotas.holds(request, tasks)
        self.remove(request_id)

    def released(self, request_id: str, now_s: float) -> None:
        """Ended, or was preempted. To wait again it must be added again."""
        self._advance(now_s)
        held = self._holdings.pop(request_id, None)
        if held is None:
            return
        lane = self._lanes[held.request.turn_class]
        flow = lane.flow(held.request.tenant, self.settings.tenant_weight)
        lane.meter.give_back(held.share)
        flow.meter.give_back(held.share)
        if held.as_aged:
            self._aged.give_back(held.share)
        self._quotas.holds(held.request, -held.tasks)
        lane.leave(flow)

    def _follow_head(self, flow: TenantFlow, group: RequestGroup) -> None:
        if group.index >= 0:
            self._blocked.follow_head(flow, group)

    def _set_blocked(self, flow: TenantFlow, group: RequestGroup, blocked: bool) -> None:
        if blocked and group.index < 0:
            self._blocked.add(flow, group)
            del flow.to_try[group.key]
        elif group.index >= 0 and not blocked:
            self._blocked.remove(group)
            flow.to_try[group.key] = group

    def _unblock_all(self) -> None:
        for indices in self._blocked.by_flow(self._blocked.everybody).values():
            for index in indices:
                group = self._blocked.group_at(index)
                if group is not None:
                    self._set_blocked(self._blocked.flow_at(index), group, False)

    # Asking

    def in_order(
        self,
        now_s: float,
        may_fit: Callable[[Blocked], Bools] | None = None,
        *,
        passed_over: Collection[str] = (),
        idle_classes: Callable[[], Collection[SchedulingClass]] = tuple,
    ) -> Round:
        """One pass over everybody who waits. What it yields may be removed at once; nothing may be added meanwhile.

        `may_fit` says which of the blocked could use something that has come free; without it, all are tried again.
        Once somebody else took that, they are left out if there is nothing else to be done for their class
        (`idle_classes`). Of those of a flow that stay blocked only the first is in the pass: for its reservation, or
        for others to make room. It is left out, too, for classes that are `passed_over`.
        """
        self._advance(now_s)
        settings, lookahead_s, blocked = self.settings, self.settings.lookahead_s, self._blocked
        blocked.begin_pass()
        if may_fit is None:
            self._unblock_all()
        retries = RoundRetries(blocked, may_fit, idle_classes)
        weights, aged_weight = self._weights()
        since_s_max = now_s - settings.starvation_s
        aged = AgedTurn(0.0, aged_weight, since_s_max, retries)
        lanes = []
        turns: dict[int, FlowTurn] = {}
        for lane in self._lanes.values():
            lane_turn = LaneTurn(lane.meter.ahead(lookahead_s, weights[lane.turn_class]), weights[lane.turn_class])
            for flow in lane.backlogged.values():
                flow.advance(lane.clock_s)
                turn = FlowTurn(flow.meter.ahead(lookahead_s, flow.weight), flow, lane_turn, retries)
                turns[flow.number] = turn
                for group in flow.to_try.values():
                    aged.offer(turn.add(group))
            lanes.append(lane_turn)
        retries.deal_out(turns, aged)
        if len(blocked):
            for indices in blocked.by_flow(blocked.everybody & ~retries.at_first).values():
                flow, first = blocked.flow_at(indices[0]), blocked.group_at(indices[0])
                if first is not None and flow.turn_class not in passed_over:
                    aged.offer(turns[flow.number].add(first))
        for turn in turns.values():
            turn.begin()
        for lane_turn in lanes:
            heapq.heapify(lane_turn.flows)
        has_aged = aged.has_any or blocked.has_since(since_s_max)
        if has_aged:
            if not self._aged_backlogged:
                self._aged.join(self._v_now(), settings.memory_s / aged_weight)
            # Gangs that fit nowhere keep this lane busy for days. Without this it would hoard the service that it could
            # not use, and then be served before everybody else for as long.
            self._aged.v = max(self._aged.v, self._v_now())
        self._aged_backlogged = has_aged
        aged.key = self._aged.ahead(lookahead_s, aged_weight)
        self._served_as_aged = set()
        return Round(lanes, aged, self.capacity, lookahead_s, self._served_as_aged, retries, self._set_blocked)

    def quota_rejection(self, request: PlacementRequest, tasks: int | None = None) -> Rejection | None:
        """Why its tenant may not hold so many tasks more now; all of them, if not said otherwise."""
        return self._quotas.rejection_to_run(request, request.tasks if tasks is None else tasks)

    def rejection_to_wait(
        self, request: PlacementRequest, replaces: PlacementRequest | None = None
    ) -> Rejection | None:
        """Why its tenant may not let it wait here, in the place of what it `replaces`: for admission, before `add`."""
        return self._quotas.rejection_to_wait(request, replaces)

    def quota_rejection_for_ever(self, request: PlacementRequest) -> Rejection | None:
        """Why its tenant may never hold it, whatever ends."""
        return self._quotas.rejection_for_ever(request)

    def quota_uses(self) -> list[QuotaUse]:
        """Costs a look at everything that runs: for people who ask."""
        held = ((holding.request, holding.tasks) for holding in self._holdings.values())
        pending = {
            (tenant, turn_class): len(flow.group_of)
            for turn_class, lane in self._lanes.items()
            for tenant, flow in lane.flows.items()
            if flow.group_of
        }
        return self._quotas.uses(held, pending)

    def first_of_its_like(self, request_id: str) -> str | None:
        """Who is served before it and fits or fails like it; None if that is itself."""
        if not self.is_behind_its_like(request_id):
            return None
        return self._group(self._waiting[request_id].request).head.request.id

    def position(self, request_id: str, now_s: float) -> Position | None:
        """None if it does not wait. Costs a look at everything that waits: for people who ask, not for every round."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return None
        self._advance(now_s)
        settings, rank, request = self.settings, waiting.rank, waiting.request
        weights, _ = self._weights()
        lane = self._lanes[request.turn_class]
        for other in lane.backlogged.values():
            other.advance(lane.clock_s)
        flow = lane.backlogged[request.tenant]
        in_flow = [entry.rank for group in flow.groups.values() for entry in group]
        since_s_max = now_s - settings.starvation_s

        def class_key(turn_class: SchedulingClass) -> float:
            return self._lanes[turn_class].meter.ahead(settings.lookahead_s, weights[turn_class])

        def tenant_key(tenant: str) -> float:
            other = lane.backlogged[tenant]
            return other.meter.ahead(settings.lookahead_s, other.weight)

        return Position(
            turn_class=request.turn_class,
            tenant=request.tenant,
            class_weight=weights[request.turn_class],
            class_v=lane.meter.v,
            tenant_weight=flow.weight,
            tenant_v=flow.meter.v,
            place_in_flow=1 + sum(other < rank for other in in_flow),
            waiting_in_flow=len(in_flow),
            classes_ahead=tuple(
                c for c in CLASS_ORDER if self._lanes[c].backlogged and class_key(c) < class_key(request.turn_class)
            ),
            tenants_ahead=sum(tenant_key(tenant) < tenant_key(request.tenant) for tenant in lane.backlogged),
            waited_s=now_s - rank.since_s,
            aged_in_s=max(0.0, rank.since_s - since_s_max),
            aged_ahead=sum(
                entry.rank[1:] < rank[1:] and entry.rank.since_s <= since_s_max for entry in self._waiting.values()
            ),
        )

    # Virtual time

    def _advance(self, now_s: float) -> None:
        """Counts what was held since the last event, but only while somebody waited for it."""
        seconds = now_s - self._now_s
        if seconds <= 0:
            return
        self._now_s = now_s
        if not self._waiting:
            return
        weights, aged_weight = self._weights()
        for lane in self._lanes.values():
            lane.meter.advance(seconds, weights[lane.turn_class])
            if lane.backlogged:
                lane.clock_s += seconds
        self._aged.advance(seconds, aged_weight)

    def _weights(self) -> _Weights:
        """The weights of the classes and of the aged now: they change with which classes wait."""
        waiting = tuple([bool(lane.backlogged) for lane in self._lanes.values()])
        weights = self._weights_when.get(waiting)
        if weights is None:
            weights = self._weights_when[waiting] = self._weigh()
        return weights

    def _weigh(self) -> _Weights:
        """The floors are weights too: raised until their share of those who wait is reached."""
        settings = self.settings
        weights = dict(settings.class_weights)
        others = sum(weights[c] for c in CLASS_ORDER if c is not LOWEST_CLASS and self._lanes[c].backlogged)
        floor = settings.training_floor_share
        weights[LOWEST_CLASS] = max(weights[LOWEST_CLASS], others * floor / (1 - floor))
        waiting = sum(weights[c] for c in CLASS_ORDER if self._lanes[c].backlogged)
        return weights, settings.aged_share * (waiting or sum(weights.values()))

    def _v_now(self) -> float:
        lowest = min((lane.meter.v for lane in self._lanes.values() if lane.backlogged), default=self._v_system)
        self._v_system = max(self._v_system, lowest)
        return self._v_system

    def _join(self, lane: ClassLane) -> None:
        weights, _ = self._weights()
        lane.meter.join(self._v_now(), self.settings.memory_s / weights[lane.turn_class])
