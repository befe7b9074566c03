from __future__ import annotations

import pytest

from unit.api.conftest import Client, ClientOf
from unit.api.fake_hub import FakeHub


@pytest.mark.parametrize("spelling", ["/auth/api-keys", "/auth/keys"])
async def test_admins_make_keys_that_work_until_revoked(
    admin: Client, client_of: ClientOf, hub: FakeHub, spelling: str
) -> None:
    made = (await admin.post(spelling, json={"name": "ci"})).json()
    assert (made["role"], made["tenant"], made["prefix"]) == ("user", "acme", made["key"][:8])
    fresh = client_of(made["key"])
    assert (await fresh.get("/auth/verify")).json()["key_id"] == made["id"]
    revoked = await admin.delete(f"{spelling}/{made['id']}")
    assert (revoked.status_code, revoked.json()["success"]) == (200, True)
    assert (await fresh.get("/auth/verify")).status_code == 401


async def test_lists_never_show_a_key(admin: Client) -> None:
    key = (await admin.post("/auth/keys", json={"name": "ci"})).json()["key"]
    plain, paged = await admin.get("/auth/keys"), await admin.get("/auth/api-keys")
    assert isinstance(plain.json(), list)
    assert paged.json()["total"] == len(plain.json())
    assert key not in plain.text + paged.text


@pytest.mark.parametrize(
    ("scopes", "role"), [(["read"], "viewer"), (["read", "write"], "user"), (["admin", "read"], "admin"), ([], "user")]
)
async def test_scopes_become_roles(admin: Client, scopes: list[str], role: str) -> None:
    assert (await admin.post("/auth/keys", json={"name": "s", "scopes": scopes})).json()["role"] == role


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "x", "role": "king"},
        {"name": "x", "scopes": ["fly"]},
        {"name": "x", "expires_in_days": 3},
    ],
)
async def test_keys_that_would_not_be_what_was_asked_for_are_refused(admin: Client, body: dict[str, object]) -> None:
    assert (await admin.post("/auth/keys", json=body)).json()["code"] == "E0201"


async def test_keys_are_for_admins(operator: Client, user: Client) -> None:
    for client in (operator, user):
        assert (await client.get("/auth/keys")).status_code == 403
        assert (await client.post("/auth/keys", json={"name": "x"})).status_code == 403
        assert (await client.delete("/auth/keys/key_admin")).status_code == 403


async def test_everyone_can_ask_who_they_are(viewer: Client, admin: Client) -> None:
    me = (await viewer.get("/auth/me")).json()
    assert (me["tenant"], me["role"], [key["id"] for key in me["api_keys"]]) == ("acme", "viewer", ["key_viewer"])
    assert len((await admin.get("/auth/me")).json()["api_keys"]) == 5


async def test_secrets_are_named_and_never_shown(user: Client, viewer: Client, hub: FakeHub) -> None:
    assert (await user.put("/secrets/TOKEN", json={"value": "s3cr3t"})).json() == {"success": True, "name": "TOKEN"}
    assert hub.secrets == {("acme", "TOKEN"): "s3cr3t"}
    listed = await viewer.get("/secrets")
    assert listed.json()["items"] == [{"name": "TOKEN"}]
    assert "s3cr3t" not in listed.text
    assert (await viewer.put("/secrets/TOKEN", json={"value": "x"})).status_code == 403
    assert (await user.delete("/secrets/TOKEN")).status_code == 200


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("bad-name", {"value": "v"}),
        ("A", {}),
        ("A", {"value": 1}),
        ("A", {"value": "v", "x": 1}),
        ("A", {"value": "v" * 70_000}),
    ],
)
async def test_a_wrong_secret_is_refused_without_repeating_it(user: Client, name: str, body: dict[str, object]) -> None:
    answer = await user.put(f"/secrets/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "E0201")
    assert "vvv" not in answer.text


async def test_a_key_for_an_agent_names_it_and_can_be_freed(admin: Client) -> None:
    body = {"name": "gpu-1", "role": "agent", "agent_id": "gpu-1", "node_ids": ["n1"]}
    made = (await admin.post("/auth/keys", json=body)).json()
    assert made["agents"] == ["gpu-1"]
    freed = await admin.delete(f"/auth/keys/{made['id']}/agents")
    assert (freed.status_code, freed.json()["agents"]) == (200, [])


@pytest.mark.parametrize(
    "body",
    [{"name": "x", "agent_id": "a"}, {"name": "x", "role": "agent", "node_ids": ["n1"]}],
)
async def test_only_keys_of_agents_belong_to_agents(admin: Client, body: dict[str, object]) -> None:
    assert (await admin.post("/auth/keys", json=body)).json()["code"] == "E0201"
