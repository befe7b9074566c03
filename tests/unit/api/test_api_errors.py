from __future__ import annotations

import httpx
import pytest

from harch.api.app import create_app
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.hub.views import Role
from unit.api.conftest import Client
from unit.api.fake_hub import KEYS, FakeHub


def check_shape(answer: httpx.Response, status: int, code: str) -> None:
    """The superset that every public client shows well; `details` is a string, always."""
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/json"
    assert body["success"] is False
    assert isinstance(body["message"], str)
    assert body["message"]
    assert isinstance(body["details"], str)
    assert set(body["error"]) == {"code", "title", "message", "detail", "hint", "doc_url", "field", "meta"}
    assert body["error"]["code"] == code
    assert answer.headers["x-request-id"] == body["request_id"]
    assert answer.headers["x-harchos-version"] == "0.1.0"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "E0207"),
        ("GET", "/nothing/here", 404, "E0207"),
        ("DELETE", "/workloads", 405, "E0208"),
        ("POST", "/summary", 405, "E0208"),
        ("GET", "/workloads/none", 404, "E0301"),
        ("GET", "/workloads?page=-1", 400, "E0201"),
        ("GET", "/hubs/none", 404, "E0305"),
        ("GET", "/hubs/abidjan/capacity", 503, "E0802"),
        ("GET", "/hubs?region=atlantis", 400, "E0901"),
        ("GET", "/regions/atlantis", 404, "E0310"),
        ("GET", "/regions/FR", 404, "E0310"),
        ("POST", "/hubs", 409, "E0304"),
        ("PATCH", "/hubs/dakhla", 409, "E0304"),
        ("DELETE", "/secrets/NONE", 404, "E0306"),
        ("DELETE", "/auth/keys/none", 404, "E0308"),
        ("GET", "/docs/errors/E9999", 404, "E0207"),
    ],
)
async def test_every_refusal_has_the_one_shape(admin: Client, method: str, path: str, status: int, code: str) -> None:
    check_shape(await admin.request(method, path), status, code)


async def test_a_405_names_the_hot_route_too(user: Client) -> None:
    assert (await user.put("/workloads")).headers["allow"] == "GET, POST"


async def test_what_comes_later_is_said_to_come_later(user: Client) -> None:
    assert "does not serve `/pricing` yet" in (await user.get("/pricing/plans")).json()["details"]


@pytest.mark.parametrize("path", ["/workloads", "/hubs", "/gpus", "/events", "/auth/me", "/secrets", "/regions"])
async def test_calls_without_a_key_are_401(nobody: Client, path: str) -> None:
    answer = await nobody.get(path)
    check_shape(answer, 401, "E0101")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["/workloads", "/hubs", "/gpus", "/events", "/auth/me", "/auth/verify", "/secrets", "/monitoring/metrics"]
)
async def test_agents_keys_open_nothing_but_the_agents_door(nobody: Client, path: str) -> None:
    check_shape(await nobody.get(path, headers={"x-api-key": KEYS[Role.AGENT]}), 403, "E0103")


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz", "/metrics", "/summary", "/openapi.json", "/docs"])
async def test_public_paths_need_no_key_with_or_without_prefix(nobody: Client, path: str) -> None:
    assert (await nobody.get(path)).status_code == 200
    assert (await nobody.get(f"http://hub{path}")).status_code == 200


async def test_a_fault_behind_fastapi_is_a_500_of_the_same_shape(user: Client, hub: FakeHub, monkeypatch) -> None:
    def broken() -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr(hub, "peers", broken)
    answer = await user.get("/hubs")
    check_shape(answer, 500, "E1001")
    assert "inner secret" not in answer.text


async def test_residency_errors_carry_the_word_of_the_sdks(user: Client, hub: FakeHub) -> None:
    hub.failure = HarchError("E0902", "not here")
    assert (await user.post("/workloads", json={"name": "x"})).json()["reason"] == "data_residency_violation"


async def test_a_client_may_bring_its_own_request_id(user: Client) -> None:
    assert (await user.get("/health", headers={"x-request-id": "trace-1"})).headers["x-request-id"] == "trace-1"
    assert (await user.get("/health", headers={"x-request-id": "bad id\t"})).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/workloads", "/workloads/plan"])
@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_beyond_the_limit_is_413_whether_declared_or_not(hub: FakeHub, path: str, chunked: bool) -> None:
    limits = HttpLimits(body_bytes_max=1000)
    client = Client(transport=httpx.ASGITransport(create_app(hub, limits=limits)), base_url="http://hub/v1")
    body = b'{"name": "' + b"x" * 5000 + b'"}'

    async def pieces():
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    async with client:
        answer = await client.post(path, content=pieces() if chunked else body, headers={"x-api-key": KEYS[Role.USER]})
    check_shape(answer, 413, "E0204")
    assert not hub.store


async def test_a_hub_that_is_not_ready_says_why(nobody: Client, hub: FakeHub) -> None:
    hub.not_ready = "recovering"
    answer = await nobody.get("/readyz")
    check_shape(answer, 503, "E0801")
    assert (answer.headers["retry-after"], answer.json()["message"]) == ("1", "recovering")
    assert (await nobody.get("/health")).json()["status"] == "degraded"
    assert (await nobody.get("/healthz")).status_code == 200
