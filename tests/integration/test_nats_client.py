"""Does the client keep its promises against a real server: views, flush, requests, acks, TLS, loss, reconnect?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats_world import LIMITS, MIB, SENSE_MA, WANTED_MA, World, admin_of, identity, until, world

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import (
    AuthorizationFailed,
    ConnectionLost,
    NatsError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    TooLarge,
)
from harch.pipelines.client.options import ClientOptions, Credentials, TlsFiles
from harch.pipelines.engine.layout import EngineLayout
from harch.pipelines.engine.streams import plan_streams

HOT = "juris.ma.soil.sense.0"  # the sense worker listens here, the controller publishes


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as found:
        await found.start(EngineLayout(domains=(found.morocco(found.server("ma-1")),), limits=LIMITS))
        control, admin = await admin_of(found, "ma-1", "MA")
        await admin.apply(plan_streams(WANTED_MA, await admin.found()))
        await control.close()
        yield found


async def test_messages_of_any_size_arrive_whole_and_a_flush_swallows_none(made: World) -> None:
    sizes = [0, 1, 15, 4096, 70_000, 1_000_000, 8 * MIB]
    payloads = [os.urandom(size) for size in sizes]
    got: list[tuple[str, bytes]] = []
    async with (
        AioClient(made.options("ma-1", SENSE_MA.user_name)) as sense,
        AioClient(made.controller_options("ma-1", "MA")) as source,
    ):
        sense.subscribe("juris.ma.soil.sense.*", lambda message: got.append((message.subject, bytes(message.payload))))
        await sense.flush()
        for payload in payloads:
            source.publish(HOT, payload)
        await source.flush(20)
        await sense.flush(20)  # messages were on their way before the answer to this
        assert got == [(HOT, payload) for payload in payloads]
        with pytest.raises(TooLarge):
            source.publish(HOT, bytes(8 * MIB + 1))
        await source.flush()  # the connection is as good as before


async def test_a_request_gets_its_own_answer_while_messages_come(made: World) -> None:
    got: list[bytes] = []
    async with (
        AioClient(made.options("ma-1", SENSE_MA.user_name)) as sense,
        AioClient(made.controller_options("ma-1", "MA")) as source,
    ):
        sense.subscribe("juris.ma.soil.sense.*", lambda message: got.append(bytes(message.payload)))
        await sense.flush()
        for number in range(10):
            source.publish(HOT, b"%d" % number)
        await source.flush()
        acks = [await sense.publish_stored("juris.ma.soil.act.0", b"x", msg_id=f"m{n % 2}") for n in range(4)]
        assert [(ack.seq, ack.duplicate) for ack in acks] == [(1, False), (2, False), (1, True), (2, True)]
        assert got == [b"%d" % n for n in range(10)]
        first = await sense.publish_stored("$KV.ma-soil-sense.a", b"1", expected_last_subject_seq=0)
        with pytest.raises(NatsError):  # somebody was faster: compare-and-set says no
            await sense.publish_stored("$KV.ma-soil-sense.a", b"2", expected_last_subject_seq=0)
        await sense.publish_stored("$KV.ma-soil-sense.a", b"2", expected_last_subject_seq=first.seq)
        with pytest.raises(NoResponders):
            await source.request("juris.ma.nobody.act.0", b"")
        with pytest.raises(PermissionDenied):
            await sense.request("$JS.API.STREAM.NAMES", b"")
        with pytest.raises(RequestTimeout):
            await source.request(HOT, b"sense hears this and says nothing", timeout_s=0.1)


async def test_after_kill_9_of_the_server_subscriptions_live_again(made: World) -> None:
    source = AioClient(made.controller_options("ma-1", "MA"))
    await source.connect()
    heard: list[bytes] = []
    sense = AioClient(made.options("ma-1", SENSE_MA.user_name))
    await sense.connect()
    sense.subscribe("juris.ma.soil.sense.*", lambda message: heard.append(bytes(message.payload)))
    await sense.flush()
    try:
        pid = made.servers["ma-1"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: source.reconnects == 1, "the source connects again")

        async def arrives() -> bool:
            try:
                source.publish(HOT, b"after")
                await source.flush()
            except ConnectionLost:
                return False
            return b"after" in heard

        await until(arrives, "what is published after the restart is heard")
    finally:
        await sense.close()
        await source.close()


async def test_a_lost_connection_is_told_to_those_who_wait_and_publish(made: World) -> None:
    options = made.controller_options("ma-1", "MA")
    once = ClientOptions(
        servers=options.servers,
        credentials=options.credentials,
        inbox_prefix=options.inbox_prefix,
        reconnect_attempts_max=0,
    )
    client = AioClient(once)
    await client.connect()
    client.subscribe(HOT, lambda message: None)  # so that the request below waits for an answer
    waiting = asyncio.create_task(client.request(HOT, b"", timeout_s=30))
    await client.flush()
    await made.servers["ma-1"].stop()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        client.publish(HOT, b"x")
    await client.close()


async def test_a_hostile_server_is_left_at_once(tmp_path: Path) -> None:
    """Whoever listens there: nonsense, silence and a wrong greeting end in a typed error, never in a hang."""

    greetings = [b""]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greetings[-1])
        await writer.drain()
        await reader.read()
        writer.close()

    for greeting in (b"HTTP/1.1 400\r\n", b"", b"PING\r\n", b"INFO {\r\n", b"\0" * 100):
        greetings.append(greeting)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = ClientOptions(servers=(f"nats://127.0.0.1:{port}",), connect_timeout_s=0.3)
        with pytest.raises(NatsError):
            await AioClient(options).connect()
        server.close()


async def test_over_tls_both_sides_show_certificates_and_strangers_get_no_further(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        files, other = identity(tmp_path / "tls"), identity(tmp_path / "other")
        await made.start(EngineLayout(domains=(made.morocco(made.server("ma-1", tls=files)),), limits=LIMITS))
        tls = TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
        options = made.options("ma-1", SENSE_MA.user_name, tls=tls)
        large = os.urandom(3 * MIB)
        heard: list[bytes] = []
        async with AioClient(made.options("ma-1", SENSE_MA.user_name, tls=tls)) as sense:
            sense.subscribe("juris.ma.soil.sense.*", lambda message: heard.append(bytes(message.payload)))
            await sense.flush()
            control = made.options("ma-1", "harch", key="ma-harch", tls=tls)
            async with AioClient(control) as source:
                source.publish(HOT, b"small")
                source.publish(HOT, large)
                await source.flush(20)
            await until(lambda: heard == [b"small", large], "both arrive whole over TLS")
        for wrong in (
            TlsFiles(ca=other.ca, certificate=files.certificate, key=files.key),  # not the authority that we trust
            TlsFiles(ca=files.ca),  # the server wants to see a certificate
            TlsFiles(ca=files.ca, certificate=other.certificate, key=other.key),  # one of its authority
        ):
            changed = made.options("ma-1", SENSE_MA.user_name, tls=wrong)
            with pytest.raises(ConnectionLost):
                await AioClient(changed).connect()
        plain = ClientOptions(servers=(options.servers[0].replace("tls://", "nats://"),))
        with pytest.raises(ConnectionLost, match="TLS"):
            await AioClient(plain).connect()


async def test_user_and_password_work_where_an_external_cluster_uses_them(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        server = made.server("ma-1")
        users = '[{"user": "harch", "password": "a long word"}]'
        text = (
            f'{{"listen": "127.0.0.1:{server.client_port}", "http": "127.0.0.1:{server.monitor_port}",'
            f' "log_file": "{server.log_file}", "authorization": {{"users": {users}}}}}'
        )
        await made.start(EngineLayout(domains=(made.morocco(server),), limits=LIMITS), configs={"ma-1": text})

        def options(password: str) -> ClientOptions:
            return ClientOptions(
                servers=(made.servers["ma-1"].url,), credentials=Credentials(user="harch", password=password)
            )

        async with AioClient(options("a long word")) as client:
            await client.flush()
        with pytest.raises(AuthorizationFailed):
            await AioClient(options("a wrong word")).connect()
