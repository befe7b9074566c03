from __future__ import annotations

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.hub.views import Role
from harch.workloads.spec import Resources, RestartPolicy, WorkloadType
from unit.api.conftest import Client, ClientOf
from unit.api.fake_hub import KEYS, FakeHub


async def spec_of(user: Client, hub: FakeHub, body: dict[str, object]):
    answer = await user.post("/workloads", json=body)
    assert answer.status_code == 201, answer.text
    return hub.store[answer.json()["id"]].spec


async def test_a_native_specification_is_taken_as_it_is(user: Client, hub: FakeHub) -> None:
    body = {
        "name": "train",
        "type": "training",
        "command": ["python", "train.py"],
        "tasks": 2,
        "resources": {"gpus": 8, "gpu_model": "h100-80gb", "cpus": 16, "memory_gb": 64},
        "env": {"A": "b"},
        "secrets": ["TOKEN"],
        "countries_allowed": ["MA", "senegal"],
        "max_duration_s": 60.5,
        "stop_grace_s": 3,
        "restart": "never",
        "restarts_max": 0,
        "labels": {"team": "x"},
    }
    spec = await spec_of(user, hub, body)
    expected = {**body, "countries_allowed": ["MA", "SN"]}
    assert msgspec.json.decode(msgspec.json.encode(spec)) == expected
    assert hub.store[next(iter(hub.store))].annotations == {}


async def test_equal_needs_of_different_requests_are_one_object(user: Client, hub: FakeHub) -> None:
    needs = {"gpus": 2, "cpus": 8}
    first, second = [await spec_of(user, hub, {"name": name, "resources": needs}) for name in ("first", "second")]
    assert first.resources == Resources(gpus=2, cpus=8)
    assert first.resources is second.resources


async def test_a_repeated_submission_answers_200_with_the_first_workload(user: Client) -> None:
    first = await user.post("/workloads", json={"name": "once"})
    second = await user.post("/workloads", json={"name": "once"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]


async def test_the_mirror_without_prefix_takes_work_too(user: Client) -> None:
    assert (await user.post("http://hub/workloads", json={"name": "root"})).status_code == 201


async def test_both_headers_carry_a_key(nobody: Client) -> None:
    bearer = {"authorization": f"Bearer {KEYS[Role.USER]}"}
    assert (await nobody.post("/workloads", json={"name": "b"}, headers=bearer)).status_code == 201


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [("", 401, "E0101"), ("hsk_wrong_0123456789abcdef", 401, "E0102")]
    + [(KEYS[role], 403, "E0103") for role in (Role.VIEWER, Role.AGENT)],
)
async def test_who_may_not_submit_is_told_why(client_of: ClientOf, key: str, status: int, code: str) -> None:
    answer = await client_of(key).post("/workloads", json={"name": "no"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.ADMIN])
async def test_who_may_submit_can(client_of: ClientOf, role: Role) -> None:
    assert (await client_of(KEYS[role]).post("/workloads", json={"name": "yes"})).status_code == 201


async def test_sdk_0_2_asks_for_a_total_that_is_split_into_equal_tasks(user: Client, hub: FakeHub) -> None:
    compute = {"gpu_count": 16, "gpu_type": "H100", "cpu_cores": 32, "memory_gb": 128.0, "storage_gb": 10.0}
    spec = await spec_of(user, hub, {"name": "p2", "type": "training", "compute": compute, "auto_restart": True})
    assert (spec.tasks, spec.restart) == (2, RestartPolicy.ON_FAILURE)
    assert spec.resources == Resources(gpus=8, gpu_model="h100-80gb", cpus=16, memory_gb=64, storage_gb=5)


@pytest.mark.parametrize(
    ("gpus", "tasks", "per_task"), [(0, 1, 0), (1, 1, 1), (8, 1, 8), (12, 2, 6), (11, 11, 1), (9, 3, 3), (640, 80, 8)]
)
async def test_the_total_is_kept_exactly(user: Client, hub: FakeHub, gpus: int, tasks: int, per_task: int) -> None:
    spec = await spec_of(user, hub, {"name": "n", "compute": {"gpu_count": gpus}})
    assert (spec.tasks, spec.resources.gpus, spec.gpus_total) == (tasks, per_task, gpus)
    assert spec.resources.cpus >= 1
    assert spec.resources.memory_gb >= 1


async def test_sdk_0_3_says_the_same_flat_and_javascript_has_its_own_word_for_the_type(
    user: Client, hub: FakeHub
) -> None:
    body = {
        "name": "p3",
        "gpu_count": 4,
        "gpu_type": "a100",
        "cpu_cores": 8,
        "memory_gb": 16,
        "workload_type": "serving",
    }
    spec = await spec_of(user, hub, body)
    assert spec.type is WorkloadType.INFERENCE
    assert spec.resources == Resources(gpus=4, gpu_model="a100-80gb", cpus=8, memory_gb=16, storage_gb=0)


