"""The modelled bandwidths follow the table, the hardware and its degraded links."""

from __future__ import annotations

import numpy as np
import pytest

from harch.fleet.model import CoolingZone, Gpu, GpuModel, Hub, Node, Provenance, Rack
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.topology import BandwidthTable, Tier, TopologyGraph, topology_view
from harch.workloads.spec import Level, Resources, WorkloadSpec

A100 = GpuModel("a100-80gb", memory_gb=80, power_w=400, nvlink_gb_per_s=600, pcie_gb_per_s=64)
CARD = GpuModel("inference-card", memory_gb=48, power_w=300, nvlink_gb_per_s=0, pcie_gb_per_s=64)
ALL, HALF = tuple(range(8)), tuple(range(4))


def node(node_id: str, rack_id: str, model: GpuModel, island: int) -> Node:
    gpus = tuple(Gpu(f"{node_id}-g{i}", i, model, i // island, i // 2, i // 4) for i in range(8))
    return Node(node_id, rack_id, gpus, 64, 512, 100, Provenance.MODELLED, 500)


def graph() -> TopologyGraph:
    """Rows: 0 and 1 in one rack, 2 in the next rack, 3 in another row, 4 with islands of four, 5 without NVLink."""
    racks = (
        Rack("r0", "a", "z", 40, (node("n0", "r0", A100, 8), node("n1", "r0", A100, 8))),
        Rack("r1", "a", "z", 40, (node("n2", "r1", A100, 8),)),
        Rack("r2", "b", "z", 40, (node("n3", "r2", A100, 8), node("n4", "r2", A100, 4), node("n5", "r2", CARD, 1))),
    )
    room = Room(Hub("hub", "Hub", "MA", "MA", 0, 0, 1.2, (CoolingZone("z", 400),), racks))
    room.serve(room.row_of, True)
    return TopologyGraph(room)


def request(tasks: int, gpus: int, model: str = "a100-80gb") -> PlacementRequest:
    spec = WorkloadSpec(name="w", tasks=tasks, resources=Resources(gpus=gpus, gpu_model=model))
    return PlacementRequest.of("w", spec)


@pytest.mark.parametrize(
    ("one", "other", "tier"),
    [
        ((0, 0), (0, 0), Tier.DEVICE),
        ((0, 0), (0, 7), Tier.ISLAND),
        ((5, 0), (5, 1), Tier.PCIE_SWITCH),
        ((5, 0), (5, 3), Tier.NUMA),
        ((4, 3), (4, 4), Tier.NODE),
        ((0, 0), (1, 0), Tier.RACK),
        ((0, 0), (2, 0), Tier.ROW),
        ((0, 0), (3, 0), Tier.HUB),
    ],
)
def test_two_gpus_share_the_smallest_neighbourhood(one: tuple[int, int], other: tuple[int, int], tier: Tier) -> None:
    assert graph().tier(one, other) is tier


def test_farther_apart_is_never_faster() -> None:
    found = graph()
    speeds = [found.gb_per_s((0, 0), other) for other in [(0, 7), (1, 0), (2, 0), (3, 0)]]
    assert speeds == sorted(speeds, reverse=True)
    card = [found.gb_per_s((5, 0), (5, other)) for other in (1, 3, 7)]
    assert card == sorted(card, reverse=True)


def test_the_published_ratios_come_out_of_the_table() -> None:
    found = graph()
    whole = found.predict(request(1, 8), (TaskSlot(0, ALL),))
    nodes = found.predict(request(2, 4), (TaskSlot(0, HALF), TaskSlot(1, HALF)))
    racks = found.predict(request(2, 4), (TaskSlot(0, HALF), TaskSlot(2, HALF)))
    assert (whole.slowdown, whole.level) == (1.0, Level.ISLAND)
    assert nodes.slowdown == pytest.approx(2.7, abs=0.2)  # reported for 2 x 8 A100 over InfiniBand
    assert nodes.level is Level.RACK
    assert 4 <= racks.slowdown <= 6  # the published claim for eight GPUs over two racks
    assert racks.level is Level.ROW
    assert "modelled" in str(racks)


def test_one_gpu_of_each_node_has_only_its_own_pcie_link() -> None:
    found = graph()
    alone = found.predict(request(2, 1), (TaskSlot(0, (0,)), TaskSlot(1, (0,))))
    assert alone.gb_per_s == pytest.approx(64 * found.table.pcie_switch_share)


def test_degraded_links_slow_down_what_crosses_them_and_nothing_else() -> None:
    found = graph()
    island, racks = (TaskSlot(0, ALL),), (TaskSlot(0, HALF), TaskSlot(2, HALF))
    before = found.predict(request(2, 4), racks).slowdown
    found.set_uplink("r1", 0.5)
    assert found.predict(request(2, 4), racks).slowdown == pytest.approx(2 * before)
    assert found.predict(request(1, 8), island).slowdown == 1.0
    found.set_nvlink("n0", 0.5)
    assert found.predict(request(1, 8), island).slowdown == pytest.approx(2.0)
    assert found.predict(request(1, 8), (TaskSlot(1, ALL),)).slowdown == 1.0
    found.set_nvlink("n0", 0.0)  # PCIe remains
    assert found.predict(request(1, 8), island).gb_per_s == pytest.approx(64 * found.table.pcie_switch_share)
    assert topology_view(found).racks[1].uplink_factor == 0.5


def test_one_gpu_or_none_has_nothing_to_say() -> None:
    found = graph()
    assert found.predict(request(1, 1), (TaskSlot(0, (3,)),)).slowdown == 1.0
    spec = WorkloadSpec(name="w", tasks=2)
    assert found.predict(PlacementRequest.of("w", spec), (TaskSlot(0, ()), TaskSlot(1, ()))).slowdown == 1.0


def test_many_placements_are_judged_as_each_alone() -> None:
    found = graph()
    rows = np.array([[0] * 8, [0] * 4 + [1] * 4, [0] * 4 + [2] * 4, [0] * 4 + [3] * 4, [4] * 8])
    devices = np.tile(np.r_[0:4, 4:8], (5, 1))
    together = found.predicted_slowdowns(request(2, 4), rows, devices)
    for index in range(5):
        slots = (TaskSlot(int(rows[index, 0]), HALF), TaskSlot(int(rows[index, 4]), (4, 5, 6, 7)))
        assert together[index] == pytest.approx(found.predicted_slowdown(request(2, 4), slots))


@pytest.mark.parametrize("factor", [-0.1, 1.1, float("nan")])
def test_a_factor_outside_0_to_1_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        graph().set_nvlink("n0", factor)


def test_a_table_needs_figures_above_0() -> None:
    with pytest.raises(ValueError, match="row_gb_per_s"):
        BandwidthTable(row_gb_per_s=0)


def test_the_view_shows_headroom_health_and_its_source() -> None:
    found = graph()
    found.room.set_health("n0", 3, False)
    found.room.take(Resources(gpus=2), TaskSlot(0, (0, 1)))
    view = topology_view(found)
    island = view.racks[0].nodes[0].islands[0]
    assert (island.gpus_idle, island.gpus_unhealthy) == (5, 1)
    assert view.racks[0].power_w_free == 40_000 - 2 * 500 - 2 * 400
    assert view.bandwidth_source == "modelled"
