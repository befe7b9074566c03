"""Nodes, GPUs, racks and cooling zones over HTTP: anybody may look, operators may change."""

from __future__ import annotations

import pytest

from unit.api.conftest import Client
from unit.api.fake_hub import FakeHub

NODE = "dakhla-r1-n1"


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({}, [1, 2]),
        ({"model": "h100"}, [1]),
        ({"rack": "dakhla-r1", "row": "A"}, [1, 2]),
        ({"rack": "dakhla-r1", "cordoned": "true"}, []),
        ({"cordoned": "true"}, []),
        ({"served": "true", "page": "2", "per_page": "1"}, [2]),
    ],
)
async def test_nodes_are_listed_and_filtered(viewer: Client, params: dict[str, str], numbers: list[int]) -> None:
    page = (await viewer.get("/nodes", params=params)).json()
    assert [node["id"] for node in page["items"]] == [f"dakhla-r1-n{number}" for number in numbers]


async def test_an_operator_cordons_and_opens_a_node(operator: Client, hub: FakeHub) -> None:
    answer = await operator.patch(f"/nodes/{NODE}", json={"cordoned": True, "why": "new memory"})
    assert (answer.json()["cordoned"], answer.json()["available"]) == (True, False)
    assert (await operator.get("/nodes", params={"cordoned": True})).json()["total"] == 1
    assert (await operator.patch(f"/nodes/{NODE}", json={"cordoned": False})).json()["available"]
    assert hub.operations.said == ["new memory", "requested by operator"]


async def test_a_link_is_degraded_and_restored_without_touching_the_cordon(operator: Client) -> None:
    await operator.patch(f"/nodes/{NODE}", json={"cordoned": True})
    slow = (await operator.patch(f"/nodes/{NODE}", json={"nvlink_factor": 0.5})).json()
    assert (slow["nvlink_factor"], slow["cordoned"]) == (0.5, True)
    whole = (await operator.patch(f"/nodes/{NODE}", json={"nvlink_factor": None})).json()
    assert (whole["nvlink_factor"], whole["cordoned"]) == (1, True)


async def test_a_node_is_drained_with_or_without_a_reason(operator: Client, hub: FakeHub) -> None:
    assert (await operator.post(f"/nodes/{NODE}/drain")).json()["cordoned"]
    assert (await operator.post(f"/nodes/{NODE}/drain", json={"why": "fan"})).status_code == 200
    assert hub.operations.said == ["requested by operator", "fan"]


async def test_a_gpu_is_marked(operator: Client, hub: FakeHub) -> None:
    answer = await operator.patch(f"/gpus/{NODE}-g3", json={"healthy": False, "why": "ECC errors"})
    assert answer.json()["id"] == f"{NODE}-g3"
    assert hub.operations.said == ["unhealthy: ECC errors"]


async def test_cooling_and_uplinks_change(operator: Client, viewer: Client) -> None:
    weak = await operator.patch("/cooling-zones/dakhla-hall-1", json={"heat_kw_max": 35})
    assert weak.json()["heat_kw_max"] == 35
    assert (await viewer.get("/cooling-zones/dakhla-hall-1")).json()["why"] == "requested by operator"
    assert (await viewer.get("/cooling-zones")).json()["total"] == 1
    assert (await operator.patch("/racks/dakhla-r1", json={"uplink_factor": 0.5})).json()["uplink_factor"] == 0.5
    assert (await viewer.get("/racks")).json()["items"][0]["uplink_factor"] == 0.5


async def test_the_topology_says_that_its_bandwidth_is_modelled(viewer: Client) -> None:
    view = (await viewer.get("/topology")).json()
    assert view["bandwidth_source"] == "modelled"
    assert set(view["between_gb_per_s"]) == {"rack", "row", "hub"}
    assert len(view["racks"][0]["nodes"][0]["islands"][0]["gpu_ids"]) == 8


async def test_moves_are_planned_and_only_made_when_asked_for(operator: Client) -> None:
    plan = (await operator.post("/workloads/large/defragment", json={})).json()
    assert (plan["applied"], plan["pays"], plan["moves"][0]["name"]) == (False, True, "small")
    assert (await operator.post("/workloads/large/defragment", json={"apply": True})).json()["applied"]


WRITES = [
    ("PATCH", f"/nodes/{NODE}", {"cordoned": True}),
    ("POST", f"/nodes/{NODE}/drain", {}),
    ("PATCH", f"/gpus/{NODE}-g0", {"healthy": False}),
    ("PATCH", "/cooling-zones/dakhla-hall-1", {"heat_kw_max": 3}),
    ("PATCH", "/racks/dakhla-r1", {"uplink_factor": 0.5}),
    ("POST", "/workloads/large/defragment", {"apply": True}),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_only_operators_change_hardware(user: Client, method: str, path: str, body: dict[str, object]) -> None:
    assert (await user.request(method, path, json=body)).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("PATCH", f"/nodes/{NODE}", {}, "E0201"),
        ("PATCH", f"/nodes/{NODE}", {"cordon": True}, "E0201"),
        ("PATCH", f"/nodes/{NODE}", {"cordoned": None}, "E0201"),
        ("PATCH", "/nodes/nowhere", {"cordoned": True}, "E0311"),
        ("GET", "/nodes/nowhere", None, "E0311"),
        ("GET", "/cooling-zones/nowhere", None, "E0311"),
        ("PATCH", "/gpus/nowhere", {"healthy": True}, "E0311"),
        ("PATCH", "/racks/nowhere", {"uplink_factor": 1}, "E0311"),
        ("PATCH", "/racks/dakhla-r1", {}, "E0201"),
    ],
)
async def test_what_cannot_be_is_refused(operator: Client, method: str, path: str, body: object, code: str) -> None:
    answer = await operator.request(method, path, json=body)
    assert answer.json()["code"] == code
