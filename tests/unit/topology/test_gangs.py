"""Gangs by example: level by level, tightest first, fullest inside, spread when asked."""

from __future__ import annotations

from collections import Counter

import pytest

from harch.fleet.model import CoolingZone, Gpu, GpuModel, Hub, Node, Provenance, Rack
from harch.placement.gangs import levels_tried, place_gang
from harch.placement.policy.shapes import Bools, Floats
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scoring import BestFit
from harch.workloads.spec import Level, Resources, Strategy, Topology, WorkloadSpec

H100 = GpuModel("h100-80gb", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
A100 = GpuModel("a100-80gb", memory_gb=80, power_w=400, nvlink_gb_per_s=600, pcie_gb_per_s=64)


def room(*, racks: int = 4, nodes: int = 2, heat_kw: float = 1000, power_kw: float = 40, models: str = "hhhh") -> Room:
    """Two racks to a row, nodes of eight GPUs in two islands."""

    def node(rack: int, number: int) -> Node:
        model = H100 if models[rack] == "h" else A100
        gpus = tuple(Gpu(f"r{rack}n{number}g{i}", i, model, i // 4, i // 2, i // 4) for i in range(8))
        return Node(f"r{rack}n{number}", f"r{rack}", gpus, 64, 512, 100, Provenance.MODELLED)

    built = tuple(
        Rack(f"r{rack}", f"row{rack // 2}", "z", power_kw, tuple(node(rack, number) for number in range(nodes)))
        for rack in range(racks)
    )
    found = Room(Hub("hub", "Hub", "MA", "MA", 0, 0, 1.2, (CoolingZone("z", heat_kw),), built))
    found.serve(found.row_of, True)
    return found


def occupy(where: Room, row: int, *devices: int) -> None:
    for device in devices:
        where.take(Resources(gpus=1), TaskSlot(row, (device,)))


def place(where: Room, tasks: int, resources: Resources, **wishes: object) -> tuple[TaskSlot, ...] | None:
    spec = WorkloadSpec(name="w", tasks=tasks, resources=resources, topology=Topology(**wishes))  # type: ignore[arg-type]
    return place_gang(where, PlacementRequest.of("w", spec), tasks, rank_nodes=BestFit(where).node_scores)


def rows(slots: tuple[TaskSlot, ...] | None) -> list[int]:
    assert slots is not None
    return [slot.row for slot in slots]


def test_a_small_gang_shares_the_tightest_island() -> None:
    where = room()
    occupy(where, 5, 0, 1, 2, 3, 4, 5)
    assert place(where, 2, Resources(gpus=1)) == (TaskSlot(5, (6,)), TaskSlot(5, (7,)))


def test_what_no_island_holds_takes_a_node_and_then_a_rack() -> None:
    where = room()
    assert rows(place(where, 2, Resources(gpus=4))) == [0, 0]
    assert rows(place(where, 4, Resources(gpus=4))) == [0, 0, 1, 1]
    assert rows(place(where, 3, Resources(gpus=8))) == [0, 1, 2]
    assert rows(place(where, 5, Resources(gpus=8))) == [0, 1, 2, 3, 4]


def test_the_tightest_rack_is_used_and_the_wide_ones_stay_whole() -> None:
    where = room()
    for row in (4, 5):
        occupy(where, row, 0)
    assert rows(place(where, 2, Resources(gpus=4, cpus=8), preferred=Level.RACK)) == [4, 5]


def mixed_racks() -> Room:
    """Three racks of a row: 2 H100 nodes and 2 A100 nodes, 3 H100 nodes, 4 A100 nodes."""

    def node(rack: int, number: int, letter: str) -> Node:
        model = H100 if letter == "h" else A100
        gpus = tuple(Gpu(f"r{rack}n{number}g{i}", i, model, 0, i // 2, i // 4) for i in range(8))
        return Node(f"r{rack}n{number}", f"r{rack}", gpus, 64, 512, 100, Provenance.MODELLED)

    racks = tuple(
        Rack(f"r{rack}", "row", "z", 100, tuple(node(rack, number, letter) for number, letter in enumerate(models)))
        for rack, models in enumerate(("hhaa", "hhh", "aaaa"))
    )
    found = Room(Hub("hub", "Hub", "MA", "MA", 0, 0, 1.2, (CoolingZone("z", 1000),), racks))
    found.serve(found.row_of, True)
    return found


def test_free_gpus_of_other_models_do_not_make_a_rack_wide() -> None:
    where = mixed_racks()
    both = place(where, 2, Resources(gpus=8, gpu_model="h100-80gb"), preferred=Level.RACK)
    assert rows(both) == [0, 1], "the rack with exactly two H100 nodes; the three of the other stay together"
    first = place(where, 2, Resources(gpus=8, gpu_models=("h100-80gb", "a100-80gb")), preferred=Level.RACK)
    assert rows(first) == [0, 1]
    spread = place(where, 2, Resources(gpus=1, gpu_model="h100-80gb"), strategy=Strategy.SPREAD)
    assert rows(spread) == [0, 4], "of each rack the first node with such GPUs"


def test_never_above_the_required_level() -> None:
    where = room()
    assert place(where, 2, Resources(gpus=4), required=Level.ISLAND) is None
    assert place(where, 3, Resources(gpus=8), required=Level.RACK) is None
    assert place(where, 5, Resources(gpus=8), required=Level.ROW) is None
    assert place(where, 9, Resources(gpus=8)) is None


def test_spread_uses_as_many_nodes_and_racks_as_it_can() -> None:
    where = room()
    four = place(where, 4, Resources(gpus=1), strategy=Strategy.SPREAD)
    assert len({int(where.rack[row]) for row in rows(four)}) == 4
    ten = Counter(rows(place(where, 10, Resources(gpus=1), strategy=Strategy.SPREAD)))
    assert len(ten) == 8
    assert max(ten.values()) == 2
    in_rack = place(where, 2, Resources(gpus=1), strategy=Strategy.SPREAD, preferred=Level.RACK)
    assert rows(in_rack) == [0, 1]


def test_exclusive_gangs_want_empty_nodes() -> None:
    where = room()
    occupy(where, 0, 0)
    assert 0 not in rows(place(where, 2, Resources(gpus=8 // 2), exclusive=True))


def test_power_of_a_rack_and_cooling_of_a_zone_are_counted_over_the_whole_gang() -> None:
    assert rows(place(room(power_kw=8), 2, Resources(gpus=8))) == [0, 2]  # one node of 5.6 kW per rack
    assert place(room(heat_kw=12), 2, Resources(gpus=8)) is not None
    assert place(room(heat_kw=12), 3, Resources(gpus=8)) is None


def test_the_first_preferred_model_that_holds_the_whole_gang() -> None:
    where = room(models="haah")
    both = Resources(gpus=8, gpu_models=("a100-80gb", "h100-80gb"))
    assert rows(place(where, 4, both)) == [2, 3, 4, 5]
    occupy(where, 2, 0)
    assert rows(place(where, 4, both)) == [0, 1, 6, 7]
    assert len(rows(place(where, 7, both))) == 7  # mixed, when one alone is not enough


def test_a_gang_that_names_no_model_still_gets_one_if_the_level_allows() -> None:
    where = room(models="haah")
    found = rows(place(where, 4, Resources(gpus=8), preferred=Level.HUB))
    assert len({where.hub.nodes[row].gpu_model.name for row in found}) == 1
    assert len(rows(place(where, 6, Resources(gpus=8)))) == 6


def test_the_policy_decides_between_equal_domains() -> None:
    where = room()

    def likes_row_6(kind: Kind, nodes: Bools) -> Floats:
        scores = BestFit(where).node_scores(kind, nodes)
        scores[6] += 1
        return scores

    spec = WorkloadSpec(name="w", resources=Resources(gpus=8))
    found = place_gang(where, PlacementRequest.of("w", spec), 1, rank_nodes=likes_row_6)
    assert rows(found) == [6]


def test_nodes_that_are_not_allowed_are_left_alone() -> None:
    where = room()
    allowed = where.rack == 3
    spec = WorkloadSpec(name="w", tasks=2, resources=Resources(gpus=8))
    rank = BestFit(where).node_scores
    found = place_gang(where, PlacementRequest.of("w", spec), 2, rank_nodes=rank, allowed=allowed)
    assert rows(found) == [6, 7]


def test_tasks_of_a_node_keep_their_own_gpus_in_one_island() -> None:
    where = room(racks=1, nodes=1)
    occupy(where, 0, 1, 6)
    found = place(where, 3, Resources(gpus=2), required=Level.NODE)
    assert found is not None
    islands = [{device // 4 for device in slot.devices} for slot in found]
    assert islands == [{0}, {0, 1}, {1}]


@pytest.mark.parametrize(
    ("wishes", "levels"),
    [
        ({}, ["island", "node", "rack", "row", "hub"]),
        ({"required": Level.NODE, "preferred": Level.ROW}, ["node"]),
        ({"required": Level.ROW, "preferred": Level.RACK}, ["rack", "row"]),
        ({"strategy": Strategy.SPREAD}, ["hub"]),
        ({"strategy": Strategy.SPREAD, "preferred": Level.RACK}, ["rack", "row", "hub"]),
    ],
)
def test_levels_go_from_preferred_to_required(wishes: dict[str, object], levels: list[str]) -> None:
    spec = WorkloadSpec(name="w", resources=Resources(gpus=1), topology=Topology(**wishes))  # type: ignore[arg-type]
    assert list(levels_tried(PlacementRequest.of("w", spec))) == levels
