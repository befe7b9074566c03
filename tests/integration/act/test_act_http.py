"""The webhook sink against a real server: what each kind of ending means, and that a closed gate sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.pipelines.act.settings import HttpSink as Settings
from harch.pipelines.act.sinks.base import Effect, SinkRequest
from harch.pipelines.act.sinks.http import HttpSinkAdapter
from integration.act.act_servers import RecordingHook


@pytest.fixture
async def hook() -> AsyncIterator[RecordingHook]:
    async with RecordingHook(honours_key=True).serving() as server:
        yield server


def sink_at(hook: RecordingHook, **changes: Any) -> HttpSinkAdapter:
    fields = {"url": f"{hook.url}/act/{{device}}", "status_url": f"{hook.url}/status/{{key}}", "timeout_s": 20.0}
    return HttpSinkAdapter(Settings(**{**fields, **changes}), environment={"TOKEN": "s3cret"})


def order(number: int = 0, *, device: str = "d0", timeout_s: float = 20.0) -> SinkRequest:
    return SinkRequest(
        key=f"{number:064x}:0", cmd_id=f"{number:064x}", device=device, action="open", args={"value": 1.0}, fence=3,
        timeout_s=timeout_s, expires_ms=1_800_000_000_000, trace="00-trace",
    )  # fmt: skip


def now() -> str:
    return ""


async def test_a_request_carries_its_key_its_fence_and_its_end(hook: RecordingHook) -> None:
    sink = sink_at(hook, headers={"Authorization": "env:TOKEN"})
    assert (await sink.execute(order(), now)).effect is Effect.YES
    (head,) = hook.heads
    assert head["idempotency-key"] == order().key
    assert head["x-command-fence"] == "3"
    assert head["x-command-expires-ms"] == "1800000000000"
    assert head["authorization"] == "s3cret"
    assert hook.bodies[order().key]["args"] == {"value": 1.0}
    assert (await sink.probe(order())).effect is Effect.YES
    assert (await sink.probe(order(1))).effect is Effect.NO
    await sink.close()


@pytest.mark.parametrize(
    ("status", "effect", "retry"),
    [
        (400, Effect.NO, False),
        (302, Effect.NO, False),
        (404, Effect.NO, False),
        (429, Effect.NO, True),
        (408, Effect.MAYBE, True),
        (500, Effect.MAYBE, True),
        (503, Effect.MAYBE, True),
    ],
)
async def test_what_a_status_means(hook: RecordingHook, status: int, effect: Effect, retry: bool) -> None:
    hook.status = status
    sink = sink_at(hook)
    outcome = await sink.execute(order(), now)
    assert (outcome.effect, outcome.retry) == (effect, retry)
    await sink.close()


async def test_a_server_that_dies_in_the_middle_of_a_request_is_maybe(hook: RecordingHook) -> None:
    hook.trouble = 1.0
    sink = sink_at(hook)
    outcomes = [await sink.execute(order(number), now) for number in range(10)]
    assert {outcome.effect for outcome in outcomes} == {Effect.MAYBE}
    assert 0 < len(hook.effects) < 10, "some were carried out and some were not, and nobody can tell from here"
    await sink.close()


async def test_a_server_that_never_answers_is_maybe(hook: RecordingHook) -> None:
    hook.hold = True
    sink = sink_at(hook, timeout_s=0.5)
    assert (await sink.execute(order(timeout_s=0.5), now)).effect is Effect.MAYBE
    await sink.close()


async def test_a_server_that_is_not_there_is_a_clear_no() -> None:
    async with RecordingHook(honours_key=True).serving() as gone:
        pass
    sink = sink_at(gone)
    outcome = await sink.execute(order(), now)
    assert (outcome.effect, outcome.retry) == (Effect.NO, True)
    assert (await sink.probe(order())).effect is Effect.MAYBE
    await sink.close()


async def test_the_gate_is_asked_after_connecting_and_closed_sends_no_byte(hook: RecordingHook) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    sink = sink_at(hook)
    outcome = await sink.execute(order(), lambda: "expired")
    assert (outcome.effect, outcome.detail) == (Effect.NO, "expired")
    await sink.close()
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.02)
    assert heard == [b""], "it had connected, and sent nothing"
    server.close()


async def test_a_hostile_device_name_stays_one_part_of_the_path(hook: RecordingHook) -> None:
    paths: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await reader.readline()).decode().split(" ")[1])
        writer.write(b"HTTP/1.1 200 -\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    sink = sink_at(hook)
    await sink.execute(order(device="../admin?x=1#y"), now)
    assert paths == ["/act/..%2Fadmin%3Fx%3D1%23y"]
    await sink.close()
    server.close()


def test_a_variable_that_is_not_set_is_told_by_its_name_only() -> None:
    with pytest.raises(HarchError) as caught:
        HttpSinkAdapter(Settings(url="http://h/x", headers={"Authorization": "env:MISSING"}), environment={})
    assert caught.value.code == "E0776"
    assert "MISSING" in caught.value.message
