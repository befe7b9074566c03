"""Worn hardware in the score: links, cooling and health, with both scorers, and whole hubs that pay nothing for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.fleet.model import CoolingZone, Gpu, GpuModel, Hub, Node, Provenance, Rack
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.placement.scoring import CRIPPLED_FROM, LAYERS_MAX, Burden
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec

H100 = GpuModel("h100-80gb", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
A100 = GpuModel("a100-80gb", memory_gb=80, power_w=400, nvlink_gb_per_s=600, pcie_gb_per_s=64)


def hub() -> Hub:
    """Two halls with two racks each of two nodes: H100 in the first rack of a hall, A100 in the second."""

    def node(rack: int, number: int) -> Node:
        model = A100 if rack % 2 else H100
        gpus = tuple(Gpu(f"r{rack}n{number}g{i}", i, model, 0, i // 2, i // 4) for i in range(8))
        return Node(f"r{rack}n{number}", f"r{rack}", gpus, 64, 512, 1000, Provenance.MODELLED)

    racks = tuple(
        Rack(f"r{rack}", f"row{rack // 2}", f"hall{rack // 2}", 40, tuple(node(rack, number) for number in range(2)))
        for rack in range(4)
    )
    halls = (CoolingZone("hall0", 100), CoolingZone("hall1", 100))
    return Hub("hub", "Hub", "MA", "MA", 0, 0, 1.2, halls, racks)


def best_fit() -> Scheduler:
    made = Scheduler(hub())
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    return made


def learned() -> Scheduler:
    from harch.placement.learned import LearnedPolicy

    made = best_fit()
    made.use(LearnedPolicy(made.room))
    return made


MAKERS = [best_fit, learned]


@pytest.fixture(params=MAKERS)
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    make: Callable[[], Scheduler] = request.param
    return make()


def ask(name: str, *, gpus: int = 8, tasks: int = 1, **fields: object) -> PlacementRequest:
    resources = fields.pop("resources", None) or Resources(gpus=gpus)
    spec = WorkloadSpec(name=name, tasks=tasks, modelled_duration_s=3600, resources=resources, **fields)  # type: ignore[arg-type]
    return PlacementRequest.of(name, spec, tenant="t")


def place(scheduler: Scheduler, request: PlacementRequest, now_s: float = 0.0) -> list[str]:
    scheduler.submit(request, now_s=now_s)
    plan = scheduler.plan(now_s=now_s, placed_max=100)
    return [task.node_id for item in plan.assignments if item.request.id == request.id for task in item.tasks]


def test_a_whole_hub_has_no_burden_for_anybody(scheduler: Scheduler) -> None:
    assert scheduler.degradation.of(ask("w")) is None
    assert scheduler.degradation.of(ask("w"), 4) is None


def test_work_goes_to_the_hall_whose_cooling_is_whole(scheduler: Scheduler) -> None:
    scheduler.set_cooling(0, 80)
    wish = Resources(gpus=8, gpu_model="h100-80gb")
    assert place(scheduler, ask("one", resources=wish))[0].startswith("r2")
    gang = place(scheduler, ask("two", tasks=2, resources=Resources(gpus=8, gpu_model="a100-80gb")))
    assert gang == ["r3n0", "r3n1"]
    assert [place(scheduler, ask(f"n{n}", resources=wish))[0][:2] for n in range(3)] == ["r2", "r0", "r0"]


def test_a_preferred_model_with_crippled_links_is_used_after_the_second_choice(scheduler: Scheduler) -> None:
    for node in ("r0n0", "r0n1", "r2n0", "r2n1"):
        scheduler.set_nvlink(node, 0.05)
    either = Resources(gpus=8, gpu_models=("h100-80gb", "a100-80gb"))
    racks = [place(scheduler, ask(f"n{n}", resources=either))[0][:2] for n in range(8)]
    assert set(racks[:4]) == {"r1", "r3"}
    assert set(racks[4:]) == {"r0", "r2"}


def test_nobody_is_stopped_on_crippled_links_while_others_would_do(scheduler: Scheduler) -> None:
    for number in range(8):
        assert place(scheduler, ask(f"low-{number}"))
    healthy = "r3n1"
    for node in scheduler.hub.nodes:
        scheduler.set_nvlink(node.id, 1.0 if node.id == healthy else 0.05)
    urgent = ask("urgent", scheduling_class=SchedulingClass.INFERENCE)
    scheduler.submit(urgent, now_s=100)
    (preemption,) = scheduler.plan(now_s=100, placed_max=10).preemptions
    assert [scheduler.hub.nodes[row].id for row in preemption.rows] == [healthy]


def test_nobody_is_moved_off_crippled_links_while_others_would_do(scheduler: Scheduler) -> None:
    for number in range(8):
        assert place(scheduler, ask(f"seven-{number}", gpus=7))
        assert place(scheduler, ask(f"one-{number}", gpus=1))
    for number in range(7):
        scheduler.ended(f"seven-{number}", now_s=1)
    for node in scheduler.hub.nodes:
        scheduler.set_nvlink(node.id, 0.05)
    row = scheduler.running["one-3"].slots[0].row
    scheduler.set_nvlink(scheduler.hub.nodes[row].id, 1.0)
    plan = scheduler.plan_defragmentation(ask("large"), now_s=2)
    assert plan is not None
    assert {slot.row for slot in plan.slots} == {row}


@pytest.mark.parametrize("make", MAKERS)
@given(
    factors=st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]), min_size=8, max_size=8),
    cordoned=st.sets(st.integers(0, 7), max_size=7),
    gpus=st.integers(2, 8),
)
@settings(max_examples=40, deadline=None)
def test_crippled_links_are_used_only_where_nothing_else_has_room(
    make: Callable[[], Scheduler], factors: list[float], cordoned: set[int], gpus: int
) -> None:
    scheduler = make()
    for row, factor in enumerate(factors):
        scheduler.set_nvlink(scheduler.hub.nodes[row].id, factor)
        scheduler.cordon(scheduler.hub.nodes[row].id, row in cordoned)
    slowdown = scheduler.topology.node_slowdowns(gpus)
    given = place(scheduler, ask("w", gpus=gpus))
    open_rows = [row for row in range(8) if row not in cordoned]
    row = scheduler.room.row_of[given[0]]
    assert slowdown[row] < CRIPPLED_FROM or all(slowdown[other] >= CRIPPLED_FROM for other in open_rows)


@pytest.mark.parametrize("make", MAKERS)
@given(
    factors=st.lists(st.sampled_from([0.0, 0.05, 0.5, 1.0]), min_size=8, max_size=8),
    uplinks=st.lists(st.sampled_from([0.1, 1.0]), min_size=4, max_size=4),
    busy=st.lists(st.integers(0, 7), min_size=8, max_size=8),
    shape=st.sampled_from([(2, 2), (2, 4), (4, 2), (3, 8), (4, 8), (6, 1)]),
)
@settings(max_examples=40, deadline=None)
def test_a_gang_is_at_least_as_fast_as_on_whole_nodes_alone(
    make: Callable[[], Scheduler], factors: list[float], uplinks: list[float], busy: list[int], shape: tuple[int, int]
) -> None:
    """Worn hardware is an offer, never a trap: with it a gang talks no slower than without."""
    tasks, gpus = shape
    scheduler = make()
    for row, (factor, taken) in enumerate(zip(factors, busy, strict=True)):
        for _ in range(taken):
            device = int(np.flatnonzero(scheduler.room.arrays.gpu_milli_free[row] == 1000)[0])
            slot = scheduler.room.hub.nodes[row].gpus[device]
            scheduler.set_health(scheduler.hub.nodes[row].id, slot.index, False)
        scheduler.set_nvlink(scheduler.hub.nodes[row].id, factor)
    for rack, factor in enumerate(uplinks):
        scheduler.set_uplink(f"r{rack}", factor)
    request = ask("gang", gpus=gpus, tasks=tasks)
    worn = [row for row in range(8) if factors[row] < 1]
    for row in worn:
        scheduler.cordon(scheduler.hub.nodes[row].id, True)
    on_whole = scheduler.hold(request, now_s=0, until_s=1)
    if on_whole is not None:
        scheduler.ended("gang", now_s=0)
    for row in worn:
        scheduler.cordon(scheduler.hub.nodes[row].id, False)
    anywhere = scheduler.hold(request, now_s=0, until_s=1)
    if on_whole is not None:
        assert anywhere is not None
        assert anywhere.prediction.gb_per_s >= on_whole.prediction.gb_per_s


def test_a_gang_is_laid_out_over_a_limited_number_of_sets_of_nodes_and_all_of_them_are_the_last() -> None:
    octaves = np.arange(2 * LAYERS_MAX, dtype=np.float64)
    zeros = np.zeros(len(octaves))
    burden = Burden(2.0**octaves, np.ones(len(octaves)), links=octaves, cooling=zeros, health=zeros)
    layers = burden.layers()
    assert len(layers) == LAYERS_MAX
    assert [int(layer.sum()) for layer in layers] == [*range(1, LAYERS_MAX), len(octaves)]
