"""Direct routes: which requests skip ASGI, and that limits, order, stops and lost clients are as with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from uvicorn.server import ServerState

from harch.base.listen.direct_route import DirectResponse, DirectRoute, Headers
from harch.base.listen.gate import ConnectionGate, ListenLimits
from harch.base.listen.http_server import HttpGuard, plain_error
from unit.base.http_connection import HttpConnection, settle

BODY_BYTES_MAX = 1000
PLAIN = b"POST /hot HTTP/1.1\r\nHost: hub\r\nContent-Length: 4\r\n\r\nwork"


class Listener:
    """One listener with a direct route for `POST /hot`, which ASGI serves, too; both say what they were given."""

    def __init__(self, limits: ListenLimits | None = None) -> None:
        self.gate = ConnectionGate("test", limits, descriptors=1000)
        self.direct, self.by_asgi = 0, 0
        self.hold: asyncio.Event | None = None  # handlers wait for it
        self.failure: Exception | None = None
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"today")]
        self.guard = HttpGuard(
            self.gate, plain_error, {b"/hot": DirectRoute(b"POST", BODY_BYTES_MAX, self.handle_directly)}
        )

    async def handle_directly(self, headers: Headers, body: bytes) -> DirectResponse:
        self.direct += 1
        assert isinstance(headers, dict)
        return DirectResponse(200, b"x-own: yes\r\n", await self._answer(body, dict(headers)))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.by_asgi += 1
        answer = await self._answer(body, dict(scope["headers"]))
        headers = [(b"x-own", b"yes"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, body: bytes, headers: dict[bytes, bytes]) -> bytes:
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return b"%d bytes with %b" % (len(body), b",".join(sorted(headers)))

    def connect(self) -> HttpConnection:
        return HttpConnection(self.app, self.guard, self.state)


@pytest.fixture
async def listener() -> Listener:
    return Listener()


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The messages of errors, also of tasks that ended with one."""
    with caplog.at_level(logging.ERROR):
        yield lambda: [record.getMessage() for record in caplog.records]


async def test_a_plain_request_needs_no_asgi_and_one_write(listener: Listener) -> None:
    connection = listener.connect()
    answer = await connection.send(PLAIN)
    assert answer == (
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx-own: yes\r\ncontent-length: 32\r\n\r\n4 bytes with content-length,host"
    )
    assert (listener.direct, listener.by_asgi, connection.transport.writes) == (1, 0, 1)
    assert not connection.transport.is_closing()


async def test_a_connection_serves_many_and_each_has_the_date_of_its_second(listener: Listener) -> None:
    connection = listener.connect()
    first = [await connection.send(PLAIN) for _ in range(3)]
    listener.state.default_headers = [(b"date", b"tomorrow")]
    last = await connection.send(PLAIN)
    assert listener.direct == 4
    assert len(set(first)) == 1
    assert last == first[0].replace(b"today", b"tomorrow")
    assert listener.state.total_requests == 4


ORDINARY = {
    "another method": PLAIN.replace(b"POST", b"PUT"),
    "another path": PLAIN.replace(b"/hot", b"/cold"),
    "a query": PLAIN.replace(b"/hot", b"/hot?fast=1"),
    "HTTP/1.0": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host", b"Connection: keep-alive\r\nHost"),
    "the last of its connection": PLAIN.replace(b"Host", b"Connection: close\r\nHost"),
    "a header twice": PLAIN.replace(b"Host", b"X-One: a\r\nx-one: b\r\nHost"),
    "a wait for permission": PLAIN.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "chunks": b"POST /hot HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwork\r\n0\r\n\r\n",
    "another protocol": PLAIN.replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost"),
    "a large body": PLAIN.replace(b": 4", b": 1001").replace(b"work", b"w" * 1001),
}


@pytest.mark.parametrize("name", ORDINARY)
async def test_whatever_is_not_plain_goes_through_asgi(listener: Listener, name: str) -> None:
    answer = await listener.connect().send(ORDINARY[name])
    assert (listener.direct, listener.by_asgi) == (0, 1)
    size = 1001 if name == "a large body" else 0 if name == "another protocol" else 4
    assert b"\r\n\r\n%d bytes with " % size in answer


async def test_a_body_of_the_largest_size_is_still_plain(listener: Listener) -> None:
    await listener.connect().send(PLAIN.replace(b": 4", b": 1000").replace(b"work", b"w" * 1000))
    assert (listener.direct, listener.by_asgi) == (1, 0)


@pytest.mark.parametrize("cut", range(1, len(PLAIN)))
async def test_a_request_is_read_alike_wherever_it_is_cut(listener: Listener, cut: int) -> None:
    expected = await listener.connect().send(PLAIN)
    answer = await listener.connect().send(PLAIN[:cut], PLAIN[cut:])
    assert answer == expected
    body_comes_later = cut >= PLAIN.index(b"\r\n\r\n") + 4
    assert (listener.direct, listener.by_asgi) == ((1, 1) if body_comes_later else (2, 0))


async def test_requests_sent_ahead_are_answered_in_order(listener: Listener) -> None:
    one, two, three = (PLAIN.replace(b": 4", b": %d" % n).replace(b"work", b"w" * n) for n in (1, 2, 3))
    answer = await listener.connect().send(one + two + three)
    found = [answer.index(b"\r\n\r\n%d bytes" % n) for n in (1, 2, 3)]
    assert found == sorted(found)
    assert (listener.direct, listener.by_asgi) == (1, 2)


