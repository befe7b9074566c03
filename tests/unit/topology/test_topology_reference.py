"""Are the modelled bandwidths those of the table? Against rings that are walked edge by edge, and figures by hand."""

from __future__ import annotations

from copy import deepcopy
from math import inf
from random import Random

import numpy as np
import pytest

from harch.placement.room import TaskSlot
from harch.placement.topology import BandwidthTable, Prediction, Tier, TopologyGraph, topology_view
from harch.wire.hardware import IslandView, NodeView, RackView
from harch.workloads.spec import Level, Resources
from unit.placement.mixed_hub import mixed_room, request_of

Place = tuple[int, int]  # row and device
RACK, ROW = (0, 0, 1, 1, 2, 2), (0, 0, 1)
GPUS, ISLAND = (8, 8, 4, 4, 2, 8), (4, 4, 2, 2, 1, 8)
NVLINK, PCIE = (900, 900, 600, 600, 0, 900), (128, 128, 64, 64, 64, 128)


def naive_tier(one: Place, other: Place) -> Tier:
    (row, device), (there, other_device) = one, other
    if ROW[RACK[row]] != ROW[RACK[there]]:
        return Tier.HUB
    if RACK[row] != RACK[there]:
        return Tier.ROW
    if row != there:
        return Tier.RACK
    if device == other_device:
        return Tier.DEVICE
    if NVLINK[row] and device // ISLAND[row] == other_device // ISLAND[row]:
        return Tier.ISLAND
    if device // 2 == other_device // 2:
        return Tier.PCIE_SWITCH
    return Tier.NUMA if device * 2 // GPUS[row] == other_device * 2 // GPUS[row] else Tier.NODE


def naive_edge(graph: TopologyGraph, one: Place, other: Place, links: tuple[int, int]) -> float:
    """`links`: GPUs of the ring on either node, each with a PCIe link of its own out of it."""
    row, there = one[0], other[0]
    between = {Tier.RACK: 86.0, Tier.ROW: 46.0, Tier.HUB: 23.0}
    match tier := naive_tier(one, other):
        case Tier.DEVICE:
            return inf
        case Tier.ISLAND:
            return max(0.4 * PCIE[row], 0.4 * NVLINK[row] * float(graph.nvlink_factor[row]))
        case Tier.PCIE_SWITCH:
            return 0.4 * PCIE[row]
        case Tier.NUMA:
            return 0.31 * PCIE[row]
        case Tier.NODE:
            return 0.25 * PCIE[row]
    network = between[tier]
    if tier is not Tier.RACK:
        network *= min(float(graph.uplink_factor[RACK[row]]), float(graph.uplink_factor[RACK[there]]))
    return min(network, 0.4 * PCIE[row] * links[0], 0.4 * PCIE[there] * links[1])


def naive_ring(graph: TopologyGraph, places: list[Place]) -> float:
    on = {row: sum(place[0] == row for place in places) for row, _ in places}
    ring = zip(places, [*places[1:], places[0]], strict=True)
    return min(naive_edge(graph, one, other, (on[one[0]], on[other[0]])) for one, other in ring)


def worn(seed: int) -> TopologyGraph:
    graph, random = TopologyGraph(mixed_room()), Random(seed)
    if seed:
        for node in graph.room.hub.nodes:
            graph.set_nvlink(node.id, random.choice((0.0, 0.1, 0.5, 1.0)))
        for rack in graph.room.hub.racks:
            graph.set_uplink(rack.id, random.choice((0.1, 0.6, 1.0)))
    return graph


@pytest.mark.parametrize("seed", range(3))
def test_two_gpus_talk_as_fast_as_the_smallest_neighbourhood_that_they_share(seed: int) -> None:
    graph = worn(seed)
    places = [(row, device) for row in range(6) for device in range(GPUS[row])]
    for one in places[:: 1 + seed]:
        for other in places[seed::3]:
            assert graph.tier(one, other) is naive_tier(one, other)
            links = (GPUS[one[0]], GPUS[other[0]])
            expected = min(naive_edge(graph, one, other, links), naive_edge(graph, other, one, links[::-1]))
            assert graph.gb_per_s(one, other) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_a_ring_is_as_fast_as_its_slowest_edge(seed: int) -> None:
    graph, random = worn(seed), Random(seed)
    for gpus in (2, 3, 8):
        placements = []
        for _ in range(12):
            rows = random.choice(([0], [0, 1], [2, 3], [0, 2], [1, 4, 5], [2, 5]))
            everything = [(row, device) for row in rows for device in range(GPUS[row])]
            placements.append(sorted(random.sample(everything, min(gpus, len(everything)))))
        placements = [places for places in placements if len(places) == gpus]
        request = request_of(Resources(gpus=1), gpus)
        best = graph.best_gb_per_s(request.needs, gpus)
        together = graph.predicted_slowdowns(
            request,
            np.array([[row for row, _ in places] for places in placements]),
            np.array([[device for _, device in places] for places in placements]),
        )
        for places, slowdown in zip(placements, together, strict=True):
            slots = tuple(TaskSlot(row, (device,)) for row, device in places)
            found = graph.predict(request, slots)
            expected = naive_ring(graph, places)
            assert found.gb_per_s == pytest.approx(expected)
            assert found.best_gb_per_s == best
            assert found.slowdown == pytest.approx(max(1.0, best / expected))
            assert slowdown == pytest.approx(found.slowdown)
            assert graph.predicted_slowdown(request, slots) == found.slowdown


