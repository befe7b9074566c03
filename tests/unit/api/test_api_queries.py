"""Topology, gangs, classes and queries arrive at the hub, and are read back, through every way in."""

from __future__ import annotations

from harch.workloads.spec import Level, SchedulingClass
from unit.api.conftest import Client
from unit.api.fake_hub import FakeHub

NATIVE = {
    "tasks": 2,
    "resources": {"gpus": 1, "gpu_fraction": 0.25, "gpu_memory_gb": 30.5, "gpu_models": ["h100-80gb", "a100-80gb"]},
    "topology": {"required": "rack", "preferred": "node", "exclusive": True},
    "gang": {"tasks_min": 1, "degrade_after_s": 5.0},
    "scheduling_class": "interactive",
    "preemptible": False,
}


async def test_every_field_is_taken_and_read_back(user: Client, hub: FakeHub) -> None:
    answer = await user.post("/workloads", json={"name": "all", **NATIVE})
    assert answer.status_code == 201, answer.text
    shown = answer.json()["spec"]
    assert {name: shown[name] for name in NATIVE} == NATIVE
    spec = hub.store[answer.json()["id"]].spec
    assert spec.topology.required is Level.RACK
    assert spec.resources.gpu_memory_gb == 30.5
    assert spec.turn_class is SchedulingClass.INTERACTIVE
    again = {name: value for name, value in shown.items() if value is not None}
    assert (await user.put("/workloads/all", json=again)).json()["spec"] == shown


async def test_memory_without_a_share_is_refused_with_what_to_do(user: Client) -> None:
    for resources in ({"gpus": 1, "gpu_memory_gb": 20}, {"gpus": 1, "gpu_fraction": 0.5, "gpu_memory_gb": 0}):
        answer = await user.post("/workloads", json={"name": "w", "resources": resources})
        assert (answer.status_code, answer.json()["code"]) == (400, "E0201")
        assert "gpu_memory_gb" in answer.json()["message"]
        assert answer.json()["error"]["hint"]


async def test_a_query_is_applied_at_submission_and_kept(user: Client, hub: FakeHub) -> None:
    body = {"name": "words", "query": "16 H100, same rack, in Morocco", "resources": {"cpus": 8}}
    answer = await user.post("/workloads", json=body)
    assert answer.status_code == 201, answer.text
    spec = answer.json()["spec"]
    assert (spec["query"], spec["tasks"], spec["countries_allowed"]) == (body["query"], 2, ["MA"])
    assert spec["resources"] == {"gpus": 8, "gpu_model": "h100-80gb", "cpus": 8.0}
    assert spec["topology"] == {"required": "rack"}
    assert answer.json()["gpus_total"] == 16
    assert (await user.post("/workloads", json=body)).status_code == 200


async def test_a_wrong_query_is_refused_with_its_position_by_submission_plan_and_change(user: Client) -> None:
    await user.post("/workloads", json={"name": "w"})
    wrong = {"name": "w", "query": "8 GPUs, same iland"}
    for answer in (
        await user.post("/workloads", json=wrong),
        await user.post("/workloads/plan", json=wrong),
        await user.put("/workloads/w", json=wrong),
        await user.patch("/workloads/w", json={"query": wrong["query"]}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "E0201")
        assert "character 14" in answer.json()["message"]
        assert answer.json()["error"]["field"] == "query"


async def test_a_query_and_the_clients_own_fields_must_agree(user: Client) -> None:
    answer = await user.post("/workloads", json={"name": "c", "query": "8 GPUs", "compute": {"gpu_count": 4}})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "resources.gpus")


async def test_another_query_replaces_what_the_old_one_said(user: Client) -> None:
    body = {"name": "q", "query": "8 H100, same rack, in MA", "resources": {"cpus": 8}}
    await user.post("/workloads", json=body)
    spec = (await user.patch("/workloads/q", json={"query": "4 A100"})).json()["spec"]
    assert spec["resources"] == {"gpus": 4, "gpu_model": "a100-80gb", "cpus": 8.0}
    assert spec["topology"] == {}
    assert spec["countries_allowed"] == ["MA"]  # a hard rule goes only when it is named
    refused = await user.patch("/workloads/q", json={"query": "4 A100, in SN"})
    assert refused.json()["error"]["field"] == "countries_allowed"


async def test_a_field_that_changes_ends_the_query_and_keeps_the_rest_of_it(user: Client) -> None:
    await user.post("/workloads", json={"name": "f", "query": "8 H100, same rack, in MA"})
    spec = (await user.patch("/workloads/f", json={"topology": {"required": "row"}})).json()["spec"]
    assert spec["query"] is None
    assert spec["topology"] == {"required": "row"}
    assert (spec["resources"]["gpus"], spec["countries_allowed"]) == (8, ["MA"])
    spec = (await user.patch("/workloads/f", json={"labels": {"a": "b"}})).json()["spec"]
    assert spec["topology"] == {"required": "row"}
