"""A SENTINEL with stores in memory, asked over its ASGI door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
import pytest
from click.testing import CliRunner, Result

from harch.cli.main import root
from harch.sentinel.http.access import OpenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.routing import HttpRoute, Routes
from harch.sentinel.model.spans import AttributeValue, Span, SpanStatus
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs, MemorySpans

NOW_S = 1_700_000_000
NOW_NS = NOW_S * 10**9
TRACE = "0af7651916cd43dd8448eb211c80319c"
MS = 1_000_000


class MemoryTenants:
    """Logs and spans of every tenant, in memory."""

    def __init__(self) -> None:
        self._logs: dict[str, MemoryLogs] = {}
        self._spans: dict[str, MemorySpans] = {}

    def logs(self, tenant: str) -> MemoryLogs:
        return self._logs.setdefault(tenant, MemoryLogs())

    def spans(self, tenant: str) -> MemorySpans:
        return self._spans.setdefault(tenant, MemorySpans())


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def asked(
    routes: Sequence[HttpRoute],
    path: str,
    parameters: Mapping[str, object] | None = None,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    async def ask() -> Reply:
        application = TelemetryApp(Routes(routes), OpenAuthenticator(), SimClock(datetime.fromtimestamp(NOW_S, UTC)))
        sent: list[Any] = []
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": b""}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": urlencode(dict(parameters or {})).encode(),
            "headers": pairs,
        }
        try:
            await application(scope, receive, send)
        finally:
            application.close()
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], b"".join(one.get("body", b"") for one in sent), told)

    return asyncio.run(ask())


def cli_of(routes: Sequence[HttpRoute], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A `harch sentinel` that asks these routes."""

    def answer(request: httpx.Request) -> httpx.Response:
        reply = asked(routes, request.url.path, dict(request.url.params), method=request.method)
        return httpx.Response(reply.status, content=reply.body)

    plain = httpx.Client

    def client(**more: object) -> httpx.Client:
        return plain(base_url="http://sentinel", transport=httpx.MockTransport(answer))

    monkeypatch.setattr("harch.sdk.sentinel.httpx.Client", client)
    monkeypatch.setenv("HARCH_SENTINEL_URL", "http://sentinel")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: CliRunner().invoke(root, ["sentinel", *words])


def span(
    name: str,
    *,
    ago_s: float = 10,
    duration_ms: float = 5,
    parent: str = "",
    trace: str = TRACE,
    service: str = "hub",
    error: bool = False,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Span:
    return Span(
        trace_id=trace,
        span_id=name.encode().hex().zfill(16)[-16:],
        parent_id=parent.encode().hex().zfill(16)[-16:] if parent else "",
        service=service,
        name=name,
        start_ns=NOW_NS - round(ago_s * 10**9),
        duration_ns=round(duration_ms * MS),
        status=SpanStatus.ERROR if error else SpanStatus.UNSET,
        attributes=tuple(sorted((attributes or {}).items())),
        resource=(("hub", "dakhla"),),
    )