@pytest.mark.parametrize(
    ("model", "gpus", "tasks", "gb_per_s"),
    [
        ("big", 1, 1, inf),
        ("big", 2, 1, 360.0),
        ("big", 8, 1, 360.0),  # on the node whose island has eight
        ("big", 8, 2, 86.0),
        ("big", 4, 4, 86.0),
        ("big", 8, 3, 23.0),  # row a has only sixteen
        ("small", 2, 1, 240.0),
        ("small", 3, 1, 16.0),
        ("small", 4, 2, 16.0),
        ("card", 2, 1, 25.6),
        ("card", 1, 3, 23.0),
        ("none", 1, 2, 23.0),
        ("none", 0, 9, inf),
    ],
)
def test_the_best_that_so_many_gpus_could_have(model: str, gpus: int, tasks: int, gb_per_s: float) -> None:
    graph = worn(4)
    needs = Resources(gpus=gpus, gpu_model=model)
    assert graph.best_gb_per_s(needs, tasks) == pytest.approx(gb_per_s), "whatever is worn now"
    assert graph.best_gb_per_s(needs, tasks) == pytest.approx(gb_per_s)


def test_so_many_gpus_in_one_row_have_the_network_of_a_row() -> None:
    """Twelve small GPUs, were the row to have them: racks of eight, rows of eight."""
    graph = TopologyGraph(mixed_room(), BandwidthTable(node_share=1.0, numa_share=1.0, rack_gb_per_s=30.0))
    assert graph.best_gb_per_s(Resources(gpus=4, gpu_model="small"), 2) == 30.0
    assert graph.best_gb_per_s(Resources(gpus=4, gpu_model="small"), 3) == 23.0
    assert graph.best_gb_per_s(Resources(gpus=4, gpu_model="big"), 5) == 23.0


@pytest.mark.parametrize(
    ("slots", "level"),
    [
        ((TaskSlot(0, (0, 3)),), Level.ISLAND),
        ((TaskSlot(0, (0,)), TaskSlot(0, (3,))), Level.ISLAND),
        ((TaskSlot(0, (3, 4)),), Level.NODE),
        ((TaskSlot(0, ()),), Level.NODE),
        ((TaskSlot(0, (0,)), TaskSlot(1, (0,))), Level.RACK),
        ((TaskSlot(0, (0,)), TaskSlot(2, (0,))), Level.ROW),
        ((TaskSlot(0, (0,)), TaskSlot(5, (0,))), Level.HUB),
    ],
)
def test_the_lowest_domain_that_holds_all_of_it(slots: tuple[TaskSlot, ...], level: Level) -> None:
    assert worn(0).level_of(slots) is level


def test_nodes_are_as_slow_as_their_best_gpus_are_now() -> None:
    graph = worn(0)
    assert not graph.is_degraded
    graph.set_nvlink("n0", 0.0)
    graph.set_nvlink("n5", 0.5)
    assert graph.is_degraded
    assert graph.node_slowdowns(1).tolist() == [1.0] * 6
    assert graph.node_slowdowns(2).tolist() == pytest.approx([360 / 51.2, 1, 1, 1, 1, 2])
    assert graph.node_slowdowns(4).tolist() == pytest.approx([360 / 51.2, 1, 1, 1, 1, 2])
    assert graph.node_slowdowns(8).tolist() == pytest.approx([1, 1, 1, 1, 1, 2]), "two islands talk over PCIe anyway"
    assert graph.node_slowdowns(72).tolist() == pytest.approx([1, 1, 1, 1, 1, 2])
    graph.set_nvlink("n0", 1.0)
    graph.set_nvlink("n5", 1.0)
    assert not graph.is_degraded
    graph.set_uplink("r2", 0.999)
    assert graph.is_degraded
    assert graph.node_slowdowns(8).tolist() == [1.0] * 6


