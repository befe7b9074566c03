"""Logs followed over a WebSocket: the past first, then what comes, within limits and through the same door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from harch.base.errors import HarchError
from harch.sentinel.http import app as app_module
from harch.sentinel.http.access import Authenticator, Caller, OpenAuthenticator, TokenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.loki import tail
from harch.sentinel.http.loki.routes import Loki
from harch.sentinel.http.routing import Routes
from harch.sentinel.logql.evaluate.lines import TailBuffer, tailed_entries
from harch.sentinel.logql.syntax.parser import parse_log_query
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs

NOW_S = 1_700_000_000
NOW_NS = NOW_S * 10**9


class Tenants:
    def __init__(self) -> None:
        self.store = MemoryLogs()

    def logs(self, tenant: str) -> MemoryLogs:
        return self.store


def batch(*texts: str, app: str = "web") -> LogBatch:
    return LogBatch(labels({"app": app}), [NOW_NS + place for place in range(len(texts))], list(texts))


class Connection:
    """A WebSocket client at the ASGI door. `take` waits for the next message that was sent."""

    def __init__(self, app: TelemetryApp, parameters: dict[str, str], headers: dict[str, str] | None = None) -> None:
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        self.may_send = asyncio.Event()
        self.may_send.set()
        scope = {
            "type": "websocket",
            "path": "/loki/api/v1/tail",
            "query_string": urlencode(parameters).encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self.task = asyncio.create_task(self._serve(app, scope))

    async def _serve(self, app: TelemetryApp, scope: dict[str, Any]) -> None:
        async def send(message: Any) -> None:
            await self.may_send.wait()
            self._sent.put_nowait(dict(message))

        await app(scope, self._incoming.get, send)

    @property
    def is_quiet(self) -> bool:
        return self._sent.empty()

    async def take(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            return await self._sent.get()

    async def told(self) -> Any:
        message = await self.take()
        assert message["type"] == "websocket.send", message
        return orjson.loads(message["text"])

    async def leave(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        async with asyncio.timeout(10):
            await self.task


def with_app(
    body: Callable[[TelemetryApp, MemoryLogs], Awaitable[None]],
    door: Authenticator | None = None,
    clock: SimClock | None = None,
) -> None:
    clock = clock or SimClock(datetime.fromtimestamp(NOW_S, UTC))

    async def run() -> None:
        tenants = Tenants()
        loki = Loki(tenants, clock)
        app = TelemetryApp(Routes(loki.routes()), door or OpenAuthenticator(), clock, loki.sockets())
        try:
            await body(app, tenants.store)
        finally:
            app.close()

    asyncio.run(run())


def texts(told: Any) -> list[str]:
    return [value[1] for stream in told["streams"] for value in stream["values"]]


def test_the_past_comes_first_and_then_what_is_stored_once_each() -> None:
    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        store.append([batch("old 1", "old 2", "old 3"), batch("not mine", app="db")])
        reader = Connection(app, {"query": '{app="web"} != "noise"', "limit": "2"})
        assert (await reader.take())["type"] == "websocket.accept"
        assert texts(await reader.told()) == ["old 2", "old 3"]
        await asyncio.to_thread(store.append, [batch("new", "noise"), batch("other", app="db")])
        assert texts(await reader.told()) == ["new"]
        await reader.leave()
        assert store._watchers == []

    with_app(body)


def test_lines_wait_for_late_ones_and_come_in_the_order_of_time() -> None:
    clock = SimClock(datetime.fromtimestamp(NOW_S, UTC))

    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        reader = Connection(app, {"query": '{app="web"}', "delay_for": "2"})
        await reader.take()
        store.append([LogBatch(labels({"app": "web"}), [NOW_NS + 5], ["second"])])
        await clock.advance(1.0)
        store.append([LogBatch(labels({"app": "web"}), [NOW_NS + 1], ["first"])])
        assert reader.is_quiet
        await clock.advance(1.5)
        assert texts(await reader.told()) == ["first", "second"]
        await reader.leave()

    with_app(body, clock=clock)


def test_labels_are_told_apart_if_the_reader_asks_for_it() -> None:
    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        flags = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
        reader = Connection(app, {"query": '{app="web"} | logfmt'}, flags)
        await reader.take()
        store.append([LogBatch(labels({"app": "web"}), [NOW_NS], ["a=1"], [labels({"trace_id": "t"})])])
        told = await reader.told()
        assert told["streams"][0]["stream"] == {"app": "web"}
        assert told["streams"][0]["values"][0][2] == {"structuredMetadata": {"trace_id": "t"}, "parsed": {"a": "1"}}
        await reader.leave()

    with_app(body)


def test_a_slow_reader_loses_lines_and_is_told_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    small = lambda matchers, wake: TailBuffer(matchers, wake, lines_max=3)  # noqa: E731
    monkeypatch.setattr(tail, "TailBuffer", small)

    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        reader = Connection(app, {"query": '{app="web"}'})
        await reader.take()
        reader.may_send.clear()
        store.append([batch("a", "b")])
        await asyncio.sleep(0)
        store.append([batch("c", "d", "e"), batch("f", "g", "h")])
        store.append([batch("i", "j", "k", "l")])
        reader.may_send.set()
        seen: list[str] = []
        dropped = listed = 0
        while len(seen) + dropped < 12:
            told = await reader.told()
            seen += texts(told)
            dropped += told.get("dropped_count", 0)
            listed += len(told.get("dropped_entries", ()))
        assert dropped
        assert listed == dropped
        await reader.leave()

    with_app(body)


@pytest.mark.parametrize(
    ("parameters", "code", "status"),
    [
        ({"query": "{app="}, "E0685", 400),
        ({"query": 'rate({app="web"}[1m])'}, "E0689", 400),
        ({"query": '{app="web"}', "delay_for": "6"}, "E0201", 400),
        ({"query": '{app="web"}', "limit": "9999"}, "E0687", 400),
        ({}, "E0201", 400),
    ],
)
def test_what_is_wrong_is_an_http_answer_before_the_connection_opens(
    parameters: dict[str, str], code: str, status: int
) -> None:
    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        reader = Connection(app, parameters)
        start, content = await reader.take(), await reader.take()
        assert start["status"] == status
        assert orjson.loads(content["body"])["code"] == code
        await reader.task
        assert store._watchers == []

    with_app(body)


def test_following_needs_a_token_where_there_is_one() -> None:
    async def body(app: TelemetryApp, _: MemoryLogs) -> None:
        stranger = Connection(app, {"query": '{app="web"}'})
        assert (await stranger.take())["status"] == 401
        known = Connection(app, {"query": '{app="web"}'}, {"Authorization": "Bearer secret"})
        assert (await known.take())["type"] == "websocket.accept"
        await known.leave()

    with_app(body, TokenAuthenticator("secret"))


def test_following_ends_when_the_key_is_revoked() -> None:
    class Door(OpenAuthenticator):
        revoked = False

        async def caller(self, headers: Mapping[str, str]) -> Caller:
            if self.revoked:
                raise HarchError("E0102", "unknown API key")
            return await super().caller(headers)

    door, clock = Door(), SimClock(datetime.fromtimestamp(NOW_S, UTC))

    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        reader = Connection(app, {"query": '{app="web"}'})
        await reader.take()
        await clock.advance(app_module.RECHECK_S)
        store.append([batch("still there")])
        assert texts(await reader.told()) == ["still there"]
        door.revoked = True
        await clock.advance(app_module.RECHECK_S)
        told = await reader.take()
        assert (told["type"], told["code"]) == ("websocket.close", 1011)
        assert "E0102" in told["reason"]
        await reader.task
        assert store._watchers == []

    with_app(body, door, clock)


def test_only_so_many_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TAILS_MAX", 1)

    async def body(app: TelemetryApp, _: MemoryLogs) -> None:
        first = Connection(app, {"query": '{app="web"}'})
        await first.take()
        second = Connection(app, {"query": '{app="web"}'})
        assert (await second.take())["status"] == 429
        await first.leave()
        third = Connection(app, {"query": '{app="web"}'})
        assert (await third.take())["type"] == "websocket.accept"
        await third.leave()

    with_app(body)


def test_a_connection_ends_in_an_orderly_way_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "FOLLOWED_S_MAX", 0.05)

    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        reader = Connection(app, {"query": '{app="web"}'})
        await reader.take()
        assert await reader.take() == {"type": "websocket.close", "code": 1000, "reason": ""}
        await reader.task
        assert store._watchers == []

    with_app(body)


def test_a_reader_who_takes_nothing_is_hung_up_on() -> None:
    async def body(app: TelemetryApp, store: MemoryLogs) -> None:
        app._limits = type(app._limits)(stalled_s_max=0.05)
        reader = Connection(app, {"query": '{app="web"}'})
        await reader.take()
        reader.may_send.clear()
        store.append([batch("a")])
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                await reader.task
        assert store._watchers == []

    with_app(body)


def test_new_lines_of_several_batches_come_in_the_order_of_time() -> None:
    late = LogBatch(labels({"app": "web"}), [NOW_NS + 5, NOW_NS + 1], ["second", "first"])
    query = parse_log_query('{app="web"}')
    assert [entry.text for entry in tailed_entries(query, [late, batch("zeroth")], NOW_NS)] == [
        "zeroth",
        "first",
        "second",
    ]
