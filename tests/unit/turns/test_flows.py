"""Shares, virtual times, groups and flows, with numbers worked out by hand."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import (
    Capacity,
    ClassLane,
    Rank,
    RequestGroup,
    ShareMeter,
    TenantFlow,
    WaitingRequest,
    group_key,
)
from harch.placement.queueing.queue import Position, TurnQueue
from harch.placement.queueing.settings import CLASS_ORDER, QueueSettings
from harch.workloads.spec import Resources
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of


@pytest.mark.parametrize(
    ("needs", "share"),
    [
        (Resources(gpus=2, cpus=1.0, memory_gb=1.0), 2 / 32),
        (Resources(gpus=1, cpus=16.0, memory_gb=1.0), 16 / 256),
        (Resources(gpus=0, cpus=1.0, memory_gb=128.0), 128 / 2048),
        (Resources(gpus=0, cpus=1.0, memory_gb=1.0, storage_gb=500.0), 500 / 4000),
        (Resources(gpus=1, gpu_fraction=0.5, cpus=1.0, memory_gb=1.0), 0.5 / 32),
        (Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=40.0, cpus=1.0, memory_gb=1.0), 0.5 / 32),
    ],
)
def test_a_share_is_the_largest_part_of_the_hub_that_the_tasks_take(needs: Resources, share: float) -> None:
    capacity = Capacity.of(room_of(racks=2, nodes_per_rack=2))  # 4 nodes of 8 GPUs, 64 CPUs, 512 GB, 1000 GB
    assert (capacity.gpu_milli, capacity.cpu_milli) == (32_000, 256_000)
    assert (capacity.memory_mib, capacity.storage_mib) == (2048 * 1024, 4000 * 1024)
    request = msgspec.structs.replace(ask("r", tasks=7), needs=needs)
    assert capacity.share(request, 3) == pytest.approx(3 * share)


def test_a_hub_without_something_still_has_shares() -> None:
    capacity = Capacity(0, 0, 0, 0, room_of())
    one = msgspec.structs.replace(ask("r"), needs=Resources(gpus=1, cpus=2.0, memory_gb=1.0, storage_gb=1.0))
    assert capacity.share(one, 1) == 2000.0, "of one thousandth, as there is none"


def test_virtual_time_grows_with_what_is_held_by_the_weight() -> None:
    meter = ShareMeter()
    meter.take(0.5)
    meter.take(0.25)
    meter.advance(8.0, 2.0)
    assert (meter.v, meter.share_held, meter.holders) == (3.0, 0.75, 2)
    assert meter.ahead(4.0, 2.0) == 4.5
    assert meter.v == 3.0
    meter.give_back(0.5)
    assert (meter.share_held, meter.holders) == (0.25, 1)
    meter.give_back(0.3)
    assert (meter.share_held, meter.holders) == (0.0, 0), "rounding leaves nothing behind"


@pytest.mark.parametrize(("v", "joins"), [(1.0, 4.0), (4.0, 4.0), (5.0, 5.0), (6.0, 6.0), (7.0, 6.0)])
def test_who_comes_back_has_no_credit_and_little_debt(v: float, joins: float) -> None:
    meter = ShareMeter(v)
    meter.join(4.0, 2.0)
    assert meter.v == joins


def waiting(number: int, since_s: float | None = None) -> WaitingRequest:
    return WaitingRequest(Rank(0, float(number) if since_s is None else since_s, number), ask(f"r{number}"))


def test_a_group_is_in_order_whoever_comes_and_goes() -> None:
    for seed in range(20):
        random = Random(seed)
        group, expected = RequestGroup("key"), dict[int, WaitingRequest]()
        assert (group.key, group.index) == ("key", -1)
        for number in range(120):
            if expected and random.random() < 0.55:
                gone = random.choice(sorted(expected))
                group.remove(f"r{gone}")
                del expected[gone]
            else:  # sometimes something that keeps the place it had before
                expected[number] = waiting(number, random.uniform(0, 120) if random.random() < 0.2 else None)
                group.add(expected[number])
            in_order = sorted(expected.values(), key=lambda entry: entry.rank)
            assert list(group) == in_order
            assert (len(group), bool(group)) == (len(in_order), bool(in_order))
            if in_order:
                assert group.head is in_order[0]


def test_an_iteration_sees_what_is_removed_and_goes_on_through_a_sweep() -> None:
    group = RequestGroup("key")
    for number in range(100):
        group.add(waiting(number))
    seen = []
    for entry in group:
        seen.append(entry.rank.arrival)
        if entry.rank.arrival == 1:
            for number in range(2, 98):
                group.remove(f"r{number}")
    assert seen == [0, 1, 98, 99]
    assert [entry.rank.arrival for entry in group] == [0, 1, 98, 99]
    assert len(group._entries) <= 2 * 4 + 16, "those that were removed are swept out"


def test_a_flow_keeps_a_group_while_somebody_waits_in_it() -> None:
    flow = TenantFlow(TRAINING, "t", 1.0, 1)
    first, second, other = ask("first"), ask("second"), ask("other", gpus=2)
    for number, request in enumerate((first, second, other)):
        flow.add(WaitingRequest(Rank(0, 0.0, number), request))
    assert set(flow.groups) == set(flow.to_try) == {group_key(first), group_key(other)}
    group = flow.remove(first)
    assert [entry.request.id for entry in group] == ["second"]
    assert len(flow.groups) == 2
    del flow.to_try[group.key]  # blocked
    assert not flow.remove(second)
    assert set(flow.groups) == set(flow.to_try) == {group_key(other)}


@pytest.mark.parametrize(
    ("bound_s", "like"),
    [(0.0, 3.9), (1.0, 3.9), (4.0, 15.9), (16.0, 63.9), (3600.0, 4095.0)],
)
def test_promises_within_a_factor_of_four_are_alike(bound_s: float, like: float) -> None:
    def key(duration_s: float | None) -> object:
        return group_key(ask("r", duration_s_max=duration_s))

    assert key(bound_s) == key(like)
    assert key(like) != key(like + 1.1)
    assert key(None) not in (key(0.0), key(bound_s))


def test_only_what_fits_or_fails_alike_is_in_one_group() -> None:
    one = ask("one", tenant="a")
    assert group_key(one) == group_key(ask("two", tenant="b"))
    for other in (ask("r", priority=2), ask("r", gpus=2), ask("r", tasks=2), ask("r", runs_process=True)):
        assert group_key(other) != group_key(one)


def test_flows_have_numbers_of_their_own_and_weights() -> None:
    lanes = [ClassLane(turn_class) for turn_class in CLASS_ORDER]
    flows = [lane.flow(tenant, lambda _: 2.0) for tenant in "abcd" for lane in lanes]
    assert len({flow.number for flow in flows}) == 12
    assert lanes[0].flow("a", lambda _: 2.0) is flows[0]
    assert {flow.weight for flow in flows} == {2.0}


def test_a_flow_is_advanced_by_the_clock_of_its_lane() -> None:
    lane = ClassLane(TRAINING, clock_s=10.0)
    flow = lane.flow("a", lambda _: 2.0)
    flow.meter.take(0.5)
    lane.clock_s = 14.0
    assert lane.flow("a", lambda _: 2.0).meter.v == 1.0
    assert lane.flow("a", lambda _: 2.0).meter.v == 1.0, "once"


def test_a_flow_joins_where_the_last_of_those_who_wait_stands() -> None:
    lane = ClassLane(TRAINING)
    ahead, behind, late = (lane.flow(tenant, lambda _: 2.0) for tenant in ("ahead", "behind", "late"))
    for flow in (ahead, behind):
        lane.join(flow, 100.0)
    ahead.meter.v, behind.meter.v = 9.0, 5.0
    lane.join(late, 6.0)
    assert (late.meter.v, lane.v_system) == (5.0, 5.0)
    debtor = lane.flow("debtor", lambda _: 2.0)
    debtor.meter.v = 50.0
    lane.join(debtor, 6.0)
    assert debtor.meter.v == 8.0, "six seconds of the hub by a weight of two"
    behind.meter.v = 1.0
    lane.join(lane.flow("last", lambda _: 1.0), 6.0)
    assert lane.v_system == 5.0, "it never goes back"
    assert list(lane.backlogged) == ["ahead", "behind", "late", "debtor", "last"]


@pytest.mark.parametrize(
    ("holds", "v", "waits", "kept"),
    [
        (False, 4.0, False, False),
        (False, 4.5, False, True),  # in debt
        (True, 4.0, False, True),
        (False, 4.0, True, True),
    ],
)
def test_a_flow_is_forgotten_when_it_neither_waits_holds_nor_owes(
    holds: bool, v: float, waits: bool, kept: bool
) -> None:
    lane = ClassLane(TRAINING, v_system=4.0)
    flow = lane.flow("a", lambda _: 1.0)
    lane.join(flow, 100.0)
    flow.meter.v, flow.meter.holders = v, int(holds)
    if waits:
        flow.add(waiting(1))
    lane.leave(flow)
    assert ("a" in lane.flows, "a" in lane.backlogged) == (kept, waits)


def test_tenants_that_come_and_go_leave_nothing_behind() -> None:
    queue = TurnQueue(QueueSettings(), room_of())
    for number in range(50):
        one = ask(f"r{number}", tenant=f"t{number}")
        queue.add(one, float(number))
        queue.holds(one.id, one, 1, float(number))
        queue.released(one.id, float(number))
    assert not any(lane.flows for lane in queue._lanes.values())


def test_indices_of_blocked_groups_are_used_again_in_the_next_pass() -> None:
    queue = TurnQueue(QueueSettings(), room_of())
    sizes: list[int] = []

    def none(blocked: Blocked) -> object:
        sizes.append(blocked.everybody.size)
        return blocked.everybody & False

    for number in range(30):
        queue.add(ask(f"r{number}", tenant=f"t{number}"), float(number))
        order = queue.in_order(float(number), none)  # type: ignore[arg-type]
        for _ in order:
            order.skip_group(blocked=True)
        queue.remove(f"r{number - 2}")
    assert max(sizes) <= 5


@pytest.mark.parametrize(
    ("also", "text"),
    [
        ({}, "2 of 5 pending in class training of acme"),
        ({"tenant": ""}, "2 of 5 pending in class training of this hub"),
        (
            {"tenants_ahead": 3},
            "2 of 5 pending in class training of acme; 3 tenants of its class had a smaller share and come first",
        ),
        (
            {"classes_ahead": (INFERENCE, INTERACTIVE)},
            "2 of 5 pending in class training of acme; classes ahead: inference, interactive",
        ),
        (
            {"aged_in_s": 0.0, "aged_ahead": 4},
            "2 of 5 pending in class training of acme; it has waited long: at most 4 are ahead of it",
        ),
    ],
)
def test_a_position_in_words(also: dict[str, object], text: str) -> None:
    position = Position(
        **{  # type: ignore[arg-type]
            "turn_class": TRAINING,
            "tenant": "acme",
            "class_weight": 1.0,
            "class_v": 0.0,
            "tenant_weight": 1.0,
            "tenant_v": 0.0,
            "place_in_flow": 2,
            "waiting_in_flow": 5,
            "classes_ahead": (),
            "tenants_ahead": 0,
            "waited_s": 1.0,
            "aged_in_s": 9.0,
            "aged_ahead": 0,
            **also,
        }
    )
    assert position.describe() == text
