"""Requests are read within limits, refused with reasons, and given up when nobody waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from harch.base.errors import InvariantBroken
from harch.sentinel.http import app as app_module
from harch.sentinel.http.access import ALONE, Caller
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.messages import HttpReply, TelemetryRequest
from harch.sentinel.http.permissions import HUB_ALONE, OPERATE, READ, WRITE, Access, CallerRole
from harch.sentinel.http.routing import Handler, HttpRoute, Routes, WorkClass
from harch.testing.clock import SimClock


class _Door:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        return self._caller


async def asked(
    handler: Handler,
    *,
    work: WorkClass = WorkClass.QUERY,
    access: Access = READ,
    caller: Caller | None = None,
    body: bytes = b"",
    then: Sequence[dict[str, Any]] = (),
    body_bytes_max: int = 1000,
) -> tuple[int, Any]:
    """The answer to one POST; `then` is what the connection says after the body."""
    route = HttpRoute(("POST",), "/ask", handler, work, body_bytes_max)
    application = TelemetryApp(Routes([route], {("POST", "/ask"): access}), _Door(caller or ALONE), SimClock())
    messages = [{"type": "http.request", "body": body}, *then]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/ask", "query_string": b"", "headers": []}
    try:
        await application(scope, receive, send)
    finally:
        application.close()
    content = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], orjson.loads(content) if content else None


async def test_a_query_ends_when_its_caller_hangs_up() -> None:
    ended = threading.Event()

    def handler(request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        while not request.is_gone():
            ended.wait(0.01)
        ended.set()
        return HttpReply()

    await asked(handler, then=[{"type": "http.disconnect"}])
    assert ended.is_set()


async def test_a_fault_is_answered_and_does_not_tell_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        raise RuntimeError("secret")

    status, told = await asked(handler)
    assert (status, told["code"]) == (500, "E1001")
    assert "secret" not in told["error"]
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("access", "role", "status"),
    [
        (WRITE, CallerRole.VIEWER, 403),
        (OPERATE, CallerRole.USER, 403),
        (HUB_ALONE, CallerRole.ADMIN, 403),
        (READ, CallerRole.AGENT, 403),
        (READ, CallerRole.VIEWER, 200),
        (WRITE, CallerRole.AGENT, 200),
    ],
)
async def test_roles_are_checked_before_the_body_is_read(access: Access, role: CallerRole, status: int) -> None:
    found, told = await asked(lambda *_: HttpReply(), access=access, caller=Caller(role, "t"), body=b"x" * 2000)
    assert found == (413 if status == 200 else status)
    assert told["code"] == ("E0204" if status == 200 else "E0103")


def test_a_route_of_which_nobody_said_who_may_call_it_is_not_served() -> None:
    route = HttpRoute(("GET", "POST"), "/ask", lambda *_: HttpReply())
    with pytest.raises(InvariantBroken, match="POST, /ask"):
        Routes([route], {("GET", "/ask"): READ})


async def test_a_body_beyond_the_limit_is_refused() -> None:
    status, told = await asked(lambda *_: HttpReply(), body=b"x" * 1001)
    assert (status, told["code"]) == (413, "E0204")


async def test_too_many_waiting_requests_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "QUERIES_WAITING_MAX", 0)
    status, told = await asked(lambda *_: HttpReply())
    assert (status, told["code"]) == (503, "E0676")
