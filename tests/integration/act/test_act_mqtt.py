"""The MQTT sink against a real broker: QoS 1, the key inside, and a device that says what it did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import pytest
from amqtt.broker import Broker

from harch.pipelines.act.settings import MqttSink as Settings
from harch.pipelines.act.sinks.base import Effect, SinkRequest
from harch.pipelines.act.sinks.mqtt import MqttSinkAdapter
from integration.act.act_servers import until


@asynccontextmanager
async def broker() -> AsyncIterator[int]:
    server = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await server.start()
    try:
        yield server._servers["default"].instance.sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with broker() as number:
        yield number


def sink_at(port: int, **changes: Any) -> MqttSinkAdapter:
    fields = {"host": "127.0.0.1", "port": port, "topic": "field/{device}/set", "timeout_s": 20.0}
    return MqttSinkAdapter(Settings(**{**fields, **changes}))


def order(number: int = 0, *, device: str = "d0", timeout_s: float = 20.0) -> SinkRequest:
    return SinkRequest(
        key=f"{number:064x}:0", cmd_id=f"{number:064x}", device=device, action="open", args={"value": 1.0}, fence=3,
        timeout_s=timeout_s, expires_ms=1_800_000_000_000,
    )  # fmt: skip


def now() -> str:
    return ""


class Device:
    """Keeps keys: carries each out once, and says on its state topic which one was the last."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard: list[dict[str, Any]] = []
        self.done: set[str] = set()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        async with aiomqtt.Client("127.0.0.1", self.port) as client:
            await client.subscribe("field/+/set", qos=1)
            self.ready.set()
            async for message in client.messages:
                told = json.loads(message.payload)
                self.heard.append(told)
                self.done.add(told["key"])
                await client.publish("field/d0/state", json.dumps({"key": told["key"]}), qos=1, retain=True)


async def test_a_command_reaches_the_device_with_its_key_and_is_read_back(port: int) -> None:
    device = Device(port)
    task = asyncio.create_task(device.run())
    await asyncio.wait_for(device.ready.wait(), 30)
    sink = sink_at(port, honours_key=True, state_topic="field/{device}/state")
    assert (await sink.prepare(order())).refusal == ""
    for _ in range(20):
        assert (await sink.execute(order(), now)).effect is Effect.YES
    assert (await sink.execute(order(1), now)).effect is Effect.YES
    await until(lambda: len(device.done) == 2, "the device hears both")
    assert device.heard[0]["args"] == {"value": 1.0}
    assert device.heard[0]["expires_ms"] == 1_800_000_000_000
    assert (await sink.probe(order(1))).effect is Effect.YES
    unheard = await sink.probe(order(2, timeout_s=0.5))
    assert unheard.effect is Effect.MAYBE, "silence is no proof"
    await sink.close()
    task.cancel()
    await asyncio.wait([task])


async def test_a_closed_gate_and_a_hostile_name_send_nothing(port: int) -> None:
    device = Device(port)
    task = asyncio.create_task(device.run())
    await asyncio.wait_for(device.ready.wait(), 30)
    sink = sink_at(port)
    assert (await sink.execute(order(), lambda: "expired")).detail == "expired"
    for name in ("a/b", "+", "#"):
        outcome = await sink.execute(order(device=name), now)
        assert (outcome.effect, outcome.retry) == (Effect.NO, False)
        assert (await sink.prepare(order(device=name))).refusal
    assert (await sink.execute(order(9), now)).effect is Effect.YES
    await until(lambda: bool(device.heard), "the device hears the last one")
    assert [one["cmd_id"] for one in device.heard] == [order(9).cmd_id]
    await sink.close()
    task.cancel()
    await asyncio.wait([task])


async def test_a_broker_that_is_gone_is_a_clear_no_as_soon_as_that_is_known() -> None:
    async with broker() as port:
        sink = sink_at(port, timeout_s=5.0)
        assert (await sink.execute(order(), now)).effect is Effect.YES
    outcome = await sink.execute(order(1, timeout_s=5.0), now)
    assert outcome.effect in (Effect.NO, Effect.MAYBE)
    outcome = await sink.execute(order(2, timeout_s=5.0), now)
    assert (outcome.effect, outcome.retry) == (Effect.NO, True)
    assert (await sink.prepare(order(2, timeout_s=5.0))).refusal
    await sink.close()
