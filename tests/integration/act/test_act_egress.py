"""The second check: an address that was proved and has changed since is not connected to, by any sink.

Every test has a far side on loopback that `localhost` really resolves to, so it would hear of a connection if the guard
were not asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from harch.base.egress import EgressGuard, NotPermitted
from harch.base.guarded_http import GuardedTransport
from harch.pipelines.act import settings as spec
from harch.pipelines.act.sinks.base import Effect, Sink, SinkRequest
from harch.pipelines.act.sinks.build import build_sinks
from harch.sovereignty.jurisdictions import DeclaredPlace, EgressRule, Places
from integration.act.act_servers import until

PLACES = Places(
    (DeclaredPlace(id="souss", country="MA", networks=("10.1.0.0/16",), names=("localhost.souss.example",)),)
)
ABROAD = EgressRule("MA", PLACES)  # what was proved: hosts in Morocco, and this machine is none of them
HERE = EgressRule()


class FarSide:
    """Counts connections and reads what it is told."""

    def __init__(self, greeting: bytes = b"") -> None:
        self.greeting = greeting
        self.connections = 0
        self.port = 0
        self.heard = b""

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[FarSide]:
        server = await asyncio.start_server(self._serve, host, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(self.greeting)
        self.heard += await reader.read(4096)
        writer.close()


@pytest.fixture
async def far() -> AsyncIterator[FarSide]:
    async with FarSide().serving() as side:
        yield side


SINKS: dict[str, Callable[[int], spec.SinkSettings]] = {
    "http": lambda port: spec.HttpSink(
        url=f"http://localhost:{port}/act",
        status_url=f"http://localhost:{port}/status/{{key}}",
        undo_url=f"http://localhost:{port}/undo",
        timeout_s=5.0,
    ),
    "mqtt": lambda port: spec.MqttSink(host="localhost", port=port, topic="t", state_topic="s", timeout_s=5.0),
    "modbus": lambda port: spec.ModbusSink(host="localhost", port=port, register=1, timeout_s=5.0),
    "sql": lambda port: spec.SqlSink(url=f"postgresql://localhost:{port}/x", statement="select 1", timeout_s=5.0),
    "nats": lambda port: spec.NatsSink(url=f"nats://localhost:{port}", subject="s", timeout_s=5.0),
}


def built(kind: str, port: int, rule: EgressRule, said: list[str] | None = None) -> Sink:
    if kind == "sql":
        pytest.importorskip("psycopg", reason="needs psycopg")
    settings = spec.ActSettings(sinks={"far": SINKS[kind](port)}, actions=())
    guard = EgressGuard(rule.refusal, on_refused=(said if said is not None else []).append)
    return build_sinks(settings, guards={"far": guard})["far"]


def order(*, undo: bool = False) -> SinkRequest:
    return SinkRequest(
        key="k", cmd_id="c", device="d0", action="open", args={"value": 1.0}, fence=1, timeout_s=5, expires_ms=2**53,
        undo=undo,
    )  # fmt: skip


def now() -> str:
    return ""


@pytest.mark.parametrize("kind", SINKS)
async def test_a_sink_that_stands_elsewhere_than_was_proved_is_not_connected_to(kind: str, far: FarSide) -> None:
    said: list[str] = []
    sink = built(kind, far.port, ABROAD, said)
    await sink.prepare(order())
    for one in (order(), order(undo=True)):
        outcome = await sink.execute(one, now)
        assert outcome.effect is Effect.NO, "nothing was sent, so nothing happened"
        assert "this machine" in outcome.detail
    assert (await sink.probe(order())).effect is Effect.MAYBE
    await sink.close()
    assert far.connections == 0
    assert said, "somebody hears of it"


@pytest.mark.parametrize("kind", SINKS)
async def test_a_sink_that_stands_where_it_was_proved_is_connected_to(kind: str, far: FarSide) -> None:
    sink = built(kind, far.port, HERE)
    await sink.prepare(order())
    await sink.execute(order(), now)
    await sink.close()
    assert far.connections > 0


async def test_a_name_is_resolved_once_and_exactly_that_address_is_used(far: FarSide) -> None:
    """Between a check and a connection by name, the name could come to mean somebody else."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in answers[min(len(asked), len(answers)) - 1]]

    guard = EgressGuard(lambda address: "" if address == "127.0.0.1" else "moved", resolve=resolve)
    sink = build_sinks(
        spec.ActSettings(sinks={"far": spec.HttpSink(url=f"http://valves.example:{far.port}/")}, actions=()),
        guards={"far": guard},
    )["far"]
    await sink.execute(order(), now)
    assert (asked, far.connections) == (["valves.example"], 1)
    assert b"Host: valves.example" in far.heard, "the far side is still called by its name"
    outcome = await sink.execute(order(), now)
    assert (outcome.effect, far.connections) == (Effect.NO, 1)
    assert "moved" in outcome.detail
    await sink.close()


async def test_a_redirect_is_judged_like_every_request(far: FarSide) -> None:
    there = FarSide(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:%d/\r\nContent-Length: 0\r\n\r\n" % far.port)
    guard = EgressGuard(lambda address: "" if address == "127.0.0.1" else "elsewhere")
    async with there.serving(), httpx.AsyncClient(transport=GuardedTransport(guard), follow_redirects=True) as client:
        with pytest.raises(NotPermitted, match="elsewhere"):
            await client.post(f"http://127.0.0.1:{there.port}/")
    assert there.connections == 1


async def test_a_message_server_cannot_send_its_client_to_other_servers(far: FarSide) -> None:
    info = {
        "server_id": "x",
        "version": "2.15.0",
        "headers": True,
        "max_payload": 1024,
        "connect_urls": [f"127.0.0.1:{far.port}"],
    }
    there = FarSide(b"INFO " + json.dumps(info).encode() + b"\r\nPONG\r\n")
    async with there.serving():
        sink = built("nats", there.port, HERE)
        await sink.prepare(order())
        await until(lambda: there.connections > 0, "the first connection, which the server ends")
        for _ in range(3):
            await sink.execute(order(), now)
        await sink.close()
    assert far.connections == 0


async def test_variables_that_libpq_would_follow_are_not_followed(
    far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg")
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(far.port))
    settings = spec.SqlSink(url="postgresql:///x?host=/nowhere", statement="select 1", timeout_s=5.0)
    sink = build_sinks(spec.ActSettings(sinks={"far": settings}, actions=()))["far"]
    outcome = await sink.execute(order(), now)
    await sink.close()
    assert (outcome.effect, far.connections) == (Effect.NO, 0)
    assert "PGHOSTADDR" in outcome.detail