@pytest.mark.parametrize("factor", [0.0, 1e-7, 1.0001, -1.0])
def test_an_uplink_that_carries_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="a link runs at 1e-06 to 1 of its bandwidth"):
        worn(0).set_uplink("r0", factor)


def test_links_may_run_at_the_ends_of_their_range() -> None:
    graph = worn(0)
    graph.set_uplink("r1", 1e-6)
    graph.set_nvlink("n0", 0.0)
    assert graph.uplink_factor.tolist() == [1.0, 1e-6, 1.0]
    assert graph.nvlink_factor.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    for factor in (-0.001, 1.001):
        with pytest.raises(ValueError, match="a link runs at 0 to 1"):
            graph.set_nvlink("n0", factor)


def test_a_twin_has_links_and_a_room_of_its_own() -> None:
    graph = worn(0)
    twin = deepcopy(graph)
    twin.set_nvlink("n0", 0.5)
    twin.set_uplink("r0", 0.5)
    twin.room.take(Resources(gpus=1), TaskSlot(0, (0,)))
    assert not graph.is_degraded
    assert graph.room.tasks_on.tolist() == [0] * 6
    assert twin.is_degraded


def test_one_gpu_has_nothing_to_wait_for() -> None:
    graph = worn(3)
    one = request_of(Resources(gpus=1))
    assert graph.predict(one, (TaskSlot(0, (0,)),)) == Prediction(Level.ISLAND, inf, inf, 1.0)
    assert graph.predicted_slowdowns(one, np.array([[0], [2]]), np.array([[0], [1]])).tolist() == [1.0, 1.0]
    assert str(graph.predict(one, (TaskSlot(0, (0,)),))) == "one GPU: no communication"
    assert str(Prediction(Level.ROW, 46.4, 86.0, 1.87)) == "in one row, 46 GB/s all-reduce, 1.9x the best (modelled)"


def test_the_view_of_a_hub_names_all_that_is_free_worn_and_sick() -> None:
    graph = worn(0)
    graph.set_uplink("r2", 0.25)
    graph.set_nvlink("n5", 0.5)
    graph.room.take(Resources(gpus=1, gpu_fraction=0.5), TaskSlot(4, (1,)))
    graph.room.set_health("n5", 7, False)
    graph.room.cordon("n4", True)
    view = topology_view(graph)
    assert (view.hub_id, view.bandwidth_source) == ("hub", "modelled")
    assert view.between_gb_per_s == {"rack": 86.0, "row": 46.0, "hub": 23.0}
    assert [rack.rack_id for rack in view.racks] == ["r0", "r1", "r2"]
    assert [rack.cooling_w_free for rack in view.racks] == [40_000 - 4 * 500 - 125, 19_000, 40_000 - 4 * 500 - 125]
    assert view.racks[2] == RackView(
        rack_id="r2",
        row="b",
        cooling_zone="z0",
        power_w_free=20_000 - 2 * 500 - 125,
        cooling_w_free=40_000 - 4 * 500 - 125,
        uplink_factor=0.25,
        nodes=(
            NodeView(
                node_id="n4",
                gpu_model="card",
                available=False,
                nvlink_factor=1.0,
                islands=(
                    IslandView(island=0, gpu_ids=("n4-g0",), gpus_idle=1, gpus_unhealthy=0, gb_per_s=0.0),
                    IslandView(island=1, gpu_ids=("n4-g1",), gpus_idle=0, gpus_unhealthy=0, gb_per_s=0.0),
                ),
            ),
            NodeView(
                node_id="n5",
                gpu_model="big",
                available=True,
                nvlink_factor=0.5,
                islands=(
                    IslandView(
                        island=0,
                        gpu_ids=tuple(f"n5-g{index}" for index in range(8)),
                        gpus_idle=7,
                        gpus_unhealthy=1,
                        gb_per_s=180.0,
                    ),
                ),
            ),
        ),
    )
    assert [island.gb_per_s for island in view.racks[1].nodes[0].islands] == [240.0, 240.0]


@pytest.mark.parametrize("name", ["nvlink_share", "pcie_switch_share", "rack_gb_per_s", "hub_gb_per_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_figures_of_the_table_are_above_0(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be above 0"):
        BandwidthTable(**{name: value})