async def test_a_direct_request_waits_for_the_one_before_it(listener: Listener) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(b"GET /cold HTTP/1.1\r\n\r\n", PLAIN)
    assert (listener.direct, connection.transport.written) == (0, b"")
    listener.hold.set()
    await settle()
    assert connection.transport.written.count(b"HTTP/1.1 200 OK") == 2
    assert connection.transport.written.index(b"0 bytes") < connection.transport.written.index(b"4 bytes")


async def test_requests_sent_ahead_of_a_direct_one_are_limited() -> None:
    listener = Listener(ListenLimits(pipelined_max=2))
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(PLAIN * 4)
    assert listener.gate.refused == {"pipelined": 1}
    assert connection.transport.is_closing()


async def test_a_body_that_does_not_come_is_ended() -> None:
    listener = Listener(ListenLimits(body_s_grace=5))
    connection = listener.connect()
    await connection.send(PLAIN[:-1])
    begun_s = asyncio.get_running_loop().time()
    listener.guard.sweep(begun_s + 4)
    assert not connection.transport.is_closing()
    listener.guard.sweep(begun_s + 6)
    assert connection.transport.is_closing()
    assert listener.gate.refused == {"body_slow": 1}


async def test_who_is_served_owes_nothing_until_the_answer(listener: Listener) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    assert len(listener.gate.pending) == 1
    await connection.send(PLAIN)
    assert (len(listener.gate.pending), listener.guard.owing) == (0, set())
    listener.hold.set()
    await settle()
    assert len(listener.gate.pending) == 1


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(listener: Listener) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(PLAIN)
    assert connection.protocol.timeout_keep_alive_task is None
    listener.hold.set()
    await settle()
    timer = connection.protocol.timeout_keep_alive_task
    assert timer is not None
    await connection.send(PLAIN)
    assert timer.cancelled()


async def test_headers_are_limited_in_number(listener: Listener) -> None:
    most = listener.gate.limits.header_count_max
    lines = [b"X-%d: 1\r\n" % number for number in range(most - 2)]  # two more are there
    served = await listener.connect().send(PLAIN.replace(b"Host", b"".join(lines) + b"Host"))
    assert served.startswith(b"HTTP/1.1 200")
    refused = await listener.connect().send(PLAIN.replace(b"Host", b"".join(lines) + b"More: 1\r\nHost"))
    assert refused.startswith(b"HTTP/1.1 431")
    assert listener.gate.refused == {"headers_many": 1}


async def test_a_stop_ends_the_connection_with_the_running_answer(listener: Listener) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(PLAIN)
    connection.protocol.shutdown()
    await settle()
    assert not connection.transport.is_closing()
    assert len(listener.state.tasks) == 1  # the server waits for it
    listener.hold.set()
    await settle()
    assert b"\r\nconnection: close\r\n" in connection.transport.written
    assert connection.transport.is_closing()
    assert listener.state.tasks == set()


async def test_a_stop_closes_a_connection_that_is_answered(listener: Listener) -> None:
    connection = listener.connect()
    await connection.send(PLAIN)
    connection.protocol.shutdown()
    assert connection.transport.is_closing()


@pytest.mark.parametrize("path", [b"/hot", b"/cold"])
async def test_a_handler_that_fails_or_is_cancelled_costs_its_connection_only(
    listener: Listener, errors: Callable[[], list[str]], path: bytes
) -> None:
    request = PLAIN.replace(b"/hot", path)
    listener.failure = RuntimeError("a fault")
    failed, held = listener.connect(), listener.connect()
    await failed.send(request)
    listener.hold = asyncio.Event()
    await held.send(request)
    for task in listener.state.tasks:
        task.cancel()
    await settle()
    for connection in (failed, held):
        assert connection.transport.is_closing()
        assert connection.transport.written == (
            b"HTTP/1.1 500 Internal Server Error\r\ndate: today\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: 21\r\nconnection: close\r\n\r\nInternal Server Error"
        )
    assert len(errors()) == 2


async def test_who_leaves_before_the_answer_is_served_to_the_end(
    listener: Listener, errors: Callable[[], list[str]]
) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(PLAIN)
    (task,) = listener.state.tasks
    await connection.lose()
    listener.hold.set()
    await settle()
    assert task.done()
    assert task.exception() is None
    assert (connection.transport.written, errors()) == (b"", [])
    assert listener.gate.open == 0


async def test_who_takes_no_answers_gets_no_more_of_them(listener: Listener) -> None:
    connection = listener.connect()
    connection.protocol.pause_writing()
    assert await connection.send(PLAIN) == b""
    assert listener.direct == 1
    connection.protocol.resume_writing()
    await settle()
    assert connection.transport.written.startswith(b"HTTP/1.1 200 OK")


async def test_what_comes_after_a_direct_request_is_refused_without_cutting_its_answer(listener: Listener) -> None:
    connection, listener.hold = listener.connect(), asyncio.Event()
    await connection.send(PLAIN + b"not HTTP\r\n\r\n")
    assert (connection.transport.written, connection.transport.is_closing()) == (b"", True)
    assert listener.gate.refused == {"malformed": 1}
    listener.hold.set()
    await settle()
    assert connection.transport.written == b""
