from __future__ import annotations

import pytest

from harch.workloads.lifecycle import State
from unit.api.conftest import Client, ClientOf
from unit.api.fake_hub import OTHER_TENANT_KEY, FakeHub


async def submit(client: Client, name: str, **fields: object) -> dict[str, object]:
    answer = await client.post("/workloads", json={"name": name, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_lists_have_items_total_and_pagination(user: Client) -> None:
    for index in range(5):
        await submit(user, f"job-{index}")
    page = (await user.get("/workloads", params={"page": 2, "per_page": 2})).json()
    assert [item["name"] for item in page["items"]] == ["job-2", "job-1"]
    assert page["total"] == 5
    assert page["pagination"] == {
        "total": 5,
        "page": 2,
        "per_page": 2,
        "total_pages": 3,
        "has_next": True,
        "has_prev": True,
    }


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"status": "pending"}, ["b", "a"]),
        ({"status": "queued"}, ["b", "a"]),
        ({"status": "paused"}, ["c"]),
        ({"type": "training"}, ["b"]),
        ({"name": "a"}, ["a"]),
        ({"label.team": "x"}, ["a"]),
        ({"label.team": "x", "label.none": "y"}, []),
        ({"hub_id": "dakhla"}, ["c", "b", "a"]),
        ({"hub_id": "dakar"}, []),
        ({"active": "true"}, ["c", "b", "a"]),
    ],
)
async def test_filters_narrow_a_list(user: Client, params: dict[str, str], names: list[str]) -> None:
    await submit(user, "a", labels={"team": "x"})
    await submit(user, "b", type="training")
    await submit(user, "c")
    await user.patch("/workloads/c", json={"status": "paused"})
    found = (await user.get("/workloads", params=params)).json()["items"]
    assert [item["name"] for item in found] == names


@pytest.mark.parametrize(
    "params", [{"per_page": "101"}, {"per_page": "0"}, {"page": "0"}, {"page": "x"}, {"status": "odd"}, {"type": "odd"}]
)
async def test_wrong_parameters_are_400_and_named(user: Client, params: dict[str, str]) -> None:
    answer = await user.get("/workloads", params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, "E0201")
    assert answer.json()["error"]["field"] == next(iter(params))


async def test_tenants_see_their_own_work_and_operators_all(
    user: Client, operator: Client, client_of: ClientOf
) -> None:
    other = client_of(OTHER_TENANT_KEY)
    mine = await submit(user, "mine")
    await submit(other, "theirs")
    assert [item["name"] for item in (await user.get("/workloads")).json()["items"]] == ["mine"]
    assert (await other.get(f"/workloads/{mine['id']}")).status_code == 404
    assert (await other.delete(f"/workloads/{mine['id']}")).status_code == 404
    assert (await user.get("/workloads", params={"tenant": "globex"})).status_code == 403
    assert (await operator.get("/workloads")).json()["total"] == 2
    assert (await operator.get("/workloads", params={"tenant": "globex"})).json()["total"] == 1


