"""Submissions without ASGI: every answer, count and trace is the one that the same request has through it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from uvicorn.server import ServerState

from harch.api.app import create_app
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.listen.gate import ConnectionGate
from harch.base.listen.http_server import HttpGuard
from harch.base.tracing.spans import FinishedSpan, TraceContext
from harch.base.tracing.tracer import Tracing
from harch.hub.views import Role
from harch.testing.clock import SimClock
from unit.api.fake_hub import KEYS, FakeHub
from unit.base.http_connection import HttpConnection, settle

CALLER = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
USER = {"x-api-key": KEYS[Role.USER]}
JOB = json.dumps({"name": "job", "command": ["true"], "resources": {"gpus": 2}})
LIMITS = HttpLimits(body_bytes_max=4096)
_IDS = re.compile(rb"wl_[0-9a-z]{21}|req_[0-9a-f]{8}")  # of requests the number stays


class Api:
    """A hub in memory behind a listener; `by_asgi` counts what came through ASGI."""

    def __init__(self) -> None:
        self.hub, self.spans, clock = FakeHub(), list[FinishedSpan](), SimClock()
        self.front = create_app(self.hub, limits=LIMITS, clock=clock, tracing=Tracing(self.spans.append, clock))
        self.by_asgi = 0
        state = ServerState()
        state.default_headers = [(b"date", b"today")]
        gate = ConnectionGate("test", descriptors=1000)
        guard = HttpGuard(gate, self.front.error_body, self.front.direct_routes)
        self.connection = HttpConnection(self._app, guard, state)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.by_asgi += 1
        await self.front(scope, receive, send)

    async def post(self, body: str, headers: dict[str, str], *, path: str, plain: bool) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        lines += "" if plain else "x-two: 1\r\nx-two: 2\r\n"
        data = body.encode()
        head = f"POST {path} HTTP/1.1\r\nhost: hub\r\n{lines}content-length: {len(data)}\r\n\r\n"
        answer = await self.connection.send(head.encode("latin-1") + data)
        return _IDS.sub(b"ID", answer)

    async def metrics(self) -> list[str]:
        """The lines about requests."""
        transport, admin = httpx.ASGITransport(self.front), {"x-api-key": KEYS[Role.ADMIN]}  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub", headers=admin) as client:
            page = (await client.get("/v1/metrics/series")).text
        return [line for line in page.splitlines() if line.startswith("harchos_hub_request")]


@pytest.fixture
async def apis() -> tuple[Api, Api]:
    return Api(), Api()


CALLS: dict[str, tuple[int, str, dict[str, str]]] = {
    "a job": (201, JOB, USER),
    "a bearer": (201, JOB, {"authorization": f"Bearer {KEYS[Role.USER]}"}),
    "the empty key and a bearer": (201, JOB, {"x-api-key": "", "authorization": f"bearer {KEYS[Role.USER]}"}),
    "another kind of authorization": (401, JOB, {"authorization": f"Basic {KEYS[Role.USER]}"}),
    "no key": (401, JOB, {}),
    "an unknown key": (401, JOB, {"x-api-key": "hsk_wrong"}),
    "too low a role": (403, JOB, {"x-api-key": KEYS[Role.VIEWER]}),
    "an id of its own": (201, JOB, {**USER, "x-request-id": "mine-1"}),
    "a harmful id": (201, JOB, {**USER, "x-request-id": "<script>"}),
    "an idempotency key": (201, JOB, {**USER, "idempotency-key": "once"}),
    "too long an idempotency key": (400, JOB, {**USER, "idempotency-key": "x" * 256}),
    "the Terraform client": (201, JOB, {**USER, "user-agent": "harchos-terraform-provider/0.3.0"}),
    "no JSON": (400, "{", USER),
    "nothing": (400, "", USER),
    "a wrong field": (400, json.dumps({"name": "x", "typo": 1}), USER),
    "the largest body": (201, JOB.ljust(LIMITS.body_bytes_max), USER),
}


@pytest.mark.parametrize("path", ["/v1/workloads", "/workloads"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_submission_is_answered_alike_on_both_routes(apis: tuple[Api, Api], name: str, path: str) -> None:
    direct, ordinary = apis
    first, body, headers = CALLS[name]
    for status in (first, 200 if first == 201 else first):  # the second time it is a repeated request
        answer = await direct.post(body, headers, path=path, plain=True)
        assert answer == await ordinary.post(body, headers, path=path, plain=False)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"<script>" not in answer
    assert (direct.by_asgi, ordinary.by_asgi) == (0, 2)
    metrics = await direct.metrics()
    assert metrics == await ordinary.metrics()
    assert metrics
    traced = [[(span.name, span.kind, span.attributes, span.error) for span in api.spans] for api in apis]
    assert traced[0] == traced[1]
    assert len(traced[0]) == 2


@pytest.mark.parametrize(
    "failure", [HarchError("E0401", "the queue is full", hint="wait", retry_after_s=7), RuntimeError("inner secret")]
)
async def test_what_the_hub_refuses_and_where_it_fails_is_answered_alike(
    apis: tuple[Api, Api], failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    for api in apis:
        api.hub.failure = failure
    answers = [await api.post(JOB, USER, path="/v1/workloads", plain=api is apis[0]) for api in apis]
    assert answers[0] == answers[1]
    assert b"inner secret" not in answers[0]
    logged = [re.sub("req_[0-9a-f]+", "ID", record.getMessage()) for record in caplog.records]
    assert logged == ([] if isinstance(failure, HarchError) else ["ID: POST /v1/workloads failed"] * 2)
    assert apis[0].by_asgi == 0


async def test_a_body_that_is_too_large_is_refused_with_its_413_and_ends_the_connection(apis: tuple[Api, Api]) -> None:
    body = JOB.ljust(LIMITS.body_bytes_max + 1)
    answers = [await api.post(body, USER, path="/v1/workloads", plain=api is apis[0]) for api in apis]
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answers[0]
    assert b"E0204" in answers[0]
    assert apis[0].connection.transport.is_closing()
    assert apis[0].hub.store == {}


async def test_whoever_may_not_submit_hears_it_before_the_body_is_sent(apis: tuple[Api, Api]) -> None:
    head = b"POST /v1/workloads HTTP/1.1\r\nhost: hub\r\ncontent-length: 100\r\n\r\n"
    assert (await apis[0].connection.send(head)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("plain", [True, False])
async def test_a_submission_goes_on_in_the_trace_of_its_caller(plain: bool) -> None:
    api = Api()
    await api.post(JOB, {**USER, "traceparent": CALLER.header}, path="/workloads", plain=plain)
    (span,) = api.spans
    assert (span.name, span.trace_id, span.parent_id) == ("POST /v1/workloads", CALLER.trace_id, CALLER.span_id)
    assert span.attributes["http.response.status_code"] == 201


async def test_work_of_a_client_that_leaves_before_the_answer_is_taken(apis: tuple[Api, Api]) -> None:
    api, submit = apis[0], apis[0].hub.submit
    stored = asyncio.Event()

    async def slowly(*args: Any, **more: Any) -> Any:
        await stored.wait()
        return await submit(*args, **more)

    api.hub.submit = slowly  # type: ignore[method-assign]
    assert await api.post(JOB, USER, path="/v1/workloads", plain=True) == b""
    await api.connection.lose()
    stored.set()
    await settle()
    assert [workload.spec.name for workload in api.hub.store.values()] == ["job"]
    assert any('code="2xx"' in line for line in await api.metrics())