async def test_what_a_client_wrote_is_what_it_reads_back(user: Client) -> None:
    written = {
        "name": "mirror",
        "type": "fine_tuning",
        "model_id": "m-1",
        "hub_id": "dakhla",
        "compute": {"gpu_count": 2, "gpu_type": "h100", "cpu_cores": 3, "memory_gb": 5.5, "storage_gb": 10.0},
        "priority": "high",
        "image": "img:1",
        "command": ["run"],
        "env": {"K": "v"},
        "sovereignty_level": "moderate",
        "data_residency": {
            "allowed_regions": ["morocco", "senegal"],
            "restricted_regions": ["senegal"],
            "data_classification": "restricted",
            "encryption_at_rest": True,
            "encryption_in_transit": False,
            "key_management_region": "morocco",
        },
        "carbon_budget_grams": 12.5,
        "carbon_aware": True,
        "carbon_max_gco2": 80.0,
        "max_duration_seconds": 3600,
        "labels": {"a": "b"},
        "auto_restart": True,
    }
    created = (await user.post("/workloads", json=written)).json()
    read = (await user.get(f"/workloads/{created['id']}")).json()
    assert {name: read["spec"][name] for name in written} == written
    assert read["spec"]["countries_allowed"] == ["MA"]
    assert read["spec"]["max_duration_s"] == 3600


async def test_restricted_regions_are_taken_from_the_allowed_ones(user: Client, hub: FakeHub) -> None:
    rules = {"allowed_regions": ["MA", "SN", "ci"], "restricted_regions": ["senegal"]}
    spec = await spec_of(user, hub, {"name": "r", "data_residency": rules, "countries_allowed": ["CI", "SN"]})
    assert spec.countries_allowed == ("CI",)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"name": "x", "data_residency": {"allowed_regions": ["atlantis"]}}, "E0901", None),
        ({"name": "x", "region": "MRO"}, "E0901", None),
        ({"name": "x", "countries_allowed": ["XX"]}, "E0901", None),
        ({"name": "x", "countries_allowed": ["MA"], "region": "senegal"}, "E0201", "data_residency"),
        ({"name": "x", "hub_id": "dakar"}, "E0303", "hub_id"),
        ({"name": "x", "hub_id": "nowhere"}, "E0305", "hub_id"),
        ({"name": "x", "typo": 1}, "E0201", "typo"),
        ({"name": "x", "compute": {"gpus": 1}}, "E0201", "compute.gpus"),
        ({"name": "x", "compute": {"gpu_count": -1}}, "E0201", "compute.gpu_count"),
        ({"name": "x", "resources": {"gpus": 1}, "compute": {"gpu_count": 2}}, "E0201", "resources"),
        ({"name": "x", "type": "dance"}, "E0201", "type"),
        ({"name": "x", "max_duration_s": 1, "max_duration_seconds": 2}, "E0201", "max_duration_s"),
        ({"name": "x", "sovereignty_level": "whatever"}, "E0201", "sovereignty_level"),
        ({"name": "x", "command": ["a\0b"]}, "E0201", None),
        ({"name": "x", "command": ["a"], "modelled_duration_s": 1}, "E0201", None),
        ({"name": "x", "tasks": 0}, "E0201", "tasks"),
        ({"name": "../x"}, "E0201", "name"),
        ({"name": ""}, "E0201", "name"),
        ({}, "E0201", None),
        ([], "E0201", None),
        ("text", "E0201", None),
    ],
)
async def test_a_wrong_field_is_named_with_a_hint(user: Client, body: object, code: str, field: str | None) -> None:
    answer = await user.post("/workloads", json=body)
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == (code, field), error
    assert answer.status_code in {400, 404, 409}
    assert not (await user.get("/workloads")).json()["items"]


async def test_another_hubs_url_is_in_the_hint(user: Client) -> None:
    answer = await user.post("/workloads", json={"name": "x", "hub_id": "Dakar"})
    assert "http://127.0.0.1:7704" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b'{"name": "\xff"}', b"[" * 100_000, b'{"name":' + b'{"a":' * 50_000, b"null"]
)
async def test_what_is_no_json_object_is_refused(user: Client, raw: bytes) -> None:
    answer = await user.post("/workloads", content=raw)
    assert answer.status_code == 400
    assert answer.json()["code"] in {"E0201", "E0202"}


async def test_values_are_never_repeated_in_errors(user: Client) -> None:
    answer = await user.post("/workloads", json={"name": "x", "env": {"TOKEN": ["s3cr3t-value"]}})
    assert answer.status_code == 400
    assert "s3cr3t" not in answer.text


async def test_an_error_of_the_hub_arrives_with_retry_after(user: Client, hub: FakeHub) -> None:
    hub.failure = HarchError("E0401", "the queue is full", hint="wait", retry_after_s=7)
    answer = await user.post("/workloads", json={"name": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


async def test_a_fault_of_the_hub_is_a_500_that_tells_nothing_of_the_inside(user: Client, hub: FakeHub) -> None:
    hub.failure = RuntimeError("inner secret")
    answer = await user.post("/workloads", json={"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (500, "E1001")
    assert "inner secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["details"]


@pytest.mark.parametrize("key", ["x" * 256, "schlüssel"])
async def test_an_idempotency_key_has_limits(user: Client, key: str) -> None:
    answer = await user.post("/workloads", json={"name": "x"}, headers={"idempotency-key": key.encode()})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "Idempotency-Key")


async def test_the_terraform_client_writes_and_reads_flat(terraform: Client, hub: FakeHub) -> None:
    body = {
        "name": "tf",
        "image": "img",
        "replicas": 3,
        "region": "morocco",
        "sovereignty": "strict",
        "env": {"A": "1"},
        "tags": {"team": "x"},
    }
    created = (await terraform.post("http://hub/workloads", json=body)).json()
    assert {name: created[name] for name in body} == body
    assert set(created) == {*body, "id", "status", "created_at", "updated_at"}
    spec = hub.store[created["id"]].spec
    assert (spec.tasks, spec.countries_allowed, spec.labels) == (3, ("MA",), {"team": "x"})
    read = (await terraform.get(f"http://hub/workloads/{created['id']}")).json()
    assert read == created