async def test_viewers_read_and_change_nothing(user: Client, viewer: Client) -> None:
    ident = (await submit(user, "seen"))["id"]
    assert (await viewer.get(f"/workloads/{ident}")).status_code == 200
    assert (await viewer.get(f"/workloads/{ident}/why")).status_code == 200
    assert (await viewer.post("/workloads/plan", json={"name": "p"})).status_code == 200
    for answer in (
        await viewer.put(f"/workloads/{ident}", json={"priority": "high"}),
        await viewer.patch(f"/workloads/{ident}", json={"status": "cancelled"}),
        await viewer.delete(f"/workloads/{ident}"),
        await viewer.post(f"/workloads/{ident}/restart"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "E0103")


async def test_status_actions_pause_resume_and_cancel(user: Client) -> None:
    await submit(user, "act")
    for word in ("paused", "running", "cancelled"):
        answer = await user.patch("/workloads/act", json={"status": word})
        assert (answer.status_code, answer.json()["status"]) == (200, word)
    assert (await user.patch("/workloads/act", json={"status": "running"})).json()["code"] == "E0304"


async def test_tenants_see_their_own_quota_and_operators_all(user: Client, operator: Client) -> None:
    (own,) = (await user.get("/quotas")).json()["items"]
    assert (own["tenant"], own["gpus_held"], own["gpus_held_max"]) == ("acme", 8.0, 64.0)
    assert [one["tenant"] for one in (await operator.get("/quotas")).json()["items"]] == ["acme", "globex"]


async def test_why_work_waits_is_said_of_one_and_in_lists(user: Client) -> None:
    await submit(user, "waits")
    shown = (await user.get("/workloads/waits")).json()
    (listed,) = (await user.get("/workloads")).json()["items"]
    assert shown["pending_reason"] == listed["pending_reason"] == "waits for free resources"


async def test_a_restart_names_who_wants_it(user: Client) -> None:
    await submit(user, "act")
    answer = await user.post("/workloads/act/restart")
    assert (answer.status_code, answer.json()["error_message"]) == (200, "restart requested by user")
    await user.patch("/workloads/act", json={"status": "cancelled"})
    assert (await user.post("/workloads/act/restart")).json()["code"] == "E0304"


@pytest.mark.parametrize(
    "body", [{}, {"status": "completed"}, {"status": 3}, {"status": "paused", "priority": "low"}, {"typo": 1}, []]
)
async def test_a_patch_that_means_nothing_is_refused_and_changes_nothing(user: Client, body: object) -> None:
    before = await submit(user, "same")
    answer = await user.patch("/workloads/same", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "E0201")
    assert (await user.get("/workloads/same")).json() == before


async def test_a_partial_change_keeps_the_rest(user: Client) -> None:
    await submit(
        user,
        "part",
        type="training",
        compute={"gpu_count": 8, "gpu_type": "h100", "cpu_cores": 4, "memory_gb": 8.0, "storage_gb": 10.0},
        data_residency={"allowed_regions": ["morocco"]},
        model_id="m",
    )
    answer = await user.put("/workloads/part", json={"compute": {"gpu_count": 16}})
    spec = answer.json()["spec"]
    assert (spec["tasks"], spec["resources"]["gpus"], spec["model_id"]) == (2, 8, "m")
    assert spec["compute"]["cpu_cores"] == 4
    assert spec["countries_allowed"] == ["MA"]
    changed = await user.patch("/workloads/part", json={"priority": "high", "labels": {"a": "b"}})
    assert changed.json()["spec"]["priority"] == "high"
    assert changed.json()["spec"]["compute"]["gpu_count"] == 16


async def test_a_whole_specification_replaces_the_old_one(user: Client) -> None:
    await submit(user, "whole", image="img", model_id="m", countries_allowed=["MA"])
    spec = (await user.put("/workloads/whole", json={"name": "whole", "type": "batch"})).json()["spec"]
    assert spec["image"] is None
    assert "model_id" not in spec
    assert spec["countries_allowed"] == []


async def test_labels_change_at_any_time_and_the_rest_only_before_the_start(user: Client, hub: FakeHub) -> None:
    ident = (await submit(user, "run", compute={"gpu_count": 1}))["id"]
    hub.store[ident].state = State.RUNNING
    answer = await user.patch("/workloads/run", json={"labels": {"a": "b"}})
    assert answer.json()["metadata"]["labels"] == {"a": "b"}
    assert (await user.put("/workloads/run", json={"priority": "low"})).json()["code"] == "E0304"


async def test_the_terraform_client_can_retag_what_runs(terraform: Client, hub: FakeHub) -> None:
    body = {"name": "tf", "image": "i", "replicas": 1, "region": "MA", "sovereignty": "strict", "env": {}, "tags": {}}
    ident = (await terraform.post("/workloads", json=body)).json()["id"]
    hub.store[ident].state = State.RUNNING
    answer = await terraform.put(f"/workloads/{ident}", json={**body, "tags": {"new": "tag"}})
    assert answer.json()["tags"] == {"new": "tag"}


async def test_what_is_read_can_be_written_back(user: Client) -> None:
    read = await submit(user, "round", compute={"gpu_count": 12, "gpu_type": "h100"}, region="senegal")
    answer = await user.put("/workloads/round", json=read["spec"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["spec"]["resources"] == read["spec"]["resources"]
    assert answer.json()["spec"]["countries_allowed"] == ["SN"]


async def test_deleting_answers_json_and_hides_the_workload(user: Client) -> None:
    ident = (await submit(user, "gone"))["id"]
    answer = await user.delete(f"/workloads/{ident}")
    assert (answer.status_code, answer.json()["success"], answer.json()["id"]) == (200, True, ident)
    assert (await user.get("/workloads")).json()["total"] == 0


async def test_a_plan_stores_nothing_and_why_answers_every_hub(user: Client) -> None:
    plan = (await user.post("/workloads/plan", json={"name": "dry", "compute": {"gpu_count": 8}})).json()
    assert (plan["subject"], plan["verdict"]) == ("dry", "fits_now")
    assert (await user.get("/workloads")).json()["total"] == 0
    await submit(user, "wet")
    assert (await user.get("/workloads/wet/why")).json()["hubs"][0]["rules"][0]["rule"] == "residency"


async def test_unknown_workloads_are_404(user: Client) -> None:
    for call in (user.get("/workloads/nope"), user.get("/workloads/nope/why"), user.get("/workloads/nope/logs")):
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (404, "E0301")


async def test_logs_are_read_page_by_page(user: Client, hub: FakeHub) -> None:
    await submit(user, "talk")
    hub.log = b"hello\nworld\n"
    answer = await user.get("/workloads/talk/logs", params={"offset": 6})
    assert (answer.text, answer.headers["x-log-next-offset"], answer.headers["x-log-eof"]) == ("world\n", "12", "true")
    assert answer.headers["content-type"].startswith("text/plain")
    tail = await user.get("/workloads/talk/logs", params={"offset": -6})
    assert (tail.text, tail.headers["x-log-offset"]) == ("world\n", "6")


async def test_output_since_a_time_is_asked_of_where_it_was_written(user: Client, hub: FakeHub) -> None:
    await submit(user, "talk")
    for text in ("2026-03-01T08:00:00+00:00", "2026-03-01T09:00:00+01:00", "2026-03-01T08:00:00"):
        await user.get("/workloads/talk/logs", params={"since": text})
        assert hub.log_since_s == 1_772_352_000
    assert (await user.get("/workloads/talk/logs", params={"since": "soon"})).status_code == 400
