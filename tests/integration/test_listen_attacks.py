"""What do those get who connect without a key and mean ill? Little, for a short time, while others are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from harch.api.app import create_app
from harch.base.http.server import bind, serve_api
from harch.base.listen.accept import listen_for_streams
from harch.base.listen.gate import ConnectionGate, ListenLimits
from harch.base.listen.http_server import http_server
from integration.conftest import RunningHub
from integration.links_world import Hub, federation, running
from unit.api.fake_hub import FakeHub

HOST = "127.0.0.1"
HUGE = 64 * 1024 * 1024
KERNEL_BYTES_MAX = 16 * 1024 * 1024  # what the buffers of the two sockets may hold; not what anybody has read
WITHIN_S = 30.0
ENOUGH = 100_000  # descriptors

Story = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Hubs run on uvloop, some workers on asyncio's own loop."""

    def run(story: Story) -> None:
        async def limited() -> None:
            async with asyncio.timeout(WITHIN_S):
                await story()

        request.param(limited())

    return run


@dataclass
class Served:
    """An application that counts what it gets, behind a gate."""

    port: int
    gate: ConnectionGate
    bodies: list[int] = field(default_factory=list)

    async def ask(self) -> int:
        """Another client, which behaves."""
        async with httpx.AsyncClient(timeout=WITHIN_S, trust_env=False) as client:
            return (await client.get(f"http://{HOST}:{self.port}/")).status_code

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)


@contextlib.asynccontextmanager
async def serving(**chosen: Any) -> AsyncIterator[Served]:
    gate = ConnectionGate("test", ListenLimits(**chosen), descriptors=ENOUGH)
    listener = bind(HOST, 0)
    served = Served(listener.getsockname()[1], gate)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        served.bodies.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    try:
        async with http_server(app, listener, gate, graceful_stop_s=1):
            yield served
    finally:
        listener.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Reads until the other end closes: the status of what was said, 0 if nothing was."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            data += piece
    if not data:
        return 0, {}
    return int(data.split(b" ", 2)[1]), json.loads(data.partition(b"\r\n\r\n")[2] or b"{}")


