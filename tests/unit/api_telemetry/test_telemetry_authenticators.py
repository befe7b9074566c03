"""Telemetry is shown to those who may see it: alone by address or token, beside a hub by its keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from harch.base.errors import HarchError
from harch.sentinel.http.access import (
    ALONE,
    ANSWER_S,
    FRESH_S,
    LATELY_S,
    OUTAGE_S_MAX,
    Caller,
    HubAuthenticator,
    OpenAuthenticator,
    TokenAuthenticator,
    tenant_of,
)
from harch.sentinel.http.permissions import AccessScope, CallerRole
from harch.sentinel.http.server import ServeOptions, authenticator_for
from harch.testing.clock import SimClock

Answers = dict[str, httpx.Response | Exception]


def hub(answers: Answers, clock: SimClock | None = None) -> tuple[HubAuthenticator, list[str]]:
    """A door whose hub knows these keys, and the keys it was asked about."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["x-api-key"] == "own-token"
        if request.url.path.endswith("/valid"):
            answer = answers.get("/valid", httpx.Response(404))
            if isinstance(answer, Exception):
                raise answer
            return answer
        key = json.loads(request.content)["key"]
        asked.append(key)
        answer = answers.get(key, httpx.Response(404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    door = HubAuthenticator("http://hub", "own-token", (clock or SimClock()).monotonic_s, httpx.MockTransport(handle))
    return door, asked


def known(role: str, tenant: str = "acme") -> httpx.Response:
    return httpx.Response(200, json={"role": role, "tenant": tenant})


async def caller(door: HubAuthenticator | TokenAuthenticator, key: str) -> Caller:
    return await door.caller({"authorization": f"Bearer {key}"} if key else {})


async def test_roles_decide_what_a_key_may_do() -> None:
    door, _ = hub({"v": known("viewer"), "u": known("user"), "a": known("agent"), "o": known("operator")})
    assert await caller(door, "v") == Caller(CallerRole.VIEWER, "acme")
    assert await caller(door, "u") == Caller(CallerRole.USER, "acme")
    assert await caller(door, "a") == Caller(CallerRole.AGENT, "acme")
    assert await caller(door, "o") == Caller(CallerRole.OPERATOR, "")
    assert await caller(door, "own-token") == Caller(CallerRole.HUB, "", key_id="sentinel")


@pytest.mark.parametrize("told", [{}, {"role": "hub", "tenant": "t"}, {"role": "root"}, [], "operator"])
async def test_an_answer_that_is_not_understood_opens_nothing(told: object) -> None:
    door, _ = hub({"k": httpx.Response(200, json=told)})
    with pytest.raises(HarchError) as refusal:
        await caller(door, "k")
    assert refusal.value.code in {"E0102", "E0802"}


def test_an_agent_keeps_output_for_the_tenants_of_its_tasks_and_reads_none_of_it() -> None:
    agent, user = Caller(CallerRole.AGENT, "default"), Caller(CallerRole.USER, "acme")
    named = {"x-scope-orgid": "other"}
    assert tenant_of(agent, named, AccessScope.WRITTEN) == "other"
    for asks, scope in ((agent, AccessScope.TENANT), (user, AccessScope.WRITTEN), (user, AccessScope.TENANT)):
        with pytest.raises(HarchError) as refusal:
            tenant_of(asks, named, scope)
        assert refusal.value.code == "E0103"


@pytest.mark.parametrize(
    ("key", "code"), [("", "E0101"), ("stranger", "E0102"), ("late", "E0802"), ("broken", "E0802")]
)
async def test_without_a_clear_yes_nobody_is_let_in(key: str, code: str) -> None:
    door, _ = hub({"late": httpx.ConnectTimeout("no answer"), "broken": httpx.Response(500)})
    with pytest.raises(HarchError) as refusal:
        await caller(door, key)
    assert refusal.value.code == code


async def test_requests_that_come_together_ask_the_hub_once() -> None:
    door, asked = hub({"u": known("user")})
    await asyncio.gather(*(caller(door, "u") for _ in range(3)))
    await caller(door, "u")
    assert asked == ["u"]


async def test_a_revoked_key_is_refused_within_five_seconds() -> None:
    clock = SimClock()
    answers: Answers = {"u": known("user")}
    door, _ = hub(answers, clock)
    await caller(door, "u")
    answers["u"] = httpx.Response(404)
    await clock.advance(FRESH_S)
    for _ in range(2):
        with pytest.raises(HarchError, match="unknown"):
            await caller(door, "u")
    assert FRESH_S + ANSWER_S < 5
    answers["u"] = httpx.ConnectError("the hub is gone")  # what it said was no key stays none
    with pytest.raises(HarchError, match="does not answer"):
        await caller(door, "u")


@pytest.mark.parametrize(
    "silence", [httpx.ConnectError("gone"), httpx.ReadTimeout("slow"), httpx.Response(503), httpx.Response(500)]
)
async def test_while_the_hub_is_away_keys_that_it_knew_stay_good_for_a_while(
    silence: httpx.Response | Exception,
) -> None:
    clock = SimClock()
    answers: Answers = {"u": known("user"), "v": known("viewer")}
    door, asked = hub(answers, clock)
    await caller(door, "u")
    answers |= {"u": silence, "v": silence}
    await clock.advance(OUTAGE_S_MAX - 1)
    asked.clear()
    for _ in range(5):
        assert (await caller(door, "u")).tenant == "acme"
    assert asked == ["u"]  # a hub that is away is not asked for every request
    with pytest.raises(HarchError) as refusal:
        await caller(door, "v")  # nobody said whose key this is
    assert refusal.value.code == "E0802"
    await clock.advance(2)
    with pytest.raises(HarchError) as refusal:
        await caller(door, "u")
    assert refusal.value.code == "E0802"


async def test_a_key_that_the_hub_knew_long_before_it_fell_silent_is_not_believed() -> None:
    clock = SimClock()
    answers: Answers = {"u": known("user")}
    door, _ = hub(answers, clock)
    await caller(door, "u")
    await clock.advance(LATELY_S)
    await door.hub_answered(0)  # it lives, and was not asked about the key any more
    answers["u"] = httpx.ConnectError("gone")
    assert (await caller(door, "u")).tenant == "acme"
    await clock.advance(1)
    await door.hub_answered(0)
    with pytest.raises(HarchError, match="does not answer"):
        await caller(door, "u")


@pytest.mark.parametrize(
    ("said", "stays_good"),
    [
        (httpx.Response(200, json={"key_ids": ["key_v"]}), {"v"}),
        (httpx.Response(500), set()),
        (httpx.ConnectError("gone"), set()),
        (httpx.Response(200, json=[]), set()),
    ],
)
async def test_a_revocation_is_heard_of_without_a_question_about_the_key(
    said: httpx.Response | Exception, stays_good: set[str]
) -> None:
    """Also when the hub falls silent right after it; the other keys stay good, if the hub still says so."""
    shown = {key: httpx.Response(200, json={"role": "user", "tenant": "t", "key_id": f"key_{key}"}) for key in "uv"}
    answers: Answers = {**shown, "/valid": said}
    door, _ = hub(answers)
    await door.hub_answered(0)
    for key in "uv":
        await caller(door, key)
    await door.hub_answered(1)
    answers |= dict.fromkeys("uv", httpx.ConnectError("gone"))
    for key in "uv":
        if key in stays_good:
            await caller(door, key)
        else:
            with pytest.raises(HarchError, match="does not answer"):
                await caller(door, key)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_hub_that_refuses_to_say_is_not_taken_for_one_that_is_away(status: int) -> None:
    clock = SimClock()
    answers: Answers = {"u": known("user")}
    door, _ = hub(answers, clock)
    await caller(door, "u")
    answers["u"] = httpx.Response(status)
    await clock.advance(FRESH_S)
    with pytest.raises(HarchError) as refusal:
        await caller(door, "u")
    assert refusal.value.code == "E0802"


async def test_a_token_is_compared_whole() -> None:
    door = TokenAuthenticator("secret")
    assert await caller(door, "secret") == ALONE
    with pytest.raises(HarchError, match="unknown"):
        await caller(door, "secre")


def test_tenants_are_named_by_those_who_may() -> None:
    user = Caller(CallerRole.USER, "acme")
    assert tenant_of(ALONE, {}) == "default"
    assert tenant_of(ALONE, {"x-scope-orgid": "acme"}) == "acme"
    assert tenant_of(user, {}) == "acme"
    with pytest.raises(HarchError, match="may not see"):
        tenant_of(user, {"x-scope-orgid": "other"})
    for bad in ("../etc", "a/b", "x" * 65, "-"):
        with pytest.raises(HarchError, match="not a tenant name"):
            tenant_of(ALONE, {"x-scope-orgid": bad})


def test_nobody_listens_beyond_the_machine_without_a_key(tmp_path: Path) -> None:
    clock = SimClock()
    assert isinstance(authenticator_for(ServeOptions(tmp_path), clock), OpenAuthenticator)
    with pytest.raises(HarchError, match="could read and write all telemetry"):
        authenticator_for(ServeOptions(tmp_path, host="0.0.0.0"), clock)
    (tmp_path / "token").write_text("secret\n")
    assert isinstance(
        authenticator_for(ServeOptions(tmp_path, host="0.0.0.0", token_file=tmp_path / "token"), clock),
        TokenAuthenticator,
    )
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(HarchError, match="is empty"):
        authenticator_for(ServeOptions(tmp_path, host="0.0.0.0", token_file=tmp_path / "empty"), clock)
