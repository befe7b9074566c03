"""Alerts belong to somebody: operators to all of them, users to those of their tenant, and nobody forges or borrows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from whole_sentinel import WholeSentinel

BEGIN, END = "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z"
ALERTS = [
    {
        "labels": {"alertname": "HubDown", "hub": "dakhla"},
        "generatorURL": "/graph?g0.expr=up",
        "startsAt": BEGIN,
        "endsAt": END,
    },
    {
        "labels": {"alertname": "PipelineLag", "pipeline": "p", "tenant": "acme"},
        "generatorURL": "/g",
        "startsAt": BEGIN,
        "endsAt": END,
    },
    {"labels": {"alertname": "PipelineLag", "pipeline": "q", "tenant": "other"}, "startsAt": BEGIN, "endsAt": END},
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[WholeSentinel]:
    made = WholeSentinel(tmp_path)
    async with made.client("operator") as operator:
        assert (await operator.post("/api/v2/alerts", json=ALERTS)).status_code == 200
    yield made
    await made.close()


def silence(*matchers: str, **more: str) -> dict[str, Any]:
    pairs = [text.partition("=") for text in matchers]
    return {
        "matchers": [{"name": name, "value": value, "isRegex": "*" in value} for name, _, value in pairs],
        "startsAt": BEGIN,
        "endsAt": END,
        "createdBy": "somebody else",
        "comment": "quiet",
        **more,
    }


async def names(world: WholeSentinel, key: str, **query: str) -> set[str]:
    async with world.client(key) as client:
        found = (await client.get("/api/v2/alerts", params=query)).json()
    return {one["labels"].get("pipeline") or one["labels"]["alertname"] for one in found}


async def test_users_see_the_alerts_of_their_tenant_and_operators_all(world: WholeSentinel) -> None:
    assert await names(world, "operator") == {"HubDown", "p", "q"}
    assert await names(world, "user") == await names(world, "viewer") == {"p"}
    assert await names(world, "other") == {"q"}
    assert await names(world, "plain") == set()
    async with world.client("user") as user:
        (group,) = (await user.get("/api/v2/alerts/groups")).json()
        assert [one["labels"]["pipeline"] for one in group["alerts"]] == ["p"]
        (shown,) = (await user.get("/api/v2/alerts")).json()
        assert "generatorURL" not in shown  # it has the rule's expression
        assert shown["receivers"] == []
        assert (await user.get("/api/v1/alerts")).json()["data"]["alerts"] == []


async def test_a_silence_of_a_user_never_reaches_beyond_its_tenant(world: WholeSentinel) -> None:
    async with world.client("user") as user:
        made = (await user.post("/api/v2/silences", json=silence("alertname=.*"))).json()["silenceID"]
        (shown,) = (await user.get("/api/v2/silences")).json()
        assert {one["name"]: one["value"] for one in shown["matchers"]} == {"alertname": ".*", "tenant": "acme"}
        for others in ("tenant=other", "tenant=.*"):
            refused = await user.post("/api/v2/silences", json=silence("alertname=.*", others))
            assert refused.status_code == 400, others
    assert await names(world, "operator", silenced="false") == {"HubDown", "q"}
    async with world.client("other") as other:
        assert (await other.get("/api/v2/silences")).json() == []
        assert (await other.get(f"/api/v2/silence/{made}")).status_code == 404
        assert (await other.delete(f"/api/v2/silence/{made}")).status_code == 404


async def test_an_operators_silence_is_neither_seen_changed_nor_ended_by_users(world: WholeSentinel) -> None:
    async with world.client("operator") as operator:
        wanted = silence("alertname=HubDown")
        made = (await operator.post("/api/v2/silences", json=wanted)).json()["silenceID"]
        own = (await operator.post("/api/v2/silences", json=silence("tenant=acme"))).json()["silenceID"]
        async with world.client("user") as user:
            assert (await user.get("/api/v2/silences")).json() == []
            for silence_id in (made, own):
                assert (await user.delete(f"/api/v2/silence/{silence_id}")).status_code == 404
                assert (await user.post("/api/v2/silences", json={**wanted, "id": silence_id})).status_code == 404
        states = {one["id"]: one["status"]["state"] for one in (await operator.get("/api/v2/silences")).json()}
        assert states == {made: "active", own: "active"}


async def test_who_did_it_is_the_key_and_not_what_the_body_says(world: WholeSentinel) -> None:
    for key, author in (("user", "amina (key_u)"), ("operator", "ops (key_o)")):
        async with world.client(key) as client:
            made = (await client.post("/api/v2/silences", json=silence("alertname=PipelineLag"))).json()["silenceID"]
            assert (await client.get(f"/api/v2/silence/{made}")).json()["createdBy"] == author
            (mine,) = (await client.get("/api/v2/alerts", params={"filter": "pipeline=p"})).json()
            ack = await client.post(f"/api/v2/alert/{mine['fingerprint']}/ack", json={"by": "the boss"})
            assert ack.json()["acknowledgedBy"]["by"] == author


async def test_an_alert_of_others_is_neither_acknowledged_nor_looked_into(world: WholeSentinel) -> None:
    async with world.client("operator") as operator:
        found = {
            one["labels"]["alertname"]: one["fingerprint"] for one in (await operator.get("/api/v2/alerts")).json()
        }
        assert (await operator.get(f"/harchos/api/v1/alerts/{found['HubDown']}/around")).status_code == 200
    async with world.client("user") as user:
        assert (await user.post(f"/api/v2/alert/{found['HubDown']}/ack", json={})).status_code == 404
        assert (await user.get(f"/harchos/api/v1/alerts/{found['HubDown']}/around")).status_code == 404
        (mine,) = (await user.get("/api/v2/alerts")).json()
        page = (await user.get(f"/harchos/api/v1/alerts/{mine['fingerprint']}/around")).json()["data"]
        assert (page["rule"], page["related"]) == (None, [])


@pytest.mark.parametrize("key", ["user", "viewer", "agent", "plain"])
async def test_only_operators_post_alerts(world: WholeSentinel, key: str) -> None:
    async with world.client(key) as client:
        assert (await client.post("/api/v2/alerts", json=ALERTS)).status_code == 403


async def test_a_tenant_does_not_take_the_room_for_silences_of_others(
    world: WholeSentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harch.sentinel.alerts.silences.SILENCES_PER_TENANT_MAX", 2)
    async with world.client("user") as user, world.client("other") as other:
        for place in range(2):
            assert (await user.post("/api/v2/silences", json=silence(f"pipeline=p{place}"))).status_code == 200
        refused = await user.post("/api/v2/silences", json=silence("pipeline=p3"))
        assert "E0649" in refused.text
        assert (await other.post("/api/v2/silences", json=silence("pipeline=p"))).status_code == 200
