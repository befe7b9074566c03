"""The work of all hubs in one list, work that others run, and hubs that take none."""

from __future__ import annotations

import pytest

from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import State
from unit.api.conftest import Client
from unit.api.fake_hub import FakeHub


async def test_all_hubs_are_one_list_and_who_did_not_answer_is_named(operator: Client, user: Client) -> None:
    await user.post("/workloads", json={"name": "here", "env": {"TOKEN": "x"}})
    page = (await operator.get("/workloads", params={"scope": "federation"})).json()
    here, there = page["items"]
    assert (here["name"], here["hub_id"], here["runner_hub"]) == ("here", "dakhla", "")
    assert (there["hub_id"], there["runner_hub"], there["epoch"], there["nodes"]) == (
        "dakar",
        "tangier",
        2,
        ["tangier-r1-n1"],
    )
    assert (page["total"], page["pagination"]["total_pages"], page["complete"]) == (2, 1, False)
    silent = {"hub_id": "abidjan", "why": "suspected", "age_s": 7.5, "workloads": {"running": 3}}
    assert page["silent_hubs"] == [silent]
    assert "TOKEN" not in str(page)


async def test_a_user_sees_the_own_tenant_of_all_hubs(user: Client) -> None:
    await user.post("/workloads", json={"name": "here"})
    page = (await user.get("/workloads", params={"scope": "federation"})).json()
    assert [item["tenant"] for item in page["items"]] == ["acme"]
    asked = await user.get("/workloads", params={"scope": "federation", "tenant": "globex"})
    assert asked.status_code == 403


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"status": "running"}, ["there"]),
        ({"name": "here"}, ["here"]),
        ({"hub_id": "Dakar"}, ["there"]),
        ({"per_page": "1", "page": "2"}, ["there"]),
    ],
)
async def test_the_list_of_all_hubs_has_filters_and_pages(
    operator: Client, user: Client, params: dict[str, str], names: list[str]
) -> None:
    await user.post("/workloads", json={"name": "here"})
    page = (await operator.get("/workloads", params={"scope": "federation", **params})).json()
    assert [item["name"] for item in page["items"]] == names


@pytest.mark.parametrize("params", [{"scope": "galaxy"}, {"scope": "federation", "label.a": "b"}])
async def test_what_only_a_hub_knows_cannot_be_asked_of_all(operator: Client, params: dict[str, str]) -> None:
    assert (await operator.get("/workloads", params=params)).status_code == 400


async def test_lent_work_is_shown_where_it_runs(user: Client, hub: FakeHub) -> None:
    created = (await user.post("/workloads", json={"name": "lent", "stay_home": False})).json()
    workload = hub.store[created["id"]]
    workload.state, workload.leased, workload.epoch, workload.runner_hub = State.RUNNING, True, 3, "dakar"
    workload.runner_placement = (TaskPlacement(rank=0, node_id="dakar-n1", gpu_ids=("g0",)),)
    shown = (await user.get("/workloads/lent")).json()
    assert (shown["hub_id"], shown["runner_hub"], shown["epoch"], shown["guest"]) == ("dakhla", "dakar", 3, False)
    assert (shown["nodes"], shown["placement"][0]["node_id"]) == (["dakar-n1"], "dakar-n1")
    workload.borrowed, workload.owner_hub, workload.runner_hub = True, "dakar", ""
    workload.placement = (TaskPlacement(rank=0, node_id="dakhla-n1", gpu_ids=()),)
    shown = (await user.get("/workloads/lent")).json()
    assert (shown["hub_id"], shown["runner_hub"], shown["guest"]) == ("dakar", "dakhla", True)


async def test_work_may_be_told_to_stay(user: Client, hub: FakeHub) -> None:
    created = (await user.post("/workloads", json={"name": "homely", "stay_home": True})).json()
    assert created["spec"]["stay_home"]
    assert hub.store[created["id"]].spec.stay_home


async def test_operators_close_and_open_the_hub_itself(operator: Client, user: Client, hub: FakeHub) -> None:
    drained = (await operator.post("/hubs/dakhla/drain", json={"why": "new racks"})).json()
    assert (drained["state"], drained["why"], drained["remaining"]["running"]) == ("draining", "new racks", 2)
    assert (await user.get("/hubs/dakhla/closure")).json() == drained
    opened = (await operator.post("/hubs/dakhla/open", json={})).json()
    assert (opened["state"], opened["why"]) == ("open", "requested by operator")
    assert (await user.post("/hubs/dakhla/cordon", json={})).status_code == 403
    early = await operator.post("/hubs/dakhla/retire", json={})
    assert (early.status_code, early.json()["code"]) == (409, "E0304")
    other = await operator.post("/hubs/dakar/drain", json={})
    assert (other.status_code, other.json()["error"]["meta"]["url"]) == (404, "http://127.0.0.1:7704")
    assert hub.operations.closed.name == "OPEN"


async def test_the_public_clients_drain_in_their_own_words(operator: Client, hub: FakeHub) -> None:
    answer = await operator.patch("/hubs/dakhla", json={"action": "drain"})
    assert (answer.status_code, answer.json()["id"]) == (200, "dakhla")
    assert hub.operations.closed.name == "DRAINING"


async def test_a_hub_has_a_word_of_ours_beside_the_public_one(operator: Client) -> None:
    own, near, never = (await operator.get("/hubs")).json()["items"]
    assert (own["standing"], near["standing"]) == ("ready", "ready")
    assert (never["status"], never["standing"], near["rtt_ms"]) == ("offline", "unheard", 8.5)
