"""Every route of a whole SENTINEL is called with every role: who may not is refused, whatever the route does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from whole_sentinel import OWN, WholeSentinel

from harch.sentinel.http.permissions import ACCESS, SOCKET, AccessScope, CallerRole

CALLERS = {
    "": None,
    "viewer": CallerRole.VIEWER,
    "user": CallerRole.USER,
    "agent": CallerRole.AGENT,
    "operator": CallerRole.OPERATOR,
    "admin": CallerRole.ADMIN,
    OWN: CallerRole.HUB,
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[WholeSentinel]:
    made = WholeSentinel(tmp_path)
    yield made
    await made.close()


async def test_the_table_names_what_is_served_and_nothing_else(world: WholeSentinel) -> None:
    served = {(method, route.path) for route in world.sentinel.routes for method in route.methods}
    served |= {(SOCKET, route.path) for route in world.sentinel.sockets}
    assert served == set(ACCESS)


@pytest.mark.parametrize("key", CALLERS)
async def test_each_role_may_call_what_the_table_says(world: WholeSentinel, key: str) -> None:
    """403 and 401 before anything is done; whatever else a call without parameters answers is not about roles."""
    role = CALLERS[key]
    async with world.client(key) as client:
        for (method, path), access in ACCESS.items():
            if method == SOCKET:
                continue
            status = (await client.request(method, _filled(path))).status_code
            if access.roles is None:
                assert status == 200, (method, path)
            elif role is None:
                assert status == 401, (method, path)
            else:
                assert (status == 403) is (role not in access.roles), (method, path, status)


@pytest.mark.parametrize("key", CALLERS)
async def test_the_logs_are_followed_by_those_who_may_read_them(world: WholeSentinel, key: str) -> None:
    sent: list[dict[str, Any]] = []
    incoming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect"}]

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "websocket", "path": "/loki/api/v1/tail", "query_string": b"query=1", "headers": headers}
    await world.sentinel.app(scope, receive, send)
    role = CALLERS[key]
    allowed = ACCESS[SOCKET, "/loki/api/v1/tail"].roles or frozenset()
    expected = 401 if role is None else 400 if role in allowed else 403  # 400: `1` is no query for lines
    assert sent[0]["status"] == expected


def test_what_agents_may_do_is_write_and_what_others_may_not_is_operate() -> None:
    for (method, path), access in ACCESS.items():
        roles = access.roles or frozenset(CallerRole)
        if CallerRole.AGENT in roles and access.roles is not None:
            assert access.scope is AccessScope.WRITTEN, path
            assert method == "POST", path
        if access.scope is AccessScope.ALL:
            assert not roles & {CallerRole.AGENT, CallerRole.VIEWER, CallerRole.USER}, path
        if CallerRole.VIEWER in roles and access.roles is not None:
            assert access.scope in {AccessScope.TENANT, AccessScope.ALERTS}, path
        assert CallerRole.HUB in roles, path


async def test_a_user_names_no_other_tenant_on_any_route(world: WholeSentinel) -> None:
    async with world.client("user") as client:
        client.headers["X-Scope-OrgID"] = "other"
        for (method, path), access in ACCESS.items():
            if method != SOCKET and access.roles is not None:
                assert (await client.request(method, _filled(path))).status_code == 403, (method, path)


def _filled(path: str) -> str:
    return path.replace("{name}", "x").replace("{id}", "x").replace("{tag}", "x").replace("{fingerprint}", "x")
