"""Does everybody get their turn? Shares, floors, bounds and limits of `turns`, over random histories."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from harch.placement.queueing.preemption import PastPreemptions, plan_preemption
from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.releases import Releases, RoomOutlook
from harch.placement.queueing.reservations import Reservation, may_backfill, plan_reservation
from harch.placement.queueing.running import RunningRequest, find_slots
from harch.placement.queueing.settings import CLASS_ORDER, QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import Level, SchedulingClass
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, start, stop

GPUS = 32
seeds = st.integers(0, 2**32 - 1)


class Hub:
    """GPUs without a place: only the order of service matters here."""

    def __init__(self, turn_settings: QueueSettings) -> None:
        self.queue = TurnQueue(turn_settings, room_of())
        self.free = GPUS
        self.now_s = 0.0
        self.served: list[tuple[float, PlacementRequest]] = []
        self.gpu_s: Counter[tuple[SchedulingClass, str]] = Counter()
        self.ends: list[tuple[float, str, PlacementRequest]] = []

    def serve(self, duration_s: dict[str, float]) -> None:
        order = self.queue.in_order(self.now_s)
        for request in order:
            if request.needs.gpus > self.free or self.queue.quota_rejection(request):
                order.skip_group()
                continue
            self.queue.holds(request.id, request, 1, self.now_s)
            self.free -= request.needs.gpus
            self.served.append((self.now_s, request))
            heapq.heappush(self.ends, (self.now_s + duration_s[request.id], request.id, request))
            self.gpu_s[request.turn_class, request.tenant] += int(duration_s[request.id] * request.needs.gpus)

    def next_end(self) -> None:
        self.now_s, key, request = heapq.heappop(self.ends)
        self.queue.released(key, self.now_s)
        self.free += request.needs.gpus


def run_backlogged(
    seed: int, turn_settings: QueueSettings, flows: list[tuple[SchedulingClass, str]], placements: int
) -> Hub:
    """Every flow always has something waiting, of 1 to 4 GPUs and 30 to 90 s."""
    random = Random(seed)
    hub = Hub(turn_settings)
    numbers = itertools.count()
    duration_s: dict[str, float] = {}

    def submit(turn_class: SchedulingClass, tenant: str) -> None:
        key = f"r{next(numbers)}"
        duration_s[key] = random.uniform(30, 90)
        hub.queue.add(ask(key, turn_class, tenant=tenant, gpus=random.choice((1, 1, 2, 4))), hub.now_s)

    for flow in flows * 24:
        submit(*flow)
    while len(hub.served) < placements:
        before = len(hub.served)
        hub.serve(duration_s)
        for _, request in hub.served[before:]:
            submit(request.turn_class, request.tenant)
        hub.next_end()
    return hub


NEVER_AGED = QueueSettings(lookahead_s=60, starvation_s=1e9, training_floor_share=0.0)


@pytest.mark.parametrize("seed", [1])
def test_backlogged_classes_are_served_by_their_weights(seed: int) -> None:
    weights = {INFERENCE: 100.0, INTERACTIVE: 10.0, TRAINING: 1.0}
    hub = run_backlogged(seed, NEVER_AGED, [(c, "t") for c in CLASS_ORDER], 20_000)
    total = sum(hub.gpu_s.values())
    for turn_class, weight in weights.items():
        assert hub.gpu_s[turn_class, "t"] / total == pytest.approx(weight / 111, rel=0.05)


@pytest.mark.parametrize("seed", [1])
def test_tenants_share_their_class_by_their_weights_and_a_class_gains_nothing_by_many_tenants(seed: int) -> None:
    turn_settings = replace(NEVER_AGED, tenant_weights={"big": 3.0})
    flows = [(INTERACTIVE, "big"), (INTERACTIVE, "small"), *((TRAINING, f"t{i}") for i in range(5))]
    hub = run_backlogged(seed, turn_settings, flows, 4_000)
    total = sum(hub.gpu_s.values())
    assert hub.gpu_s[INTERACTIVE, "big"] / total == pytest.approx(10 / 11 * 0.75, rel=0.05)
    assert hub.gpu_s[INTERACTIVE, "small"] / total == pytest.approx(10 / 11 * 0.25, rel=0.05)


@pytest.mark.parametrize(("seed", "floor"), [(1, 0.1), (2, 0.25)])
def test_training_gets_its_floor_and_the_others_keep_their_ratio(seed: int, floor: float) -> None:
    turn_settings = replace(NEVER_AGED, training_floor_share=floor)
    hub = run_backlogged(seed, turn_settings, [(c, "t") for c in CLASS_ORDER], 3_000)
    total = sum(hub.gpu_s.values())
    assert hub.gpu_s[TRAINING, "t"] / total >= floor * 0.97
    assert hub.gpu_s[INFERENCE, "t"] / hub.gpu_s[INTERACTIVE, "t"] == pytest.approx(10, rel=0.08)


arrivals = st.lists(
    st.tuples(
        st.floats(0, 400),  # when
        st.sampled_from(CLASS_ORDER),
        st.sampled_from("abc"),
        st.integers(0, 3),  # priority
        st.integers(1, 4),  # GPUs
        st.floats(1, 60),  # seconds
    ),
    max_size=60,
)


def play(events: list[tuple[float, SchedulingClass, str, int, int, float]], hub: Hub) -> Iterator[Hub]:
    """Submits, serves and ends in the order of time; yields after every round."""
    duration_s = {f"r{number}": event[5] for number, event in enumerate(events)}
    todo = sorted((event[0], number) for number, event in enumerate(events))
    while todo or hub.ends:
        if todo and (not hub.ends or todo[0][0] <= hub.ends[0][0]):
            hub.now_s, number = todo.pop(0)
            _, turn_class, tenant, priority, gpus, _ = events[number]
            request = ask(f"r{number}", turn_class, tenant=tenant, priority=priority, gpus=gpus)
            hub.queue.add(request, hub.now_s)
        else:
            hub.next_end()
        hub.serve(duration_s)
        yield hub


@settings(max_examples=60, deadline=None)
@given(events=arrivals)
def test_nothing_that_fits_is_left_waiting_and_all_are_served_once(
    events: list[tuple[float, SchedulingClass, str, int, int, float]],
) -> None:
    hub = Hub(QueueSettings(starvation_s=50))
    for state in play(events, hub):
        left = state.queue.in_order(state.now_s)
        for request in left:
            assert request.needs.gpus > state.free
            left.skip_group()
    assert sorted(request.id for _, request in hub.served) == sorted(f"r{i}" for i in range(len(events)))
    assert len(hub.queue) == 0


@settings(max_examples=30, deadline=None)
@given(events=arrivals)
def test_the_same_history_gives_the_same_order(
    events: list[tuple[float, SchedulingClass, str, int, int, float]],
) -> None:
    first, second = Hub(QueueSettings(starvation_s=50)), Hub(QueueSettings(starvation_s=50))
    for _ in zip(play(events, first), play(events, second), strict=True):
        pass
    assert first.served == second.served


@settings(max_examples=60, deadline=None)
@given(events=arrivals, gpus_max=st.integers(4, 8), tasks_max=st.integers(1, 4))
def test_no_quota_is_ever_exceeded_and_nobody_else_waits_for_it(
    events: list[tuple[float, SchedulingClass, str, int, int, float]], gpus_max: int, tasks_max: int
) -> None:
    turn_settings = QueueSettings(
        tenant_quotas={"a": Quota(gpus_held_max=gpus_max)},
        class_quotas={("b", TRAINING): Quota(tasks_held_max=tasks_max)},
    )
    for hub in play(events, Hub(turn_settings)):
        held: Counter[str] = Counter()
        for _, _, request in hub.ends:
            held[request.tenant] += request.needs.gpus
            held[f"{request.tenant} {request.turn_class}"] += 1
        assert held["a"] <= gpus_max
        assert held["b training"] <= tasks_max
        for request in hub.queue.in_order(hub.now_s):
            assert request.needs.gpus > hub.free or request.tenant in "ab"


@settings(max_examples=12, deadline=None)
@given(seed=seeds, share=st.sampled_from((0.05, 0.2)), waiting=st.integers(1, 12))
def test_nobody_starves_whatever_arrives_later(seed: int, share: float, waiting: int) -> None:
    """The bound that `turns.queue` writes down, against a flood of higher classes and priorities."""
    random = Random(seed)
    turn_settings = QueueSettings(lookahead_s=60, starvation_s=300, aged_share=share, training_floor_share=0.0)
    turn_settings = replace(turn_settings, class_weights={INFERENCE: 1e6, INTERACTIVE: 1e3, TRAINING: 1.0})
    hub = Hub(turn_settings)
    duration_s: dict[str, float] = {}
    for number in range(waiting):
        duration_s[f"old{number}"] = random.uniform(10, 60)
        hub.queue.add(ask(f"old{number}", TRAINING, priority=0), 0.0)
    work_older = sum(duration_s.values()) / GPUS
    # The flood itself ages, and those of it that are older than the last of ours are none: all came later.
    bound_s = 300 + (work_older + 60 / GPUS) / share + 60
    numbers = itertools.count()
    for _ in range(GPUS):
        duration_s[f"first{next(numbers)}"] = 60.0
    for key in list(duration_s)[waiting:]:
        hub.queue.add(ask(key, INFERENCE, tenant="flood", priority=3), 0.0)
    left = {f"old{number}" for number in range(waiting)}
    while left:
        before = len(hub.served)
        hub.serve(duration_s)
        for at_s, request in hub.served[before:]:
            if request.id in left:
                assert at_s <= bound_s
                left.discard(request.id)
            key = f"new{next(numbers)}"
            duration_s[key] = random.uniform(10, 60)
            flood = random.choice(((INFERENCE, 3), (INTERACTIVE, 2), (TRAINING, 3)))
            hub.queue.add(ask(key, flood[0], tenant=random.choice("xyz"), priority=flood[1]), hub.now_s)
        assert hub.now_s <= bound_s
        hub.next_end()


# Places: reservations and preemption


def fill(random: Random, room: Room, *, bounded: float, until: float = 1.0) -> list[RunningRequest]:
    """Random work of one to 24 GPUs until little is free."""
    running: list[RunningRequest] = []
    everywhere = np.ones(room.arrays.size, np.bool_)
    for number in range(60):
        bound_s = float(random.randint(10, 1000)) if random.random() < bounded else None
        request = ask(
            f"w{number}",
            random.choice(CLASS_ORDER),
            gpus=random.choice((1, 2, 4, 8)),
            tasks=random.choice((1, 1, 1, 3)),
            duration_s_max=bound_s,
            preemptible=random.random() < 0.8,
            runs_process=random.random() < 0.5,
        )
        slots = find_slots(room, request, request.tasks, everywhere)
        if slots is not None and random.random() < until:
            running.append(start(room, request, slots))
    return running


def rooms(random: Random) -> Room:
    """Sometimes with too little power or cooling for all, so that nodes depend on each other."""
    room = room_of(
        racks=random.choice((2, 4)),
        nodes_per_rack=2,
        power_kw_max=random.choice((100.0, 10.5)),
        heat_kw_max=random.choice((1000.0, 30.0)),
    )
    room.process_slots_free = random.choice((8, 20, 1000))
    return room


ASSUMED_S = 5000.0  # longer than anything that promises an end
CANDIDATES = 80  # come to fill in; then no more, so that every history ends
GANGS = st.sampled_from(
    ((8, 2, Level.HUB), (8, 2, Level.RACK), (4, 3, Level.ROW), (8, 1, Level.NODE), (4, 1, Level.ISLAND))
)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, wish=GANGS, runs_process=st.booleans(), gangs=st.integers(1, 3))
def test_backfill_never_delays_a_reserved_gang(
    seed: int, wish: tuple[int, int, Level], runs_process: bool, gangs: int
) -> None:
    """Everything ends some time before its promise; others come at random and go wherever they may."""
    random = Random(seed)
    room = rooms(random)
    running = {item.request.id: item for item in fill(random, room, bounded=1.0)}
    gpus, tasks, level = wish
    waiting = [ask(f"gang{i}", gpus=gpus, tasks=tasks, required=level, runs_process=runs_process) for i in range(gangs)]
    everywhere = np.ones(room.arrays.size, np.bool_)
    promised_s: dict[str, float] = {}
    reserved: dict[str, Reservation] = {}
    ends = [(random.uniform(0, item.ends_s_max(0.0, 5.0)), key) for key, item in running.items()]
    heapq.heapify(ends)
    now_s = 0.0
    for number in itertools.count():
        taken: list[Reservation] = []
        for request in list(waiting):
            outlook = RoomOutlook(
                Releases(room, running.values()), now_s, margin_s=5.0, assumed_s=ASSUMED_S, stopping={}
            )
            plan = plan_reservation(outlook, request, taken=taken, before=reserved.get(request.id))
            if plan is None:
                assert request.id not in promised_s
                continue
            if plan.assumed:
                assert request.id not in promised_s
            else:
                assert plan.start_s <= promised_s.setdefault(request.id, plan.start_s) + 1e-9
            reserved[request.id] = plan
            taken.append(plan)
        for plan in list(taken):  # a reserved one starts as soon as it fits, and leaves the nodes of the others alone
            request = plan.request
            others = [other for other in taken if other is not plan]
            allowed = everywhere.copy()
            for other in others:
                allowed &= may_backfill(request, other, room, now_s, own=plan)
            slots = find_slots(room, request, plan.tasks, allowed)
            if slots is not None:
                assert now_s <= promised_s.get(request.id, math.inf) + 1e-9
                start(room, request, slots, now_s)
                running[request.id] = RunningRequest(request, slots, now_s)  # it never ends
                waiting.remove(request)
                del reserved[request.id]
                taken.remove(plan)
                break
        else:
            if not ends:  # whoever still waits was promised nothing
                assert all(plan.assumed for plan in taken)
                return
            candidate = ask(
                f"c{number}",
                gpus=random.choice((1, 2, 8)),
                tasks=random.choice((1, 2)),
                duration_s_max=random.choice((None, 5.0, 50.0, 400.0)),
                runs_process=random.random() < 0.5,
            )
            allowed = everywhere.copy()
            for plan in taken:
                allowed &= may_backfill(candidate, plan, room, now_s)
            slots = find_slots(room, candidate, candidate.tasks, allowed)
            if slots is not None and number < CANDIDATES:
                item = structs.replace(start(room, candidate, slots, now_s), stop_grace_s=0.0)
                running[candidate.id] = item
                if candidate.duration_s_max is not None:
                    heapq.heappush(ends, (now_s + random.uniform(0, candidate.duration_s_max + 5.0), candidate.id))
            if random.random() < 0.5 or number >= CANDIDATES:
                now_s, key = heapq.heappop(ends)
                stop(room, running.pop(key))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, wish=GANGS, turn_class=st.sampled_from((INFERENCE, INTERACTIVE)), victims_max=st.integers(1, 16))
def test_preemption_stops_only_lower_classes_within_limits_and_nobody_in_vain(
    seed: int, wish: tuple[int, int, Level], turn_class: SchedulingClass, victims_max: int
) -> None:
    random = Random(seed)
    room = rooms(random)
    running = fill(random, room, bounded=0.5)
    running = [
        structs.replace(item, started_s=random.uniform(0, 90), restarts=random.randint(0, 2)) for item in running
    ]
    gpus, tasks, level = wish
    request = ask("high", turn_class, gpus=gpus, tasks=tasks, required=level)
    limits = QueueSettings(preemption_victims_max=victims_max, preemptions_per_hour_max=20)
    past = PastPreemptions()
    everywhere = np.ones(room.arrays.size, np.bool_)
    stopped: dict[str, float] = {}
    for now_s in (100.0, 200.0, 300.0):
        holders = Releases(room, running)
        plan = plan_preemption(holders, request, limits, now_s, past=past, stopping=())
        assert plan == plan_preemption(holders, request, limits, now_s, past=past, stopping=())
        if plan is None:
            return
        lower = CLASS_ORDER[CLASS_ORDER.index(turn_class) + 1 :]
        assert all(v.request.turn_class in lower and v.request.preemptible for v in plan.victims)
        assert all(slot.row in plan.rows for victim in plan.victims for slot in victim.slots)
        assert 1 <= len(plan.victims) <= victims_max
        assert not stopped.keys() & {victim.request.id for victim in plan.victims}
        assert plan.notice_s == 10.0
        assert find_slots(room, request, tasks, everywhere) is None
        within = np.zeros(room.arrays.size, np.bool_)
        within[list(plan.rows)] = True
        for spared in (None, *plan.victims):
            later = room.copy()
            for victim in plan.victims:
                if victim is not spared:
                    stop(later, victim)
            assert (find_slots(later, request, tasks, within) is None) == (spared is not None)
        ids = {victim.request.id for victim in plan.victims}
        assert (
            plan_preemption(Releases(room, running), request, limits, now_s, past=PastPreemptions(), stopping=ids)
            is None
        )
        past.note(plan, now_s)
        stopped |= dict.fromkeys(ids, now_s)
        assert len(stopped) <= 20


def test_a_round_over_a_hundred_thousand_that_do_not_fit_looks_at_each_group_once() -> None:
    queue = TurnQueue(QueueSettings(), room_of())
    groups = set()
    for number in range(100_000):
        turn_class, tenant, gpus = CLASS_ORDER[number % 3], f"t{number % 5}", 1 + number % 4
        groups.add((turn_class, tenant, gpus))
        queue.add(ask(f"r{number}", turn_class, tenant=tenant, gpus=gpus), 0.0)
    order = queue.in_order(10_000.0)
    tried = 0
    for _ in order:
        tried += 1
        order.skip_group()
    assert tried == len(groups) == 60
