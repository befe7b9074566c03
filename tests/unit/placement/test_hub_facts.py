"""What the hard checks know: the live facts of a hub by hand, and the estimates from what peers publish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from harch.placement.facts import (
    HubFacts,
    ModelFacts,
    Obstacles,
    find_obstacles,
    live_facts,
    model_facts,
    power_limit,
    published_slots,
)
from harch.placement.queueing.reservations import Reservation
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Gang, Level, Resources
from unit.placement.mixed_hub import mixed_room, request_of

ALL = tuple(range(8))


def facts(room: Room, request: PlacementRequest, **changes: Any) -> HubFacts:
    given: dict[str, Any] = {
        "country": "MA",
        "accepts_work": True,
        "status_detail": "",
        "room": room,
        "process_slots_total": 7,
        "request": request,
        "now_s": 0.0,
    }
    return live_facts(**(given | changes))


def reserved(room: Room, key: str, rows: tuple[int, ...], *, start_s: float = 1000.0) -> Reservation:
    nothing = {"rack_w": np.zeros(3), "zone_w": np.zeros(2), "rack_w_ending": np.zeros(3), "zone_w_ending": np.zeros(2)}
    return Reservation(request_of(Resources(gpus=8), key=key), 1, rows, start_s, 60.0, False, False, **nothing)


def test_models_are_counted_with_what_is_free_on_nodes_in_use() -> None:
    room = mixed_room()
    room.take(Resources(gpus=2), TaskSlot(0, (0, 1)))
    room.take(Resources(gpus=1, gpu_fraction=0.1), TaskSlot(2, (3,)))
    room.take(Resources(gpus=8), TaskSlot(5, ALL))
    room.cordon("n3", True)
    assert model_facts(room) == (
        ModelFacts("big", 80, total=24, free=14, gpus_per_node_max=8, free_shapes=(0, 0, 0, 0, 0, 1, 0, 1)),
        ModelFacts("card", 24, total=2, free=2, gpus_per_node_max=2, free_shapes=(0, 1)),
        ModelFacts("small", 40, total=8, free=3, gpus_per_node_max=4, free_shapes=(0, 0, 1, 0)),
    )


def test_the_facts_of_a_hub_by_hand() -> None:
    room = mixed_room()
    room.process_slots_free = 5
    room.take(Resources(gpus=4), TaskSlot(0, (0, 1, 2, 3)))
    found = facts(room, request_of(Resources(gpus=4), 3))
    assert (found.hub_id, found.country, found.accepts_work, found.status_detail) == ("hub", "MA", True, "")
    assert found.models == model_facts(room)
    assert (found.cpus_per_node_max, found.memory_gb_per_node_max, found.storage_gb_per_node_max) == (64, 256, 80)
    assert found.counts_gpu_memory
    assert (found.nodes_up, found.process_slots_total, found.process_slots_free) == (6, 7, 5)
    assert (found.slots_empty, found.slots_now) == (2 + 2 + 1 + 1 + 0 + 2, 1 + 2 + 1 + 1 + 0 + 2)
    assert (found.domain_slots_empty, found.domain_slots_now, found.domain_best) == (8, 7, "Hub")
    assert (found.tasks_now, found.power_limit, found.power_short, found.kept_free) == (3, "", "", "")
    assert (found.fits, found.turn, found.quota_limit, found.quota_rejection) == (True, "", "", "")
    assert (found.held_back, found.held_back_slots, found.source, found.age_s) == ("", 0, "live", None)


def test_a_turn_is_named_only_where_nothing_else_is_in_the_way() -> None:
    room, fitting, large = mixed_room(), request_of(Resources(gpus=8)), request_of(Resources(gpus=8), 4)
    assert facts(room, fitting, turn="after w1").turn == "after w1"
    assert facts(room, large, turn="after w1").turn == ""
    assert facts(room, fitting, turn="after w1", quota_rejection="too much").turn == ""
    assert facts(room, fitting, quota_rejection="too much", quota_limit="over").quota_limit == "over"
    assert facts(room, fitting, quota_rejection="too much").quota_rejection == "too much"


@pytest.mark.parametrize(
    ("level", "empty", "now", "best"),
    [
        (Level.HUB, 17, 14, "Hub"),
        (Level.ROW, 12, 9, "row a"),
        (Level.RACK, 8, 5, "rack r0"),  # as many as r2, which comes later
        (Level.NODE, 4, 4, "node n5"),
        (Level.ISLAND, 4, 4, "island 0 of node n5"),
    ],
)
def test_the_best_domain_of_each_level(level: Level, empty: int, now: int, best: str) -> None:
    room = mixed_room()
    room.take(Resources(gpus=4), TaskSlot(0, (0, 1, 4, 5)))
    room.take(Resources(gpus=1), TaskSlot(1, (0,)))
    found = facts(room, request_of(Resources(gpus=2), required=level))
    assert (found.domain_slots_empty, found.domain_slots_now, found.domain_best) == (empty, now, best)


def test_domains_of_tasks_without_gpus_are_nodes_and_islands_of_shares_count_shares() -> None:
    room = mixed_room()
    room.take(Resources(cpus=60), TaskSlot(0, ()))
    found = facts(room, request_of(Resources(cpus=16), required=Level.ISLAND))
    assert (found.domain_slots_empty, found.domain_slots_now, found.domain_best) == (4, 4, "node n1")
    share = request_of(Resources(gpus=1, gpu_fraction=0.5, gpu_model="small"), required=Level.ISLAND)
    room.take(Resources(gpus=1, gpu_fraction=0.5), TaskSlot(2, (0,)))
    found = facts(room, share)
    assert (found.domain_slots_empty, found.domain_slots_now, found.domain_best) == (4, 4, "island 0 of node n3")
    room.take(Resources(gpus=2), TaskSlot(3, (0, 2)))
    found = facts(room, share)
    assert (found.domain_slots_now, found.domain_best) == (4, "island 1 of node n2")


# What keeps a request from starting


def test_what_fits_has_no_obstacles() -> None:
    room = mixed_room()
    assert find_obstacles(room, request_of(Resources(gpus=8), 3), (), now_s=0.0) == Obstacles()
    assert not find_obstacles(room, request_of(Resources(gpus=8), 4), (), now_s=0.0).fits


def test_missing_processes_are_left_to_their_own_check() -> None:
    room = mixed_room()
    room.process_slots_free = 1
    processes = request_of(Resources(gpus=8), 2, command=("x",))
    assert find_obstacles(room, processes, (), now_s=0.0) == Obstacles(fits=False)
    room.process_slots_free = 2
    assert find_obstacles(room, processes, (), now_s=0.0) == Obstacles()
    room.process_slots_free = 0
    kept = reserved(room, "first", (0, 1))
    assert find_obstacles(room, processes, (kept,), now_s=0.0) == Obstacles(fits=False, kept_by=(kept,))
    assert room.process_slots_free == 0


def test_the_reservation_without_which_it_would_fit_is_named() -> None:
    room = mixed_room()
    room.take(Resources(gpus=8), TaskSlot(1, ALL))
    room.take(Resources(gpus=8), TaskSlot(5, ALL))
    other, blocking = reserved(room, "other", (2,)), reserved(room, "first", (0,))
    found = find_obstacles(room, request_of(Resources(gpus=8)), (other, blocking), now_s=0.0)
    assert found == Obstacles(fits=False, kept_by=(blocking,))
    room.give_back(Resources(gpus=8), TaskSlot(1, ALL))
    second = reserved(room, "second", (1,))
    found = find_obstacles(room, request_of(Resources(gpus=8)), (blocking, second), now_s=0.0)
    assert found == Obstacles(fits=False, kept_by=(blocking, second)), "only both together are in its way"
    names = facts(room, request_of(Resources(gpus=8)), reservations=(blocking, second), now_s=100.0).kept_free
    assert names == (
        "1 node is reserved for first, which starts there within 900 s; "
        "1 node is reserved for second, which starts there within 900 s"
    )


def test_fewer_tasks_count_once_a_gang_may_degrade() -> None:
    room = mixed_room()
    elastic = request_of(Resources(gpus=8), 5, gang=Gang(tasks_min=3, degrade_after_s=100.0))
    assert not find_obstacles(room, elastic, (), now_s=99.0).fits
    assert find_obstacles(room, elastic, (), now_s=100.0) == Obstacles()
    assert facts(room, elastic, now_s=99.0).tasks_now == 5
    assert facts(room, elastic, now_s=100.0).tasks_now == 3


@pytest.mark.parametrize(
    ("rack_kw", "zone_kw", "tasks", "short"),
    [
        ((20, 20, 20), (40, 20), 2, ""),
        ((9, 20, 20), (40, 20), 2, "the feed of rack r0 has 8.0 kW free; it would draw 11.2 kW there"),
        ((20, 20, 20), (9, 20), 2, "cooling zone z0 has 7.0 kW free; it would draw 11.2 kW there"),
        (
            (9, 20, 5),
            (9, 20),
            3,
            "cooling zone z0 has 7.0 kW free; it would draw 16.8 kW there; the feed of rack r0 has 8.0 kW free; it "
            "would draw 11.2 kW there; the feed of rack r2 has 4.0 kW free; it would draw 5.6 kW there",
        ),
        ((20, 20, 20), (1.5, 20), 2, "cooling zone z0 has 0.0 kW free; it would draw 11.2 kW there"),
    ],
)
def test_short_feeds_and_plants_are_named_with_what_they_have_and_what_it_would_draw(
    rack_kw: tuple[float, float, float], zone_kw: tuple[float, float], tasks: int, short: str
) -> None:
    room = mixed_room(rack_kw=rack_kw, zone_kw=zone_kw)
    gang = request_of(Resources(gpus=8), tasks, required=Level.RACK if tasks == 2 else Level.HUB)
    assert find_obstacles(room, gang, (), now_s=0.0).power_short == short
    assert power_limit(room, gang) == short
    assert power_limit(room, request_of(Resources(gpus=8), 4)) == "", "there are not even GPUs enough"
    assert facts(room, gang).power_limit == short


def test_a_limit_of_power_is_that_of_the_empty_hub_and_of_the_fewest_tasks() -> None:
    room = mixed_room(rack_kw=(9, 20, 20))
    elastic = request_of(Resources(gpus=8), 2, required=Level.RACK, gang=Gang(tasks_min=1, degrade_after_s=100.0))
    assert power_limit(room, elastic) == ""
    rigid = request_of(Resources(gpus=8), 2, required=Level.RACK)
    for row in (0, 1, 5):
        room.take(Resources(gpus=1), TaskSlot(row, (0,)))
    assert "the feed of rack r0 has 8.0 kW free" in power_limit(room, rigid), "as if nothing ran"
    assert find_obstacles(room, rigid, (), now_s=0.0) == Obstacles(fits=False), "now GPUs are missing, too"


# What was taken out of use


def test_cordoned_nodes_and_idle_sick_gpus_are_named() -> None:
    room, wants = mixed_room(), request_of(Resources(gpus=4, gpu_model="big"), 6)
    assert (facts(room, wants).held_back, facts(room, wants).held_back_slots) == ("", 0)
    room.cordon("n0", True)
    room.cordon("n2", True)  # of another model
    found = facts(room, wants)
    assert (found.held_back, found.held_back_slots) == ("2 more would fit on cordoned nodes (n0)", 2)
    room.take(Resources(gpus=8), TaskSlot(0, ALL))
    found = facts(room, wants)
    assert (found.held_back, found.held_back_slots) == ("none more would fit on cordoned nodes (n0)", 0)
    room.set_health("n5", 0, False)
    room.set_health("n0", 0, False)  # in use: it is not idle
    room.set_health("n2", 0, False)  # of another model
    found = facts(room, wants)
    assert found.held_back == ("none more would fit on cordoned nodes (n0); 1 suitable GPUs are idle but unhealthy")
    assert facts(room, request_of(Resources(cpus=1))).held_back == "79 more would fit on cordoned nodes (n0, n2)"
    room.serve(["n0", "n2"], False)
    assert facts(room, wants).held_back == "1 suitable GPUs are idle but unhealthy"


def test_three_cordoned_nodes_are_named_and_the_others_are_counted() -> None:
    room = mixed_room()
    for name in ("n0", "n1", "n2"):
        room.cordon(name, True)
    assert facts(room, request_of(Resources(gpus=2))).held_back == "10 more would fit on cordoned nodes (n0, n1, n2)"
    for name in ("n3", "n4"):
        room.cordon(name, True)
    found = facts(room, request_of(Resources(gpus=2)))
    assert found.held_back == "13 more would fit on cordoned nodes (n0, n1, n2 and 2 more)"
    assert (found.nodes_up, found.held_back_slots) == (1, 13)


def test_exclusive_work_counts_only_nodes_without_any() -> None:
    room = mixed_room()
    room.take(Resources(gpus=1), TaskSlot(0, (0,)))
    alone = request_of(Resources(gpus=4), exclusive=True)
    assert facts(room, alone).slots_now == 2 + 1 + 1 + 2
    room.cordon("n0", True)
    room.cordon("n5", True)
    found = facts(room, alone)
    assert (found.slots_now, found.held_back_slots) == (4, 2)


# What peers publish


BIG = ModelFacts("big", 80, total=20, free=11, gpus_per_node_max=8, free_shapes=(1, 0, 1, 0, 0, 0, 1, 0))
SMALL = ModelFacts("small", 40, total=5, free=4, gpus_per_node_max=4, free_shapes=(0, 0, 0, 1))


@pytest.mark.parametrize(
    ("needs", "models", "nodes_up", "expected"),
    [
        (Resources(cpus=1), (BIG,), 1, (6, 6)),
        (Resources(cpus=1), (BIG,), 0, (6, 0)),
        (Resources(gpus=1), (BIG, SMALL), 1, (25, 15)),
        (Resources(gpus=2), (BIG, SMALL), 1, (12, 1 + 3 + 2)),
        (Resources(gpus=3), (BIG, SMALL), 1, (7, 1 + 2 + 1)),
        (Resources(gpus=5), (BIG, SMALL), 1, (4, 1)),
        (Resources(gpus=1, gpu_fraction=0.3), (BIG, SMALL), 1, (75, 45)),
        (Resources(gpus=1, gpu_fraction=0.3, gpu_memory_gb=20), (BIG, SMALL), 1, (50, 30)),
        (Resources(gpus=1, gpu_fraction=0.3, gpu_memory_gb=20), (BIG,), 1, (60, 33)),
        (Resources(gpus=1, gpu_fraction=0.3, gpu_memory_gb=20), (), 1, (0, 0)),
    ],
)
def test_tasks_that_a_peer_could_take_are_estimated_from_its_histogram(
    needs: Resources, models: tuple[ModelFacts, ...], nodes_up: int, expected: tuple[int, int]
) -> None:
    assert published_slots(models, replace(request_of(needs), tasks=6), nodes_up) == expected
