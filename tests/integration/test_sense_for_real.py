"""Events over real sockets and a real broker: what can be used arrives, the rest is counted, and the lane goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiomqtt
from amqtt.broker import Broker

from harch.base.clock import SystemClock
from harch.base.egress import EgressGuard
from harch.pipelines.listener_keys import key_digest
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import EdgeBatcher, Permit
from harch.pipelines.sense.inputs.batches import TcpInput, frame, key_frame
from harch.pipelines.sense.inputs.mqtt import MqttInput
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import MqttSource
from harch.pipelines.wire.header import BatchHeader, unpack_header
from harch.pipelines.wire.rows import RowFormat, RowReader
from harch.sovereignty.jurisdictions import DeclaredPlace, EgressRule, Places
from harch.testing.ports import free_port
from unit.pipelines.sense.sense_world import batch_of, settings_of, stage_of, take

SETTINGS = settings_of()
FORMAT = RowFormat(values={"v0": "value"})
PATIENCE_S = 30.0
KEY = "a-key-of-the-tests-alone"


def make_intake(bytes_max: int = 1 << 20) -> Intake:
    return Intake(bytes_max=bytes_max, quarantine=Quarantine(10))


def mqtt_input(intake: Intake, port: int, guard: EgressGuard | None = None) -> MqttInput:
    source = MqttSource(name="m", host="localhost", port=port, topics=("farm/{device}/{metric}",), rows=FORMAT)
    devices = DeviceTable(SETTINGS.devices, SETTINGS.devices_max, SETTINGS.metrics)
    edge = EdgeBatcher("m", SETTINGS, Permit(1, 1), disorder_s=0.0, priority=3)
    reader = RowReader(SETTINGS.event_schema, devices, FORMAT)
    return MqttInput(source, SETTINGS.event_schema, edge, reader, intake, SystemClock(), guard=guard)


def events_in(messages: list[bytes]) -> int:
    headers = [unpack_header(message) for message in messages]
    return sum(header.n for header in headers if isinstance(header, BatchHeader))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def broker(port: int) -> AsyncIterator[None]:
    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    running = Broker(config)
    await running.start()
    try:
        yield
    finally:
        await running.shutdown()


async def test_events_of_a_real_broker_arrive_also_after_it_was_away() -> None:
    port = free_port()
    intake = make_intake()
    source = mqtt_input(intake, port)
    taken: list[bytes] = []

    def arrived(events: int) -> bool:
        taken.extend(intake.get_nowait())
        return events_in(taken) >= events

    async def publish(messages: list[tuple[str, bytes]]) -> None:
        async with aiomqtt.Client("127.0.0.1", port) as client:
            for topic, payload in messages:
                await client.publish(topic, payload, qos=1)

    async with broker(port):
        task = asyncio.create_task(source.run())
        await until(lambda: source.connections == 1)
        good = [("farm/pump-0/flow", str(number).encode()) for number in range(20)]
        hostile = [("farm/pump-0/flow", b"x" * 1_000_000), ("farm/nobody/flow", b"1"), ("farm/pump-0/flow", b"?")]
        await until_subscribed(publish, arrived)
        before = events_in(taken)
        await publish([*good[:10], *hostile, *good[10:]])
        await until(lambda: arrived(before + 20))
        assert intake.quarantine.counts == {"too_large": 1, "unknown_device": 1, "unreadable": 1}
    await until(lambda: intake.quarantine.counts.get("broker_lost", 0) > 0)
    async with broker(port):
        await until(lambda: source.connections == 2)
        before = events_in(taken)
        await until_subscribed(publish, lambda events: arrived(before + events))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until_subscribed(
    publish: Callable[[list[tuple[str, bytes]]], Awaitable[None]], arrived: Callable[[int], bool]
) -> None:
    """A connection is there before its subscription; sends until something comes through."""
    async with asyncio.timeout(PATIENCE_S):
        while not arrived(1):
            await publish([("farm/pump-0/flow", b"1")])
            await asyncio.sleep(0.1)


async def test_batches_over_a_socket_arrive_and_a_broken_stream_harms_only_itself() -> None:
    intake = make_intake(bytes_max=8 << 20)
    listener = TcpInput(intake, key_sha256=key_digest(KEY), connections_max=2)
    task = asyncio.create_task(listener.run())
    host, port = await asyncio.wait_for(listener.address, PATIENCE_S)
    _, good = await asyncio.open_connection(host, port)
    messages = [batch_of(seq, [(0.1 * seq, 0, 0, 1.0)]) for seq in range(1, 6)]
    good.write(key_frame(KEY) + b"".join(frame(message) for message in messages[:2]) + frame(b"x" * 64))
    for junk in (b"\xff" * 64, b"\x00" * 64, frame(messages[0])[:50]):
        _, bad = await asyncio.open_connection(host, port)
        bad.write(key_frame(KEY) + junk)
        bad.write_eof()
        expected = intake.quarantine.counts.get("bad_frame", 0) + 1
        await until(lambda wanted=expected: intake.quarantine.counts.get("bad_frame", 0) == wanted)
        bad.close()
    good.write(b"".join(frame(message) for message in messages[2:]))
    taken: list[bytes] = []

    def all_there() -> bool:
        taken.extend(intake.get_nowait())
        return len(taken) == 6

    await until(all_there)
    stage = stage_of()
    for message in taken:
        take(stage, message)
    assert (stage.counters.events_accepted, stage.counters.batches_damaged) == (5, 1)
    _, second = await asyncio.open_connection(host, port)
    await until(lambda: listener.connections == 2)
    await asyncio.open_connection(host, port)
    await until(lambda: intake.quarantine.counts.get("too_many_connections", 0) == 1)
    for writer in (good, second):
        writer.close()
    await until(lambda: listener.connections == 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_socket_reads_nothing_before_the_key_and_says_why_it_ends() -> None:
    intake = make_intake()
    listener = TcpInput(intake, key_sha256=key_digest(KEY))
    task = asyncio.create_task(listener.run())
    host, port = await asyncio.wait_for(listener.address, PATIENCE_S)
    batch = frame(batch_of(1, [(0.1, 0, 0, 1.0)]))
    beginnings = (batch, key_frame("another key") + batch, key_frame("") + batch, frame(KEY.encode()) + batch)
    for number, beginning in enumerate(beginnings, 1):
        reader, stranger = await asyncio.open_connection(host, port)
        stranger.write(beginning)
        assert b'"code":"E0102"' in await asyncio.wait_for(reader.read(), PATIENCE_S)
        stranger.close()
        assert intake.quarantine.counts == {"unauthorised": number}
    assert not intake.get_nowait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_full_intake_makes_the_sender_of_a_socket_wait() -> None:
    message = batch_of(1, [(0.1, 0, 0, 1.0)] * 1000)
    intake = make_intake(bytes_max=3 * len(message))
    listener = TcpInput(intake, key_sha256=key_digest(KEY))
    task = asyncio.create_task(listener.run())
    host, port = await asyncio.wait_for(listener.address, PATIENCE_S)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(key_frame(KEY) + frame(message) * 50)
    await until(lambda: not intake.has_room(len(message)))
    taken = 0
    async with asyncio.timeout(PATIENCE_S):
        while taken < 50:
            assert intake.bytes <= 3 * len(message)
            taken += len(await intake.get())
    writer.close()
    await until(lambda: listener.connections == 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert intake.refused == 0


async def test_a_broker_that_stands_elsewhere_than_was_proved_is_not_connected_to() -> None:
    """It listens where `localhost` really is, and would hear of it if the guard were not asked."""
    heard: list[object] = []
    said: list[str] = []
    server = await asyncio.start_server(lambda reader, writer: heard.append(writer), "127.0.0.1", 0)
    proved = EgressRule("MA", Places((DeclaredPlace(id="souss", country="MA", networks=("10.1.0.0/16",)),)))
    intake = make_intake()
    source = mqtt_input(intake, server.sockets[0].getsockname()[1], EgressGuard(proved.refusal, on_refused=said.append))
    running = asyncio.create_task(source.run())
    await until(lambda: intake.quarantine.counts.get("broker_lost", 0) > 0)  # counted, and tried again later
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    assert not heard
    assert "this machine" in said[0]
