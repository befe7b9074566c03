"""Hardware that an operator changes at a real hub with real processes: seen at once, told, and remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harch.sdk import Client
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML, tiny_fleet

pytestmark = pytest.mark.uses("bubblewrap")

H100_NODES = [node.id for node in tiny_fleet().hubs[0].nodes if node.gpu_model.name == "h100-80gb"]
SETTINGS = """
[defragmentation]
moves_max = 4
[quota]
workloads_waiting_max = 50
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "dakhla").mkdir()
    (folder / "dakhla" / "scheduling.toml").write_text(SETTINGS)
    with HubProcess(TINY_FLEET_TOML, "dakhla", folder) as running:
        yield running


@pytest.fixture(autouse=True)
def everything_open(hub: HubProcess) -> Iterator[None]:
    yield
    with hub.client() as client:
        for workload in client.get("/v1/workloads", params={"active": True, "per_page": 100}).json()["items"]:
            client.patch(f"/v1/workloads/{workload['id']}", json={"status": "cancelled"})
        for node in client.get("/v1/nodes", params={"cordoned": True}).json()["items"]:
            client.patch(f"/v1/nodes/{node['id']}", json={"cordoned": False})
        until(lambda: not client.get("/v1/workloads", params={"active": True}).json()["items"], "all to end")


def submit(hub: HubProcess, name: str, gpus: int, seconds: float = 60, **fields: object) -> None:
    spec = {"name": name, "command": ["/usr/bin/env", "sleep", str(seconds)], **fields}
    with hub.client() as client:
        resources = {"gpus": gpus, "gpu_model": "h100-80gb"}
        answer = client.post("/v1/workloads", json={**spec, "resources": resources, "stop_grace_s": 1})
        assert answer.status_code == 201, answer.text


def get(hub: HubProcess, path: str) -> dict[str, Any]:
    with hub.client() as client:
        return dict(client.get(f"/v1{path}").json())


def change(hub: HubProcess, path: str, **fields: object) -> dict[str, Any]:
    with hub.client() as client:
        answer = client.patch(f"/v1{path}", json=fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def wait_for(hub: HubProcess, name: str, status: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = get(hub, f"/workloads/{name}")
        return found if found["status"] == status else None

    return dict(until(look, f"{name} to be {status}"))


def until(look: Callable[[], Any], what: str, within_s: float = 20) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {within_s:g} s for {what}")


def node_of(workload: dict[str, Any]) -> str:
    return str(workload["placement"][0]["node_id"])


def test_work_waits_for_a_cordoned_node_says_so_and_starts_when_it_is_opened(hub: HubProcess) -> None:
    for node in H100_NODES:
        change(hub, f"/nodes/{node}", cordoned=True, why="new memory")
    submit(hub, "patient", 8)
    told = get(hub, "/workloads/patient/why")
    assert told["verdict"] == "must_wait"
    assert f"4 more would fit on cordoned nodes ({H100_NODES[0]}" in told["sentence"]
    assert "1 of 1 pending in class training" in told["turn"]
    listed = get(hub, "/nodes?cordoned=true")
    assert [condition["why"] for condition in listed["items"][0]["conditions"]] == ["new memory"]
    change(hub, f"/nodes/{H100_NODES[2]}", cordoned=False)
    assert node_of(wait_for(hub, "patient", "running")) == H100_NODES[2]


def test_a_drained_node_hands_its_work_over_to_another(hub: HubProcess) -> None:
    submit(hub, "mover", 8)
    first = node_of(wait_for(hub, "mover", "running"))
    with Client(hub.url, hub.key) as client:
        assert client.nodes.drain(first, why="new power supply").cordoned
        until(lambda: client.nodes.get(first).tasks == 0, "the node to be empty")
    moved = until(lambda: (w := get(hub, "/workloads/mover"))["attempt"] == 2 and w["placement"] and w, "a new place")
    assert node_of(moved) != first


def test_a_gpu_that_is_marked_is_not_given_and_this_survives_a_restart(hub: HubProcess) -> None:
    sick = f"{H100_NODES[0]}-g3"
    for node in H100_NODES[1:]:
        change(hub, f"/nodes/{node}", cordoned=True)
    assert change(hub, f"/gpus/{sick}", healthy=False, why="ECC errors")["healthy"] is False
    hub.kill_hub()
    hub.start_hub()
    hub.wait_for_agents()
    state = get(hub, f"/nodes/{H100_NODES[0]}")
    assert (state["gpus_unhealthy"], state["gpus_free"]) == (1, 7)
    assert state["conditions"][0]["why"] == "ECC errors"
    assert get(hub, f"/nodes/{H100_NODES[1]}")["cordoned"]
    submit(hub, "whole", 8)
    submit(hub, "seven", 7)
    gpus = wait_for(hub, "seven", "running")["placement"][0]["gpu_ids"]
    assert len(gpus) == 7
    assert sick not in gpus
    assert get(hub, "/workloads/whole")["status"] == "pending"
    assert "1 suitable GPUs are idle but unhealthy" in get(hub, "/workloads/whole/why")["sentence"]
    change(hub, f"/gpus/{sick}", healthy=True)


def test_moves_make_room_for_a_workload_that_waits(hub: HubProcess) -> None:
    for number, node in enumerate(H100_NODES):  # one GPU of each node in use: no node is whole
        for other in H100_NODES:
            change(hub, f"/nodes/{other}", cordoned=other != node)
        submit(hub, f"small-{number}", 1)
        wait_for(hub, f"small-{number}", "running")
    for node in H100_NODES:
        change(hub, f"/nodes/{node}", cordoned=False)
    submit(hub, "large", 8)
    with Client(hub.url, hub.key) as client:
        plan = client.nodes.defragment("large")
        assert (plan.applied, plan.pays, len(plan.moves)) == (False, True, 1)
        assert get(hub, "/workloads/large")["status"] == "pending"
        made = client.nodes.defragment("large", apply=True)
    assert made.applied
    assert node_of(wait_for(hub, "large", "running")) in made.nodes
    mover = made.moves[0].name
    moved = until(
        lambda: (w := get(hub, f"/workloads/{mover}"))["attempt"] == 2 and w["placement"] and w, "a new place"
    )
    assert node_of(moved) not in made.nodes
