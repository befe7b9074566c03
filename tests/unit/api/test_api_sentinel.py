"""A hub tells its SENTINEL whose key it was shown, and carries records about alerts."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import msgspec
import pytest
from starlette.types import Message

from harch.api.app import create_app
from harch.api.routes.sentinel import LOOK_EVERY_S
from harch.hub.views import Role
from harch.sentinel.federated.messages import Question
from harch.testing.clock import SimClock
from unit.api.conftest import Client
from unit.api.fake_hub import KEYS, FakeHub


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.AGENT, Role.OPERATOR])
async def test_keys_are_known_by_role_and_tenant(operator: Client, role: Role) -> None:
    told = (await operator.post("/sentinel/callers", json={"key": KEYS[role]})).json()
    assert told["role"] == role
    assert told["tenant"]
    assert told["name"]
    assert told["key_id"]


async def test_sentinel_learns_which_agents_a_key_belongs_to(operator: Client, admin: Client) -> None:
    """What the key sends is believed about them alone."""
    made = await admin.post("/auth/keys", json={"name": "n7", "role": "agent", "agent_id": "node-7"})
    token = made.json()["key"]
    assert (await operator.post("/sentinel/callers", json={"key": token})).json()["agents"] == ["node-7"]
    assert (await operator.post("/sentinel/callers", json={"key": KEYS[Role.USER]})).json()["agents"] == []


async def test_a_key_of_nobody_is_not_known(operator: Client) -> None:
    assert (await operator.post("/sentinel/callers", json={"key": "hsk_nobody"})).status_code == 404


async def test_keys_that_were_revoked_are_told_apart(operator: Client, hub: FakeHub) -> None:
    hub.key_infos["user"] = msgspec.structs.replace(hub.key_infos["user"], revoked=True)
    asked = {"key_ids": ["key_user", "key_viewer", "key_of_nobody"]}
    told = (await operator.post("/sentinel/callers/valid", json=asked)).json()
    assert told == {"key_ids": ["key_viewer"]}
    assert (await operator.post("/sentinel/alert-records", json={})).json()["revoked"] == 1
    too_many = {"key_ids": ["k"] * 1025}
    assert (await operator.post("/sentinel/callers/valid", json=too_many)).status_code == 400


async def test_what_the_two_say_to_each_other_is_for_no_other_key(user: Client, admin: Client) -> None:
    """An admin's neither: records would come in past the check of who made a silence."""
    for somebody in (user, admin):
        assert (await somebody.post("/sentinel/callers", json={"key": KEYS[Role.ADMIN]})).status_code == 403
        assert (await somebody.post("/sentinel/alert-records", json={})).status_code == 403
        assert (await somebody.get("/sentinel/hubs")).status_code == 403
        assert (await somebody.post("/sentinel/callers/valid", json={"key_ids": []})).status_code == 403


async def test_figures_that_name_pipelines_take_an_operators_key(
    nobody: Client, user: Client, operator: Client
) -> None:
    assert "harch_pipeline_lag" in (await operator.get("/metrics")).text
    for somebody in (nobody, user):
        answer = await somebody.get("/metrics")
        assert "harch_up 1" in answer.text
        assert "harch_pipeline" not in answer.text
    assert (await nobody.get("/metrics", headers={"x-api-key": "hsk_wrong"})).status_code == 401


async def test_records_are_exchanged_as_they_are(operator: Client) -> None:
    sent = base64.b64encode(b"a silence").decode()
    told = (await operator.post("/sentinel/alert-records", json={"records": sent})).json()
    assert [base64.b64decode(one) for one in told["records"]] == [b"from a peer", b"a silence"]
    assert told["position"] == 2
    assert told["revoked"] == 0
    assert (await operator.post("/sentinel/alert-records", json={"records": "§"})).status_code == 400


WAITING = {"wait_s": 10, "position": 2, "revoked": 0}


@pytest.mark.parametrize("news", ["records", "a revoked key", "another position", "none", "the server stops"])
async def test_an_exchange_that_waits_is_answered_when_there_is_news_or_its_time_is_over(
    hub: FakeHub, news: str
) -> None:
    clock = SimClock()
    app = create_app(hub, clock=clock)
    headers = {"x-api-key": KEYS[Role.OPERATOR]}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://hub/v1", headers=headers
    ) as sentinel:
        call = asyncio.create_task(sentinel.post("/sentinel/alert-records", json=WAITING))
        await clock.advance(3)
        assert not call.done(), "nothing is new"
        if news == "records":
            hub.alert_news = True
        elif news == "a revoked key":
            hub.key_infos["user"] = msgspec.structs.replace(hub.key_infos["user"], revoked=True)
        elif news == "another position":
            hub.alert_position = 1
        elif news == "the server stops":
            app.streams.close()
        await clock.advance(LOOK_EVERY_S if news != "none" else 7)
        assert (await call).json()["records"]


async def test_records_are_kept_for_the_next_call_when_the_one_that_waited_is_gone(hub: FakeHub) -> None:
    clock = SimClock()
    app = create_app(hub, clock=clock)
    messages = iter([{"type": "http.request", "body": json.dumps(WAITING).encode()}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/sentinel/alert-records",
        "query_string": b"",
        "headers": [(b"x-api-key", KEYS[Role.OPERATOR].encode()), (b"content-type", b"application/json")],
        "state": {},
    }
    call = asyncio.create_task(app(scope, receive, send))
    await clock.advance(WAITING["wait_s"])
    await call
    assert hub.alert_exchanges == 0


QUESTION = {
    "id": "q_1",
    "tenant": "acme",
    "asked_by": "key_1",
    "parts": [{"type": "metric", "expression": "sum(up)", "start_ms": 0, "end_ms": 0, "step_ms": 1000}],
}


async def test_sentinel_learns_which_hubs_there_are_and_how_they_are_seen(operator: Client) -> None:
    told = {one["hub_id"]: one for one in (await operator.get("/sentinel/hubs")).json()["items"]}
    assert (told["dakhla"]["own"], told["dakhla"]["country"]) == (True, "MA")
    assert all(one["reachable"] or one["why"] for one in told.values())


async def test_a_question_is_carried_for_the_hubs_own_sentinel_and_for_nobody_else(
    operator: Client, admin: Client
) -> None:
    asked = {"hub_id": "dakar", "question": QUESTION}
    answer = await operator.post("/sentinel/questions", json=asked)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.content, type=Question).parts[0].expression == "sum(up)"  # type: ignore[union-attr]
    assert (await admin.post("/sentinel/questions", json=asked)).status_code == 403


async def test_a_hub_that_does_not_answer_is_an_error_with_its_name(operator: Client) -> None:
    answer = await operator.post("/sentinel/questions", json={"hub_id": "abidjan", "question": QUESTION})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "E0698")
    assert (await operator.post("/sentinel/questions", json={"hub_id": "dakar", "question": {}})).status_code == 400
