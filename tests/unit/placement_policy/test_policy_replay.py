"""Does the replay follow the published protocol, on traces made up here?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harch.base.errors import HarchError
from harch.placement.policy.baselines import BaselinePolicy, BaselineRule
from harch.placement.policy.shapes import ANY_MODEL, NodeShape, ShapeRequest
from harch.simulate.placement import (
    POLICIES,
    NodeList,
    Replay,
    arrivals,
    permuted,
    read_nodes,
    read_requests,
    simulate_placement,
)

OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nnode-b,64000,262144,2,T4\nnode-a,96000,393216,8,G2\n"
OPENB_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,4000,8192,1,460,,LS,Running,0,1,0\np1,4000,8192,1,1000,T4|T4,BE,Pending,0,1,\np2,2000,4096,0,0,,LS,Running,0,1,0\n"
    "p3,8000,8192,2,1000,X9,BE,Running,0,1,0\n"
)
FLEET = NodeList(
    tuple(f"n{index}" for index in range(12)),
    tuple([NodeShape(32_000, 131_072, 4, 0)] * 8 + [NodeShape(16_000, 65_536, 2, 1)] * 4),
    ("big", "small"),
)
TRACE = [
    ShapeRequest(4000, 8192, 1, 460),
    ShapeRequest(4000, 8192, 1, 1000),
    ShapeRequest(2000, 4096, 1, 300, 0b10),
    ShapeRequest(8000, 16_384, 2, 1000),
    ShapeRequest(3000, 4096),
]


def test_openb_columns_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(OPENB_NODES)
    (tmp_path / "pods.csv").write_text(OPENB_PODS)
    nodes = read_nodes(tmp_path / "nodes.csv")
    assert nodes.names == ("node-a", "node-b")
    assert nodes.models == ("G2", "T4")
    assert nodes.gpus == 10
    requests = read_requests(tmp_path / "pods.csv", nodes.models)
    assert [request.models for request in requests] == [ANY_MODEL, 0b10, ANY_MODEL, 0]
    assert requests[2].gpus == 0


def test_request_lists_may_end_after_five_columns(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,4000,8192,1,460\n")
    assert read_requests(tmp_path / "pods.csv", ("G2",)) == [ShapeRequest(4000, 8192, 1, 460)]


def test_the_2026_node_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,7\nH800,8,192,3\n")
    nodes = read_nodes(tmp_path / "nodes.csv")
    assert [(shape.cpu_milli, shape.gpus) for shape in nodes.shapes] == [(192_000, 8), (128_000, 1)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "no column"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "no node"),
        ("sn,cpu_milli,memory_mib,gpu,model\nx,many,1,1,T4\n", "line 2: `cpu_milli`"),
        ("sn,cpu_milli,memory_mib,gpu,model\nx,-5,1,1,T4\n", "whole number"),
    ],
)
def test_broken_files_are_refused_with_the_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    with pytest.raises(HarchError, match=why):
        read_nodes(tmp_path / "nodes.csv")
    with pytest.raises(HarchError, match="cannot read"):
        read_nodes(tmp_path / "missing.csv")


def test_arrivals_are_the_shuffled_trace_then_draws_up_to_the_load() -> None:
    capacity = FLEET.gpus * 1000
    come = arrivals(TRACE, capacity, 1.3, seed=5)
    assert sorted(come[: len(TRACE)]) == sorted(TRACE)
    demand = sum(request.gpu_milli_total for request in come)
    assert capacity * 1.3 - 2000 <= demand <= capacity * 1.3
    shorter = arrivals(TRACE, capacity, 1.0, seed=5)
    assert come[: len(shorter)] == shorter
    assert arrivals(TRACE, capacity, 1.3, seed=6) != come


def test_a_trace_larger_than_the_load_is_cut() -> None:
    come = arrivals(TRACE * 100, FLEET.gpus * 1000, 1.0, seed=1)
    assert sum(request.gpu_milli_total for request in come) <= FLEET.gpus * 1000


def test_nodes_are_permuted_by_seed() -> None:
    assert sorted(permuted(FLEET.shapes, 1)) == sorted(FLEET.shapes)
    assert permuted(FLEET.shapes, 1) == permuted(FLEET.shapes, 1)


def test_allocation_is_read_at_the_arrived_load() -> None:
    outcome = Replay(np.array([1000, 1000, 1000, 1000]), np.array([1, 0, 1, 1]), 4000)
    assert [outcome.allocation_pct(load) for load in (0.5, 1.0)] == [25.0, 75.0]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_replays_the_same_way_twice(policy: str) -> None:
    first, second = (simulate_placement(FLEET, TRACE, policy=policy, load=1.2, seed=3) for _ in range(2))
    assert first.gpu_allocation_pct == second.gpu_allocation_pct
    assert first.failed == second.failed
    assert 60.0 < first.gpu_allocation_pct <= 100.0
    assert 0.0 <= first.fragmented_pct <= 100.0 - first.gpu_allocation_pct + 1e-6
    assert first.as_dict()["policy"] == policy


def test_the_policy_also_learns_online_and_tells_its_progress() -> None:
    seen: list[tuple[int, int]] = []
    result = simulate_placement(
        FLEET, TRACE, load=1.0, seed=3, history="online", progress=lambda done, total: seen.append((done, total))
    )
    assert result.history == "online"
    assert seen[-1] == (result.requests, result.requests)


def test_a_load_beyond_the_limit_is_refused() -> None:
    with pytest.raises(HarchError, match="load"):
        simulate_placement(FLEET, TRACE, load=0.0)


def test_packing_prefers_devices_then_nodes_in_use() -> None:
    shapes = [NodeShape(32_000, 65_536, 2, 0)] * 3
    policy = BaselinePolicy(shapes, models=1, rule=BaselineRule.PACKING)
    places = [policy.place(ShapeRequest(1000, 1024, 1, milli)) for milli in (400, 400, 1000, 1000)]
    assert [place.node for place in places if place is not None] == [0, 0, 0, 1]


def test_fgd_fills_the_hole_that_nobody_else_can_use() -> None:
    history = np.array([[1000, 1024, 1, 500, -1]] * 9 + [[1000, 1024, 1, 1000, -1]] * 9, dtype=np.int64)
    policy = BaselinePolicy([NodeShape(32_000, 65_536, 2, 0)] * 2, models=1, rule=BaselineRule.FGD, history=history)
    policy.place(ShapeRequest(1000, 1024, 1, 500))
    second = policy.place(ShapeRequest(1000, 1024, 1, 500))
    assert second is not None
    assert policy.nodes.gpu_milli_free[second.node, second.devices[0]] == 0
