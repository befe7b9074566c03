"""The audit chain over HTTP: who may ask, what comes, and how an export ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from harch.api.app import create_app
from harch.hub.service import HubService
from harch.hub.views import Role
from harch.sovereignty.audit.chain import PLACED, Draft, split_lines
from harch.sovereignty.audit.checkpoints import read_checkpoints
from harch.sovereignty.audit.verification import verify
from unit.sovereignty_audit.chains import Chain, key
from unit.sovereignty_audit.test_hub_audit import open_hub


class Asking:
    """A hub behind its API, and one client per role."""

    def __init__(self, hub: HubService) -> None:
        self.hub = hub
        self._app = create_app(hub)
        self.clients: dict[Role, httpx.AsyncClient] = {}

    async def as_(self, role: Role) -> httpx.AsyncClient:
        if role not in self.clients:
            _, token = await self.hub.credentials.create_key(name=role.value, tenant="t", role=role)
            self.clients[role] = httpx.AsyncClient(
                transport=httpx.ASGITransport(self._app), base_url="http://hub/v1", headers={"x-api-key": token}
            )
        return self.clients[role]


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    made = Asking(open_hub(tmp_path))
    yield made
    for client in made.clients.values():
        await client.aclose()
    await made.hub.close()


@pytest.mark.parametrize("path", ["/audit", "/audit/export", "/audit/head", "/audit/checkpoints"])
async def test_the_chain_is_for_operators(asking: Asking, path: str) -> None:
    for role in (Role.VIEWER, Role.USER, Role.AGENT):
        assert (await (await asking.as_(role)).get(path)).status_code == 403
    assert (await (await asking.as_(Role.OPERATOR)).get(path)).status_code == 200


async def test_an_export_is_whole_and_verifies(asking: Asking) -> None:
    operator = await asking.as_(Role.OPERATOR)
    for _ in range(25):  # together more than two reads of the store
        await asking.hub._jobs.write([], [_draft(number) for number in range(100)])
    answer = await operator.get("/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    head = (await operator.get("/audit/head")).json()["checkpoint"]
    outcome = verify(split_lines([answer.content]))
    assert (outcome.finding, outcome.entries, outcome.head) == (None, head["seq"], head["hash"])


async def test_a_page_names_where_to_go_on(asking: Asking) -> None:
    operator, user = await asking.as_(Role.OPERATOR), await asking.as_(Role.USER)
    for name in ("one", "two", "three"):
        assert (await user.post("/workloads", json={"name": name, "modelled_duration_s": 9})).status_code == 201
    first = (await operator.get("/audit", params={"after": 0, "limit": 2})).json()
    assert [item["entry"]["seq"] for item in first["items"]] == [1, 2]
    assert (first["next_after"], first["last_seq"]) == (2, 6)
    newest = (await operator.get("/audit", params={"limit": 2})).json()
    assert [item["entry"]["seq"] for item in newest["items"]] == [5, 6]
    admitted = (await operator.get("/audit", params={"kind": "workload.admitted"})).json()
    assert len(admitted["items"]) == 3
    actors = {item["entry"]["actor"] for item in admitted["items"]}
    assert actors == {(await user.get("/auth/me")).json()["id"]}


async def test_a_refusal_by_residency_is_told_to_the_caller_and_to_the_chain(asking: Asking) -> None:
    operator, user = await asking.as_(Role.OPERATOR), await asking.as_(Role.USER)
    body = {"name": "elsewhere", "command": ["true"], "countries_allowed": ["SN"]}
    assert (await user.post("/workloads", json=body)).json()["code"] == "E0902"
    found = (await operator.get("/audit", params={"kind": "workload.refused"})).json()["items"]
    assert [item["entry"]["subject"] for item in found] == ["elsewhere"]


async def test_copies_of_a_peers_checkpoints_are_kept_and_come_back_as_a_file_for_verify(asking: Asking) -> None:
    operator = await asking.as_(Role.OPERATOR)
    peer = Chain(key(5), hub="dakar").fill(3)
    signed = peer.checkpoint()
    body = {"checkpoint": msgspec.to_builtins(signed)}
    assert (await operator.put("/audit/checkpoints", json=body)).json() == {"success": True, "hub": "dakar", "seq": 4}
    answer = await operator.get("/audit/checkpoints", params={"hub": "dakar"})
    assert read_checkpoints(answer.content) == [signed]
    other = Chain(key(5), hub="dakar").fill(2)
    other.add(_draft(1))
    refused = await operator.put("/audit/checkpoints", json={"checkpoint": msgspec.to_builtins(other.checkpoint())})
    assert (refused.status_code, refused.json()["code"]) == (409, "E0920")
    stranger = Chain(key(5), hub="paris").checkpoint()
    refused = await operator.put("/audit/checkpoints", json={"checkpoint": msgspec.to_builtins(stranger)})
    assert (refused.status_code, refused.json()["code"]) == (404, "E0305")


async def test_only_an_admin_replaces_the_signing_key(asking: Asking) -> None:
    operator, admin = await asking.as_(Role.OPERATOR), await asking.as_(Role.ADMIN)
    assert (await operator.post("/audit/key")).status_code == 403
    new = (await admin.post("/audit/key")).json()["key"]
    assert (await operator.get("/audit/head")).json()["checkpoint"]["key"] == new


def _draft(number: int) -> Draft:
    return Draft(PLACED, f"wl_{number}", "allowed", countries=("MA",), details={"gpus": number})
