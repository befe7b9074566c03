"""Memory is a resource of shares: no GPU is given more of it than it has, whoever counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind, RackGroup, expand
from harch.fleet.model import CoolingZone, GpuModel, Hub
from harch.placement.checks import first_rejection, is_never, outcomes
from harch.placement.facts import HubFacts, live_facts, published_slots
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scheduler import Scheduler
from harch.simulate.ledger import ReplayLedger
from harch.simulate.policies import BinPack
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import Level, Resources, SchedulingClass, Topology, WorkloadSpec

BIG = GpuModel("big", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
SMALL = GpuModel("small", memory_gb=40, power_w=300, nvlink_gb_per_s=600, pcie_gb_per_s=64)


def hub_of(*models: GpuModel) -> Hub:
    """One node of 4 GPUs, in islands of 2, for each of these models."""
    kinds = {model.name: NodeKind(f"{model.name}-4", model, 4, 2, 2, 2, 64, 512, 1000, 1000) for model in models}
    groups = (RackGroup(1, "A", "hall", 100.0, tuple((kinds[model.name], 1) for model in models)),)
    hub = HubBlueprint("Test", "MA", "MA", 0.0, 0.0, 1.2, (CoolingZone("hall", 1000.0),), groups)
    return expand(FleetBlueprint("test", tuple(set(models)), tuple(kinds.values()), (hub,), ())).hubs[0]


def best_fit(hub: Hub | None = None, turns: QueueSettings | None = None) -> Scheduler:
    made = Scheduler(hub or hub_of(BIG), turns or QueueSettings())
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    return made


def learned(hub: Hub | None = None, turns: QueueSettings | None = None) -> Scheduler:
    from harch.placement.learned import LearnedPolicy

    made = best_fit(hub, turns)
    made.use(LearnedPolicy(made.room))
    return made


@pytest.fixture(params=[best_fit, learned])
def make(request: pytest.FixtureRequest) -> Callable[..., Scheduler]:
    found: Callable[..., Scheduler] = request.param
    return found


def share(fraction: float, memory_gb: float | None, **fields: object) -> Resources:
    return Resources(gpus=1, gpu_fraction=fraction, gpu_memory_gb=memory_gb, **fields)  # type: ignore[arg-type]


def ask(name: str, needs: Resources, *, tenant: str = "t", **fields: object) -> PlacementRequest:
    return PlacementRequest.of(name, WorkloadSpec(name=name, resources=needs, **fields), tenant=tenant)  # type: ignore[arg-type]


def place(scheduler: Scheduler, request: PlacementRequest) -> list[tuple[int, int]]:
    """Node and device of each task; empty if it waits."""
    scheduler.submit(request, now_s=0)
    scheduler.plan(now_s=0, placed_max=100)
    held = scheduler.running.get(request.id)
    return [] if held is None else [(slot.row, device) for slot in held.slots for device in slot.devices]


def facts_of(scheduler: Scheduler, request: PlacementRequest) -> HubFacts:
    return live_facts(
        country="MA",
        accepts_work=True,
        status_detail="",
        room=scheduler.room,
        process_slots_total=0,
        request=request,
        now_s=0.0,
    )


# How large a share is


def test_a_share_is_as_large_as_the_larger_of_its_compute_and_its_memory() -> None:
    room = Room(hub_of(BIG))
    for fraction, memory_gb, milli in (
        (0.1, None, 100),
        (0.1, 8, 100),
        (0.1, 60, 750),
        (0.5, 20, 500),
        (0.1, 64.4, 805),  # exactly: floats would make 806 of it
        (0.1, 20.001, 251),  # rounded up: memory is never given twice
        (0.1, 80, 1000),
        (0.1, 79.999, 1000),
        (1.0, 20, 1000),
    ):
        kind = room.kind(share(fraction, memory_gb))
        assert (kind.gpu_milli, room.watts(share(fraction, memory_gb))[0]) == (milli, 700 * milli / 1000)


def test_at_a_hub_of_several_models_the_smallest_that_will_do_counts() -> None:
    room = Room(hub_of(BIG, SMALL))
    assert room.kind(share(0.1, 30)).gpu_milli == 750
    assert room.kind(share(0.1, 30, gpu_model="big")).gpu_milli == 375
    assert room.kind(share(0.1, 30, gpu_memory_gb_min=41)).gpu_milli == 375
    assert room.kind(share(0.1, 60)).gpu_milli == 750, "forty do not hold sixty"
    assert room.suits(share(0.1, 60)).tolist() == [True, False]
    assert not room.suits(share(0.1, 81)).any()


def test_only_shares_are_given_memory() -> None:
    with pytest.raises(ValueError, match=r"a whole GPU comes with all its memory.*gpu_memory_gb_min"):
        Resources(gpus=1, gpu_memory_gb=20)
    with pytest.raises(ValueError, match="needs `gpu_fraction`"):
        Resources(gpu_memory_gb=20)


def test_a_request_says_its_memory_in_words() -> None:
    request = ask("w", share(0.1, 60, gpu_model="h100-80gb"))
    assert request.describe().startswith("0.1 of one h100-80gb with 60 GB of its memory, ")


# What is given


def test_two_shares_that_need_most_of_the_memory_do_not_stand_on_one_gpu(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    assert len({place(scheduler, ask(f"w{n}", share(0.1, 60)))[0] for n in range(4)}) == 4
    assert place(scheduler, ask("fifth", share(0.1, 60))) == []
    assert place(scheduler, ask("beside", share(0.1, 20)))


def test_three_shares_whose_memory_fits_stand_on_one_gpu(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    assert len({place(scheduler, ask(f"w{n}", share(0.1, 20)))[0] for n in range(3)}) == 1


def test_shares_with_and_without_a_word_about_memory_fill_a_gpu_together(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    given = [place(scheduler, ask("a", share(0.25, 40)))[0], place(scheduler, ask("b", share(0.5, None)))[0]]
    assert len(set(given)) == 1
    assert place(scheduler, ask("c", share(0.001, None)))[0] not in given


@pytest.mark.parametrize("level", [Level.HUB, Level.NODE, Level.ISLAND])
def test_a_gang_of_shares_is_laid_out_by_its_memory(make: Callable[..., Scheduler], level: Level) -> None:
    scheduler = make()
    gang = ask("gang", share(0.1, 30), tasks=4, topology=Topology(required=level))
    devices = Counter(place(scheduler, gang))
    assert sorted(devices.values()) == [2, 2]
    larger = ask("larger", share(0.1, 60), tasks=3, topology=Topology(required=level))
    assert place(scheduler, larger) == [], "two GPUs are left"


@pytest.mark.parametrize("level", [Level.HUB, Level.ISLAND])
def test_a_share_with_all_the_memory_is_a_whole_gpu(make: Callable[..., Scheduler], level: Level) -> None:
    scheduler = make()
    assert place(scheduler, ask("little", Resources(gpus=1, gpu_fraction=0.001)))
    gang = ask("gang", share(0.1, 80), tasks=2, topology=Topology(required=level))
    assert len(set(place(scheduler, gang))) == 2
    assert place(scheduler, ask("one", share(0.1, 79.99)))
    assert place(scheduler, ask("more", share(0.1, 80))) == []
    free = scheduler.room.arrays.gpu_milli_free[0].tolist()
    assert sorted(free) == [0, 0, 0, 999]


def test_the_wanted_model_is_taken_as_far_as_the_share_is_booked(make: Callable[..., Scheduler]) -> None:
    """By the smallest GPU that will do it takes 550. What is left of the first model would hold it by its own size."""
    scheduler = make(hub_of(BIG, SMALL))
    needs = share(0.1, 22, gpu_models=("big", "small"))
    rows = [place(scheduler, ask(f"w{n}", needs))[0][0] for n in range(8)]
    assert rows == [0] * 4 + [1] * 4


def test_what_no_gpu_has_never_fits(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    request = ask("large", share(0.1, 100))
    rejection = first_rejection(request, facts_of(scheduler, request), permanent_only=True)
    assert rejection is not None
    assert (rejection.rule, rejection.detail) == ("gpu_model", "wants any model of >= 100 GB; has 4 x big (80 GB)")


def test_slots_that_are_told_are_those_that_are_there(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    request = ask("w", share(0.1, 30), tasks=9)
    told = facts_of(scheduler, request)
    assert (told.slots_empty, told.slots_now) == (8, 8)
    assert published_slots(told.suitable(request), request, 1) == (8, 8)
    assert is_never(outcomes(request, told))


def test_a_hub_of_an_earlier_version_is_not_asked(make: Callable[..., Scheduler]) -> None:
    """It could not read such work, and would end the link."""
    scheduler = make()
    for needs, refused in ((share(0.1, 30), True), (share(0.1, None), False)):
        request = ask("w", needs)
        told = replace(facts_of(scheduler, request), counts_gpu_memory=False)
        rejection = first_rejection(request, told)
        assert (rejection is not None) is refused
        assert rejection is None or (rejection.rule, "earlier version" in rejection.detail) == ("gpu_model", True)


# Who else counts


def test_quotas_count_what_is_taken(make: Callable[..., Scheduler]) -> None:
    scheduler = make(None, QueueSettings(tenant_quotas={"a": Quota(gpus_held_max=2)}))
    assert place(scheduler, ask("one", share(0.1, 60), tenant="a"))
    assert place(scheduler, ask("two", share(0.1, 60), tenant="a"))
    third = ask("three", share(0.1, 60), tenant="a")
    assert place(scheduler, third) == []
    no = scheduler.queue.quota_rejection(third)
    assert no is not None
    assert no.detail == "tenant a holds 1.5 of at most 2 GPUs; this requests 0.75 more"
    for_ever = scheduler.queue.quota_rejection_for_ever(ask("gang", share(0.1, 60), tenant="a", tasks=3))
    assert for_ever is not None
    assert "this alone requests 2.25" in for_ever.detail
    assert deepcopy(scheduler).queue.quota_rejection(third) == no
    scheduler.ended("one", now_s=1)
    assert scheduler.queue.quota_rejection(third) is None


def test_fairness_counts_what_is_taken(make: Callable[..., Scheduler]) -> None:
    capacity = make().queue.capacity
    assert capacity.share(ask("w", share(0.1, 60)), 2) == pytest.approx(2 * 0.75 / 4)
    assert capacity.share(ask("w", share(0.25, None)), 2) == pytest.approx(2 * 0.25 / 4)


def test_a_higher_class_stops_shares_that_hold_the_memory(make: Callable[..., Scheduler]) -> None:
    scheduler = make()
    for number in range(4):
        place(scheduler, ask(f"w{number}", share(0.1, 60)))
    assert Releases(scheduler.room, scheduler.running.values()).gpu_milli_taken.tolist() == [750.0] * 4
    urgent = ask("urgent", share(0.1, 40), scheduling_class=SchedulingClass.INFERENCE)
    scheduler.submit(urgent, now_s=1)
    (preemption,) = scheduler.plan(now_s=1, placed_max=10).preemptions
    assert len(preemption.victims) == 1
    scheduler.ended(preemption.victims[0].request.id, now_s=2)
    assert [item.request.id for item in scheduler.plan(now_s=2, placed_max=10).assignments][:1] == ["urgent"]


def test_plain_schedulers_count_it_too() -> None:
    policy = BinPack(hub_of(BIG))
    for number in range(5):
        policy.submit(ask(f"w{number}", share(0.1, 60)), now_s=0)
    starts = policy.decide(now_s=0, starts_max=10).starts
    assert len({slot.devices for start in starts for slot in start.slots}) == len(starts) == 4


def test_shares_keep_their_places_after_the_fleet_got_smaller_gpus(make: Callable[..., Scheduler]) -> None:
    scheduler = make(hub_of(BIG, SMALL))
    node = scheduler.hub.nodes[0]
    tasks = (TaskPlacement(rank=0, node_id=node.id, gpu_ids=(node.gpus[0].id,)),)
    for number in range(3):  # 325 of a GPU each when there were large ones only, 650 by now
        scheduler.resume(ask(f"old-{number}", share(0.1, 26)), tasks, started_s=0, now_s=1)
    assert scheduler.room.arrays.gpu_milli_free[0, 0] == 25
    for number in range(3):
        scheduler.ended(f"old-{number}", now_s=2)
    assert scheduler.room.arrays.gpu_milli_free[0, 0] == 1000


# The second book


def test_the_second_book_finds_memory_that_is_given_twice() -> None:
    book = ReplayLedger(hub_of(BIG, SMALL))
    book.start(ask("a", share(0.1, 60)), (TaskSlot(0, (0,)),))
    book.start(ask("b", share(0.25, None)), (TaskSlot(0, (0,)),))
    assert not book.violations
    book.start(ask("c", share(0.1, 60)), (TaskSlot(0, (0,)),))
    assert book.violations == {"gpu_memory": 1}
    book.end("c")
    book.end("b")
    book.start(ask("d", share(0.1, 20)), (TaskSlot(0, (0,)),))
    book.start(ask("e", share(0.1, 60)), (TaskSlot(1, (0,)),))
    assert book.violations == {"gpu_memory": 2}, "a GPU of 40 GB has not sixty"


memories = st.none() | st.sampled_from([0.001, 5, 8.8, 20, 22, 26.7, 33.3, 40, 41, 60, 79.999, 80, 81])
jobs = st.lists(
    st.tuples(
        st.sampled_from([0.001, 0.1, 0.25, 0.3334, 0.5, 0.999, 1.0, None]),
        memories,
        st.integers(1, 3),
        st.sampled_from([(), ("big",), ("small", "big"), ("big", "small")]),
        st.sampled_from(list(SchedulingClass)),
        st.sampled_from([Level.HUB, Level.HUB, Level.NODE, Level.ISLAND]),
        st.integers(0, 60),
    ),
    max_size=40,
)
Job = tuple[float | None, float | None, int, tuple[str, ...], SchedulingClass, Level, int]


@pytest.mark.parametrize("models", [(BIG,), (BIG, SMALL), (SMALL, BIG, BIG)])
@given(wanted=jobs)
@settings(max_examples=40, deadline=None)
def test_no_gpu_is_ever_given_more_memory_than_it_has(models: tuple[GpuModel, ...], wanted: list[Job]) -> None:
    scheduler = best_fit(hub_of(*models))
    whole = scheduler.room.arrays.gpu_milli_free.copy()
    book = ReplayLedger(scheduler.hub)
    for now_s, (fraction, memory_gb, tasks, wishes, turn_class, level, ends) in enumerate(wanted):
        known = tuple(name for name in wishes if name in scheduler.room.models)
        models_wanted = {"gpu_model": known[0]} if len(known) == 1 else {"gpu_models": known}
        memory_gb = None if fraction is None else memory_gb
        needs = Resources(gpus=1, gpu_fraction=fraction, gpu_memory_gb=memory_gb, **models_wanted)  # type: ignore[arg-type]
        name = f"w{now_s}"
        request = ask(name, needs, tasks=tasks, scheduling_class=turn_class, topology=Topology(required=level))
        scheduler.submit(request, now_s=now_s)
        for assignment in scheduler.plan(now_s=now_s, placed_max=50).assignments:
            held = scheduler.running[assignment.request.id]
            book.start(held.request, held.slots)
        given: defaultdict[tuple[int, int], float] = defaultdict(float)
        for held in scheduler.running.values():
            for slot in held.slots:
                size_gb = scheduler.hub.nodes[slot.row].gpu_model.memory_gb
                of_task = held.request.needs.gpu_memory_gb or 0.0
                for device in slot.devices:
                    given[slot.row, device] += max(of_task, held.request.needs.gpu_milli * size_gb / 1000)
        for (row, _), memory in given.items():
            assert memory <= scheduler.hub.nodes[row].gpu_model.memory_gb + 1e-6
        if f"w{ends}" in scheduler.running:
            scheduler.ended(f"w{ends}", now_s=now_s)
            book.end(f"w{ends}")
    assert not book.violations
    for key in list(scheduler.running):
        scheduler.ended(key, now_s=1000)
    assert (scheduler.room.arrays.gpu_milli_free == whole).all()
