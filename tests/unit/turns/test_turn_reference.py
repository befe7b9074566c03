"""The queue against a plain one that keeps no heaps, no groups and no lanes, and adds everything up anew.

All weights, shares and times are such that sums are exact, so both must agree on every tie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from harch.placement.policy.shapes import Bools
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.settings import CLASS_ORDER, QueueSettings
from harch.placement.request import PlacementRequest
from harch.workloads.spec import SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of

GPUS = 32
LOOKAHEAD_S, MEMORY_S, STARVATION_S = 64.0, 4.0, 16.0
SETTINGS = QueueSettings(
    class_weights={INFERENCE: 4.0, INTERACTIVE: 4.0, TRAINING: 1.0},
    tenant_weights={"b": 2.0},
    training_floor_share=0.5,
    aged_share=0.25,
    lookahead_s=LOOKAHEAD_S,
    memory_s=MEMORY_S,
    starvation_s=STARVATION_S,
)
BUCKETS = {None: -1, 0.5: 0, 1.0: 0, 3.9: 0, 4.0: 1, 15.9: 1, 16.0: 2}  # promised durations, by factors of four
Rank = tuple[int, float, int]
Flow = tuple[SchedulingClass, str]


def tenant_weight(tenant: str) -> float:
    return 2.0 if tenant == "b" else 1.0


@dataclass
class PlainQueue:
    """The rules of `TurnQueue`, each said once."""

    now_s: float = 0.0
    waiting: dict[str, tuple[Rank, PlacementRequest]] = field(default_factory=dict)
    holding: dict[str, tuple[Flow, float, bool]] = field(default_factory=dict)  # flow, share, as aged
    class_v: defaultdict[SchedulingClass, float] = field(default_factory=lambda: defaultdict(float))
    flow_v: defaultdict[Flow, float] = field(default_factory=lambda: defaultdict(float))
    aged_v: float = 0.0
    class_joins_v: float = 0.0
    flow_joins_v: defaultdict[SchedulingClass, float] = field(default_factory=lambda: defaultdict(float))
    has_aged: bool = False
    served_as_aged: set[str] = field(default_factory=set)
    blocked: set[Hashable] = field(default_factory=set)
    arrivals: int = 0

    # What is waited for and held

    def flows(self) -> set[Flow]:
        return {(request.turn_class, request.tenant) for _, request in self.waiting.values()}

    def classes(self) -> set[SchedulingClass]:
        return {turn_class for turn_class, _ in self.flows()}

    def weights(self) -> dict[SchedulingClass, float]:
        others = sum(4.0 for turn_class in self.classes() if turn_class is not TRAINING)
        return {INFERENCE: 4.0, INTERACTIVE: 4.0, TRAINING: max(1.0, others)}  # half of all

    def aged_weight(self) -> float:
        weights = self.weights()
        return 0.25 * (sum(weights[turn_class] for turn_class in self.classes()) or sum(weights.values()))

    def held(self, chosen: Callable[[Flow, bool], bool]) -> float:
        return sum(share for flow, share, aged in self.holding.values() if chosen(flow, aged))

    def group(self, request: PlacementRequest) -> Hashable:
        bucket = BUCKETS[request.duration_s_max]
        return request.turn_class, request.tenant, request.priority, bucket, request.needs.gpus, request.tasks

    # Time

    def advance(self, now_s: float) -> None:
        seconds, self.now_s = max(0.0, now_s - self.now_s), max(now_s, self.now_s)
        if not self.waiting:
            return
        weights, classes = self.weights(), self.classes()
        for turn_class in CLASS_ORDER:
            self.class_v[turn_class] += (
                self.held(lambda flow, _, c=turn_class: flow[0] is c) * seconds / weights[turn_class]
            )
        for flow in {flow for flow, _, _ in self.holding.values()}:
            if flow[0] in classes:
                self.flow_v[flow] += self.held(lambda other, _, f=flow: other == f) * seconds / tenant_weight(flow[1])
        self.aged_v += self.held(lambda _, aged: aged) * seconds / self.aged_weight()

    def joins_v(self) -> float:
        lowest = min((self.class_v[turn_class] for turn_class in self.classes()), default=self.class_joins_v)
        self.class_joins_v = max(self.class_joins_v, lowest)
        return self.class_joins_v

    # Changes

    def add(self, request: PlacementRequest, now_s: float, since_s: float | None) -> None:
        if request.id in self.waiting:
            return
        self.advance(now_s)
        flow = (request.turn_class, request.tenant)
        if request.turn_class not in self.classes():
            at, most = self.joins_v(), MEMORY_S / self.weights()[request.turn_class]
            self.class_v[request.turn_class] = min(max(self.class_v[request.turn_class], at), at + most)
        if flow not in self.flows():
            others = [self.flow_v[other] for other in self.flows() if other[0] is request.turn_class]
            joins_v = max(self.flow_joins_v[flow[0]], min(others, default=0.0))
            self.flow_joins_v[flow[0]] = joins_v
            self.flow_v[flow] = min(max(self.flow_v[flow], joins_v), joins_v + MEMORY_S / tenant_weight(flow[1]))
        self.arrivals += 1
        self.waiting[request.id] = ((-request.priority, now_s if since_s is None else since_s, self.arrivals), request)

    def remove(self, request_id: str) -> None:
        _, request = self.waiting.pop(request_id)
        if not any(self.group(other) == self.group(request) for _, other in self.waiting.values()):
            self.blocked.discard(self.group(request))
        self.forget((request.turn_class, request.tenant))

    def forget(self, flow: Flow) -> None:
        """Who neither waits nor holds nor owes starts anew when it comes again."""
        rests = flow not in self.flows() and not self.held(lambda other, _: other == flow)
        if rests and self.flow_v[flow] <= self.flow_joins_v[flow[0]]:
            del self.flow_v[flow]

    def holds(self, request: PlacementRequest, now_s: float) -> None:
        self.advance(now_s)
        flow, as_aged = (request.turn_class, request.tenant), request.id in self.served_as_aged
        self.served_as_aged.discard(request.id)
        if not as_aged:
            self.class_joins_v = max(self.class_joins_v, self.class_v[flow[0]])
            self.flow_joins_v[flow[0]] = max(self.flow_joins_v[flow[0]], self.flow_v[flow])
        self.holding[request.id] = flow, request.tasks * request.needs.gpus / GPUS, as_aged
        if request.id in self.waiting:
            self.remove(request.id)

    def released(self, request_id: str, now_s: float) -> None:
        self.advance(now_s)
        flow, _, _ = self.holding.pop(request_id)
        self.forget(flow)

    # Order

    def keys(self) -> tuple[dict[SchedulingClass, float], dict[Flow, float]]:
        weights = self.weights()
        classes = {
            turn_class: self.class_v[turn_class]
            + self.held(lambda flow, _, c=turn_class: flow[0] is c) * LOOKAHEAD_S / weights[turn_class]
            for turn_class in CLASS_ORDER
        }
        flows = {
            flow: self.flow_v[flow]
            + self.held(lambda other, _, f=flow: other == f) * LOOKAHEAD_S / tenant_weight(flow[1])
            for flow in self.flows()
        }
        return classes, flows

    def serve(
        self,
        now_s: float,
        may_fit: Callable[[PlacementRequest], bool] | None,
        passed_over: set[SchedulingClass],
        idle: set[SchedulingClass],
    ) -> Iterator[tuple[PlacementRequest, bool, bool]]:
        """Each in its turn, and whether it is blocked or a retry. It was skipped if it does not hold anything then."""
        self.advance(now_s)
        if may_fit is None:
            self.blocked.clear()
        since_s_max = now_s - STARVATION_S
        retries = {
            self.group(self.head(group)[1])
            for group in self.blocked
            if may_fit is not None and may_fit(self.head(group)[1])
        }
        hidden = self.blocked - retries
        for flow in self.flows():
            own = [group for group in self.blocked - retries if self.flow_of(group) == flow]
            if own and flow[0] not in passed_over:
                hidden.discard(min(own, key=lambda group: self.head(group)[0]))
        left = {key: entry for key, entry in self.waiting.items() if self.group(entry[1]) not in hidden}
        blocked_at_first = set(self.blocked)
        class_keys, flow_keys = self.keys()
        weights, aged_weight = self.weights(), self.aged_weight()
        has_aged = any(rank[1] <= since_s_max for rank, _ in self.waiting.values())
        if has_aged:
            at = self.joins_v()
            if not self.has_aged:
                self.aged_v = min(max(self.aged_v, at), at + MEMORY_S / aged_weight)
            self.aged_v = max(self.aged_v, at)
        self.has_aged = has_aged
        aged_key = self.aged_v + self.held(lambda _, aged: aged) * LOOKAHEAD_S / aged_weight
        self.served_as_aged = set()
        taken = False
        while left:
            turns: list[tuple[float, Rank, bool, PlacementRequest]] = []
            for turn_class in CLASS_ORDER:
                of_class = [
                    (flow_keys[turn_class, one.tenant], rank, one)
                    for rank, one in left.values()
                    if one.turn_class is turn_class
                ]
                if of_class:
                    first_flow = min(of_class, key=lambda turn: (turn[0], self.first_rank(left, turn[2])))[2].tenant
                    rank, one = min(
                        (rank, one)
                        for rank, one in left.values()
                        if (one.turn_class, one.tenant) == (turn_class, first_flow)
                    )
                    turns.append((class_keys[turn_class], rank, False, one))
            old = [(rank[1:], rank, one) for rank, one in left.values() if rank[1] <= since_s_max]
            if old:
                _, rank, one = min(old, key=lambda turn: turn[0])
                turns.append((aged_key, rank, True, one))
            _, _, as_aged, request = min(turns, key=lambda turn: (turn[0], turn[1], turn[2]))
            group, turn_class = self.group(request), request.turn_class
            is_retry = group in retries
            if is_retry and taken and may_fit is not None and not may_fit(request) and turn_class in idle:
                left = {key: entry for key, entry in left.items() if self.group(entry[1]) != group}
                continue
            if as_aged:
                self.served_as_aged.add(request.id)
            yield request, group in blocked_at_first and not is_retry, is_retry
            del left[request.id]
            if request.id in self.holding:
                taken = True
                ahead = request.tasks * request.needs.gpus / GPUS * LOOKAHEAD_S
                class_keys[turn_class] += ahead / weights[turn_class]
                flow_keys[turn_class, request.tenant] += ahead / tenant_weight(request.tenant)
                aged_key += ahead / aged_weight if as_aged else 0.0
            else:
                left = {key: entry for key, entry in left.items() if self.group(entry[1]) != group}

    def skip_group(self, request: PlacementRequest, blocked: bool) -> None:
        (self.blocked.add if blocked else self.blocked.discard)(self.group(request))

    def first_rank(self, left: dict[str, tuple[Rank, PlacementRequest]], request: PlacementRequest) -> Rank:
        flow = (request.turn_class, request.tenant)
        return min(rank for rank, one in left.values() if (one.turn_class, one.tenant) == flow)

    def head(self, group: Hashable) -> tuple[Rank, PlacementRequest]:
        return min((rank, one) for rank, one in self.waiting.values() if self.group(one) == group)

    def flow_of(self, group: Hashable) -> Flow:
        one = self.head(group)[1]
        return one.turn_class, one.tenant


class Both:
    """The queue and the plain one, with GPUs that have no place."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_narrow = seed % 2 == 1  # few groups, and many in each
        self.queue, self.plain = TurnQueue(SETTINGS, room_of()), PlainQueue()
        self.now_s, self.free, self.number = 0.0, GPUS, 0
        self.running: dict[str, PlacementRequest] = {}

    def later(self) -> None:
        self.now_s += self.random.choice((0.0, 0.0, 1.0, 2.0, 8.0, 16.0))

    def submit(self) -> None:
        random, narrow = self.random, self.is_narrow
        self.number += 1
        request = ask(
            f"r{self.number}",
            random.choice(CLASS_ORDER),
            tenant=random.choice("ab" if narrow else "abc"),
            priority=1 if narrow else random.choice((1, 1, 1, 2)),
            gpus=random.choice((4, 8) if narrow else (1, 4, 8)),
            tasks=1 if narrow else random.choice((1, 1, 2)),
            duration_s_max=None if narrow else random.choice(list(BUCKETS)),
        )
        since_s = self.now_s - random.choice((4.0, 32.0)) if random.random() < 0.2 else None
        for _ in range(random.choice((1, 1, 2))):  # what waits already is not added again
            self.queue.add(request, self.now_s, waiting_since_s=since_s)
            self.plain.add(request, self.now_s, since_s)

    def cancel(self) -> None:
        if self.plain.waiting:
            name = self.random.choice(sorted(self.plain.waiting))
            self.queue.remove(name, self.now_s)
            self.plain.advance(self.now_s)
            self.plain.remove(name)

    def end(self) -> None:
        if self.running:
            name = self.random.choice(sorted(self.running))
            request = self.running.pop(name)
            self.free += request.tasks * request.needs.gpus
            self.queue.released(name, self.now_s)
            self.queue.released(name, self.now_s)  # known once
            self.plain.released(name, self.now_s)
            if self.random.random() < 0.3 and self.fits(request):
                self.later()
                self.hold(request)  # at once, without having waited

    def hold(self, request: PlacementRequest) -> None:
        self.queue.holds(request.id, request, request.tasks, self.now_s)
        self.plain.holds(request, self.now_s)
        self.free -= request.tasks * request.needs.gpus
        self.running[request.id] = request

    def fits(self, request: PlacementRequest) -> bool:
        return request.tasks * request.needs.gpus <= self.free

    def may_fit(self, blocked: Blocked) -> Bools:
        found: Bools = (blocked.gpu_milli_total <= 1000 * self.free) & blocked.everybody
        return found

    def serve(self) -> None:
        """Blocks what does not fit, as a scheduler does; sometimes everybody is tried again."""
        random = self.random
        anew, stops_after = random.random() < 0.25, random.choice((1, 3, 100))
        passed_over = set(random.sample(CLASS_ORDER, random.choice((0, 0, 1, 3))))
        idle = set(random.sample(CLASS_ORDER, random.choice((0, 1, 3))))
        order = self.queue.in_order(
            self.now_s, None if anew else self.may_fit, passed_over=passed_over, idle_classes=lambda: idle
        )
        plain = self.plain.serve(self.now_s, None if anew else self.fits, passed_over, idle)
        for count, (expected, is_blocked, is_retry) in enumerate(plain):
            request = next(order)
            assert (request.id, order.is_blocked, order.is_retry) == (expected.id, is_blocked, is_retry)
            if self.fits(request) and random.random() < 0.9:
                self.hold(request)
            else:
                does_not_fit = not self.fits(request)
                order.skip_group(blocked=does_not_fit)
                self.plain.skip_group(request, does_not_fit)
                assert (order.is_blocked, order.is_retry) == (False, False)
            if count == stops_after:
                return
        assert next(order, None) is None

    def check(self) -> None:
        plain, queue = self.plain, self.queue
        assert len(queue) == len(plain.waiting)
        for name, (_, request) in plain.waiting.items():
            like = [entry for entry in plain.waiting.values() if plain.group(entry[1]) == plain.group(request)]
            first = min(like)[1].id
            assert (name in queue, queue.waiting(name)) == (True, request)
            assert queue.is_behind_its_like(name) == (first != name)
            assert queue.first_of_its_like(name) == (None if first == name else first)
        if plain.waiting and self.random.random() < 0.5:
            self.later()
            self.check_position(self.random.choice(sorted(plain.waiting)))
        gone = f"r{self.number + 1}"
        assert (gone in queue, queue.waiting(gone), queue.is_behind_its_like(gone)) == (False, None, False)
        assert queue.position(gone, self.now_s) is None

    def check_position(self, name: str) -> None:
        plain = self.plain
        position = self.queue.position(name, self.now_s)
        plain.advance(self.now_s)
        rank, request = plain.waiting[name]
        flow = (request.turn_class, request.tenant)
        class_keys, flow_keys = plain.keys()
        in_flow = [other for other, one in plain.waiting.values() if (one.turn_class, one.tenant) == flow]
        since_s_max = self.now_s - STARVATION_S
        assert position is not None
        assert (position.turn_class, position.tenant) == flow
        assert (position.class_weight, position.tenant_weight) == (plain.weights()[flow[0]], tenant_weight(flow[1]))
        assert (position.class_v, position.tenant_v) == (plain.class_v[flow[0]], plain.flow_v[flow])
        assert (position.place_in_flow, position.waiting_in_flow) == (1 + sorted(in_flow).index(rank), len(in_flow))
        ahead = [one for one in CLASS_ORDER if one in plain.classes() and class_keys[one] < class_keys[flow[0]]]
        assert position.classes_ahead == tuple(ahead)
        assert position.tenants_ahead == sum(
            flow_keys[other] < flow_keys[flow] for other in plain.flows() if other[0] is flow[0]
        )
        assert (position.waited_s, position.aged_in_s) == (
            self.now_s - rank[1],
            max(0.0, rank[1] + STARVATION_S - self.now_s),
        )
        assert position.aged_ahead == sum(
            other[1] <= since_s_max and other[1:] < rank[1:] for other, _ in plain.waiting.values()
        )


@pytest.mark.parametrize("seed", [*range(24), 205, 329])
def test_the_queue_serves_in_the_order_of_a_plain_one(seed: int) -> None:
    both = Both(seed)
    for _ in range(90):
        both.later()
        both.random.choices((both.submit, both.cancel, both.end, both.serve), (9, 1, 4, 4))[0]()
        both.check()
    assert both.number > 20
