"""Hardware that is worse than it was: the next decision goes elsewhere while it can, and says what it counted."""

from __future__ import annotations

import pytest

from harch.hub.explain import explain
from harch.hub.jobs import events as ev
from harch.hub.store.records import ConditionKind
from harch.placement.request import PlacementRequest
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import Level, Resources, Topology, WorkloadSpec
from unit.hub.conftest import Bench

H100_NODES = ("dakhla-r01-n01", "dakhla-r01-n02", "dakhla-r02-n01", "dakhla-r02-n02")


def degrade(bench: Bench, kind: ConditionKind, subject: str, value: float | None) -> None:
    bench.handle(ev.HardwareChanged(kind, subject, value, "test"))


def run(bench: Bench, *, gpus: int = 8, tasks: int = 1, **topology: object) -> Workload:
    spec = WorkloadSpec(
        name=f"job-{bench.count}",
        tasks=tasks,
        modelled_duration_s=600,
        resources=Resources(gpus=gpus, gpu_model="h100-80gb"),
        topology=Topology(**topology),  # type: ignore[arg-type]
    )
    bench.count += 1
    workload = bench.submit_spec(spec)
    bench.place()
    return workload


def nodes_of(workload: Workload) -> list[str]:
    return [task.node_id for task in workload.placement]


@pytest.mark.parametrize("factor", [0.0, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("healthy", H100_NODES)
def test_eight_gpus_go_to_the_node_whose_nvlink_is_whole(bench: Bench, factor: float, healthy: str) -> None:
    for node in H100_NODES:
        if node != healthy:
            degrade(bench, ConditionKind.NVLINK, node, factor)
    assert nodes_of(run(bench)) == [healthy]


@pytest.mark.parametrize("healthy", H100_NODES)
def test_a_gang_in_one_island_goes_where_nvlink_is_whole(bench: Bench, healthy: str) -> None:
    for node in H100_NODES:
        if node != healthy:
            degrade(bench, ConditionKind.NVLINK, node, 0.05)
    assert nodes_of(run(bench, gpus=2, tasks=4)) == [healthy] * 4


def test_of_degraded_links_the_best_one_is_taken_and_nothing_is_forbidden(bench: Bench) -> None:
    for node, factor in zip(H100_NODES, (0.1, 0.2, 0.6, 0.3), strict=True):
        degrade(bench, ConditionKind.NVLINK, node, factor)
    first = run(bench)
    assert nodes_of(first) == ["dakhla-r02-n01"]
    assert first.predicted_slowdown == pytest.approx(1 / 0.6)
    assert sorted(node for _ in range(3) for node in nodes_of(run(bench))) == sorted(
        set(H100_NODES) - {"dakhla-r02-n01"}
    )


def test_a_gang_leaves_an_island_that_is_slower_than_the_network(bench: Bench) -> None:
    """The only islands with eight free GPUs are down to PCIe; two half-free nodes of one rack are whole."""
    for node in H100_NODES[2:]:
        degrade(bench, ConditionKind.NVLINK, node, 0.0)
    for node in H100_NODES[:2]:
        for other in H100_NODES:
            degrade(bench, ConditionKind.CORDONED, other, None if other == node else 1)
        assert nodes_of(run(bench, gpus=4)) == [node]
    for node in H100_NODES:
        degrade(bench, ConditionKind.CORDONED, node, None)
    assert set(nodes_of(run(bench, gpus=4, tasks=2))) == set(H100_NODES[:2])


def test_a_gang_of_two_racks_avoids_the_weak_uplink(bench: Bench) -> None:
    degrade(bench, ConditionKind.UPLINK, "dakhla-r01", 0.1)
    assert nodes_of(run(bench, tasks=2, preferred=Level.HUB)) == ["dakhla-r02-n01", "dakhla-r02-n02"]


def test_what_a_single_gpu_does_not_need_does_not_matter_to_it(bench: Bench) -> None:
    before = nodes_of(run(bench, gpus=1))
    degrade(bench, ConditionKind.NVLINK, before[0], 0.0)
    assert nodes_of(run(bench, gpus=1)) == before


def test_among_equals_a_node_without_sick_gpus_is_taken(bench: Bench) -> None:
    degrade(bench, ConditionKind.UNHEALTHY, "dakhla-r01-n01-g7", 1)
    for other in H100_NODES:
        degrade(bench, ConditionKind.CORDONED, other, None if other == "dakhla-r02-n02" else 1)
    assert nodes_of(run(bench, gpus=1)) == ["dakhla-r02-n02"]
    for other in H100_NODES:
        degrade(bench, ConditionKind.CORDONED, other, None)
    assert nodes_of(run(bench, gpus=4)) == ["dakhla-r02-n02"]  # both have seven GPUs free
    degrade(bench, ConditionKind.UNHEALTHY, "dakhla-r01-n01-g7", None)


def test_a_gang_stays_away_from_sick_neighbours(bench: Bench) -> None:
    degrade(bench, ConditionKind.UNHEALTHY, "dakhla-r01-n01-g7", 1)
    assert "dakhla-r01-n01" not in nodes_of(run(bench, gpus=1, tasks=4))


def test_links_that_recover_count_again_at_once(bench: Bench) -> None:
    degrade(bench, ConditionKind.NVLINK, "dakhla-r01-n01", 0.05)
    degrade(bench, ConditionKind.NVLINK, "dakhla-r01-n01", None)
    assert nodes_of(run(bench)) == ["dakhla-r01-n01"]


def test_the_score_tells_what_the_links_cost(bench: Bench) -> None:
    for node in H100_NODES:
        degrade(bench, ConditionKind.NVLINK, node, 0.05)
    placed = run(bench)
    assert placed.placement_score["links"] < 0
    spec = WorkloadSpec(name="asks", resources=Resources(gpus=8))
    told = explain(bench.machine, bench.context, PlacementRequest.of("asks", spec), [], None)
    assert all(candidate.parts["links"] < 0 for candidate in told.hubs[0].candidates)