async def pour(writer: asyncio.StreamWriter, piece: bytes, total: int) -> int:
    """Sends until it is done or refused; answers how many bytes left this process."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < total:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
    return sent


def sent_until_refused(port: int, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """How many of 64 MB a blocking client gets rid of, and what it hears."""
    sent, heard = 0, b""
    with socket.create_connection((HOST, port), timeout=WITHIN_S) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(start)
            while sent < HUGE:
                client.sendall(piece)
                sent += len(piece)
        with contextlib.suppress(ConnectionError):
            heard = client.recv(65536)
    return sent, heard


ENDLESS_HEADS = {
    "one value": (b"GET / HTTP/1.1\r\nX-Long: ", b"a" * 65536),
    "one path": (b"GET /", b"a" * 65536),
    "many headers": (b"GET / HTTP/1.1\r\n", b"X-More: 1\r\n" * 5000),
    "blank lines": (b"\r\n", b"\r\n" * 32768),
    "trailers": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Long: ", b"a" * 65536),
    "chunk extensions": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;long=", b"a" * 65536),
}


@pytest.mark.parametrize("name", ENDLESS_HEADS)
def test_64_mb_of_header_are_not_read(running_hub: RunningHub, name: str) -> None:
    sent, heard = sent_until_refused(running_hub.port, *ENDLESS_HEADS[name])
    assert sent < KERNEL_BYTES_MAX
    assert heard == b"" or heard.split(b" ", 2)[1] in {b"431", b"405"}  # 405: answered before the trailers
    assert httpx.get(f"{running_hub.url}/v1/health", trust_env=False).status_code == 200


@pytest.mark.parametrize("name", ENDLESS_HEADS)
def test_a_head_without_end_is_refused_at_its_limit(play: Callable[[Story], None], name: str) -> None:
    start, piece = ENDLESS_HEADS[name]

    async def story() -> None:
        async with serving(head_bytes_max=4096, header_count_max=50) as served:
            reader, writer = await served.connect()
            writer.write(start)
            await pour(writer, piece, HUGE)
            status, error = await answer_of(reader)
            assert (status, error.get("code")) in {(431, "E0209"), (0, None)}
            assert served.gate.refused.total() == 1
            assert set(served.gate.refused) <= {"head_large", "headers_many"}
            assert await served.ask() == 200

    play(story)


def test_a_head_below_the_limit_is_served_however_it_is_cut(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(head_bytes_max=4096) as served:
            reader, writer = await served.connect()
            request = b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 3500 + b"\r\nConnection: close\r\n\r\n"
            for start in range(0, len(request), 100):
                writer.write(request[start : start + 100])
                await writer.drain()
            assert (await answer_of(reader))[0] == 200
            assert served.gate.refused == {}

    play(story)


def test_the_error_is_the_one_of_the_api(running_hub: RunningHub) -> None:
    with socket.create_connection((HOST, running_hub.port), timeout=WITHIN_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"X-More: 1\r\n" * 500 + b"\r\n")
        heard = client.recv(65536)
    assert heard.startswith(b"HTTP/1.1 431 ")
    body = json.loads(heard.partition(b"\r\n\r\n")[2])
    assert (body["code"], body["success"]) == ("E0209", False)
    assert body["request_id"]


def test_half_sent_requests_are_ended_while_others_are_served(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(head_s_max=0.2) as served:
            halves = [await served.connect() for _ in range(50)]
            for _, writer in halves[:40]:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            assert await served.ask() == 200
            statuses = [(await answer_of(reader))[0] for reader, _ in halves]
            assert statuses == [408] * 40 + [0] * 10  # who has not said a word hears none
            assert served.gate.refused == {"head_slow": 40, "silent": 10}
            await until(lambda: served.gate.open == 0)

    play(story)


def test_a_body_that_trickles_is_ended(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(body_s_grace=0.2, body_bytes_per_s_min=1_000_000) as served:
            reader, writer = await served.connect()
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nslow")
            assert (await answer_of(reader))[0] in {408, 0}
            assert served.gate.refused == {"body_slow": 1}
            assert served.bodies == []
            assert await served.ask() == 200

    play(story)


def test_a_client_that_is_slow_within_the_limits_is_served(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(head_s_max=20, body_s_grace=20) as served:
            reader, writer = await served.connect()
            for piece in (
                b"POST / HT",
                b"TP/1.1\r\nContent-Le",
                b"ngth: 3\r\nConnection: close\r\n\r",
                b"\n",
                b"a",
                b"bc",
            ):
                writer.write(piece)
                await writer.drain()
                assert await served.ask() == 200
            assert (await answer_of(reader))[0] == 200
            assert 3 in served.bodies
            assert served.gate.refused == {}

    play(story)


def test_an_idle_connection_is_closed_without_a_word(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(idle_s_max=0.1) as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await answer_of(reader))[0] == 200

    play(story)


def test_half_sent_requests_give_way_when_there_is_no_room(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(connections_max=20, connections_per_address_max=10) as served:
            halves = []
            for _ in range(50):
                reader, writer = await served.connect()
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
                halves.append((reader, writer))
            assert await served.ask() == 200
            assert served.gate.open <= 10
            assert served.gate.refused["evicted"] >= 41
            assert (await answer_of(halves[0][0]))[0] in {503, 0}

    play(story)


def test_those_who_are_served_stay_and_the_next_one_hears_why_not(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        inside, leave = asyncio.Semaphore(0), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            inside.release()
            await leave.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        gate = ConnectionGate(
            "test", ListenLimits(connections_max=8, connections_per_address_max=3), descriptors=ENOUGH
        )
        listener = bind(HOST, 0)
        port = listener.getsockname()[1]
        async with http_server(app, listener, gate, graceful_stop_s=1):
            first = [await asyncio.open_connection(HOST, port) for _ in range(3)]
            for _, writer in first:
                writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
                await inside.acquire()
            reader, _ = await asyncio.open_connection(HOST, port)
            status, error = await answer_of(reader)
            assert (status, error["code"]) == (503, "E0404")
            leave.set()
            assert [(await answer_of(reader))[0] for reader, _ in first] == [200] * 3
            await until(lambda: gate.open == 0)
            assert gate.refused == {"address": 1}

    play(story)


def test_requests_sent_ahead_are_limited(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving(pipelined_max=4) as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 1000)
            await answer_of(reader)
            assert served.gate.refused == {"pipelined": 1}
            assert await served.ask() == 200

    play(story)


def test_a_few_requests_sent_ahead_are_all_answered(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 5 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            data = await reader.read()
            assert data.count(b"HTTP/1.1 200 OK") == 6

    play(story)


def test_a_wish_for_another_protocol_is_not_heard(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n")
            assert (await answer_of(reader))[0] == 200

    play(story)


def test_a_process_without_descriptors_takes_connections_again_later(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async with serving() as served:
            clients = [socket.socket() for _ in range(3)]
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            probe = socket.socket()
            lowest = probe.fileno()
            probe.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                for client in clients:
                    client.setblocking(False)
                    client.connect_ex((HOST, served.port))
                await until(lambda: served.gate.refused["descriptors"] > 0)
                tried = served.gate.refused["descriptors"]
                for _ in range(200):
                    await asyncio.sleep(0)
                assert served.gate.refused["descriptors"] <= tried + 1  # it does not try in a circle
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: served.gate.open == 3)
            for client in clients:
                client.close()
            assert await served.ask() == 200

    play(story)


def test_the_api_counts_connections_of_agents_too() -> None:
    """A WebSocket keeps the place of the connection that it was."""
    import websockets

    from harch.hub.views import Role
    from unit.api.fake_hub import KEYS

    async def story() -> None:
        gate, port = ConnectionGate("api", descriptors=ENOUGH), asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            serve_api(create_app(FakeHub()), HOST, 0, gate=gate, listening=lambda at: port.set_result(at))
        )
        uri = f"ws://{HOST}:{await port}/v1/agents/connect"
        async with websockets.connect(uri, additional_headers={"x-api-key": KEYS[Role.AGENT]}) as agent:
            await agent.send(b"hello")
            assert await agent.recv() == b"echo hello"
            assert (gate.open, len(gate.pending)) == (1, 0)
        await until(lambda: gate.open == 0)
        task.cancel()
        await asyncio.wait({task})

    uvloop.run(story())


# Other listeners


def test_peers_come_in_while_strangers_hold_unfinished_handshakes(
    tmp_path: Path, play: Callable[[Story], None]
) -> None:
    ours = federation(tmp_path, "dakar", "tangier")

    async def story() -> None:
        limits = ListenLimits(connections_max=12, connections_per_address_max=8)
        gate = ConnectionGate("peers", limits, descriptors=ENOUGH)
        dakar = Hub(ours["dakar"], ours["tangier"], gate=gate)
        async with running(dakar):
            strangers = [await asyncio.open_connection(HOST, dakar.mesh.port) for _ in range(40)]
            await until(lambda: gate.open == 8)
            tangier = Hub(ours["tangier"], ours["dakar"])
            async with running(tangier):
                await tangier.until_up("dakar")
                assert gate.open <= 8
                for _, writer in strangers:
                    writer.close()

    play(story)


def test_an_unfinished_handshake_ends_in_time(tmp_path: Path, play: Callable[[Story], None]) -> None:
    ours = federation(tmp_path, "dakar", "tangier")

    async def story() -> None:
        gate = ConnectionGate("peers", ListenLimits(handshake_s_max=0.2), descriptors=ENOUGH)
        dakar = Hub(ours["dakar"], gate=gate)
        async with running(dakar):
            reader, writer = await asyncio.open_connection(HOST, dakar.mesh.port)
            writer.write(b"\x16\x03\x01")  # the start of a greeting
            assert await reader.read() == b""
            await until(lambda: gate.open == 0)
            assert gate.refused == {"handshake": 1}

    play(story)


def test_a_listener_for_streams_gives_places_back(play: Callable[[Story], None]) -> None:
    async def story() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        gate = ConnectionGate("streams", ListenLimits(connections_max=4), descriptors=ENOUGH)
        listener = listen_for_streams(bind(HOST, 0), gate, echo)
        for _ in range(10):
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(b"hello\n")
            assert await reader.read() == b"hello\n"
            writer.close()
        await until(lambda: gate.open == 0)
        listener.close()

    play(story)


async def until(holds: Callable[[], object]) -> None:
    """The story has a limit of its own."""
    while not holds():
        await asyncio.sleep(0.01)
