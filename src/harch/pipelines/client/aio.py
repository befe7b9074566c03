"""How does an event loop talk to the engine?

The same protocol on asyncio, from a buffered transport without copies, for the parts that wait for many messages.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from harch.base.clock import Clock, SystemClock
from harch.pipelines.client import protocol
from harch.pipelines.client.connection import AWAITED_MAX, ClientSession
from harch.pipelines.client.errors import (
    AuthorizationFailed,
    ConnectionLost,
    NatsError,
    NoResponders,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    TooLarge,
)
from harch.pipelines.client.jetstream import NO_RESPONDERS, PublishAck, publish_headers, read_ack
from harch.pipelines.client.options import ClientOptions, TlsFiles, backoff_s, connect_line, parse_address
from harch.pipelines.client.protocol import Event, Info, Message, Parser, ServerPing, ServerPong, ServerRefusal

Part = bytes | memoryview
EventSink = Callable[[Event], None]


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Verifies the engine against the one authority that is named, and then the system's have no say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca:
        context.load_verify_locations(files.ca)
    else:
        context.load_default_certs()
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key or None)
    return context


class AioLink(asyncio.BufferedProtocol):
    """A connection on the loop. `lost` is done, with the reason, when it has ended for whatever cause."""

    def __init__(self, options: ClientOptions) -> None:
        loop = asyncio.get_running_loop()
        self.info = Info({})
        self.lost: asyncio.Future[str] = loop.create_future()
        self._parser = Parser(buffer_bytes=options.buffer_bytes, payload_bytes_max=options.payload_bytes_max)
        self._early: asyncio.Queue[Event] = asyncio.Queue(maxsize=64)
        self._sink: EventSink = self._early.put_nowait
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._parser.wrote(nbytes)
        try:
            for event in self._parser.complete():
                self._sink(event)
        except (ProtocolError, asyncio.QueueFull) as error:
            self._end(str(error) or "too much before the handshake")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error is not None else "the message engine closed the connection")

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def writable(self) -> None:
        await self._room.wait()

    def send(self, parts: tuple[Part, ...]) -> None:
        if self._transport is None or self.lost.done():
            raise ConnectionLost("not connected")
        self._transport.writelines(parts)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def start(self, sink: EventSink) -> None:
        """From now on events go to `sink`, beginning with those that came early."""
        while not self._early.empty():
            sink(self._early.get_nowait())
        self._sink = sink

    async def receive(self) -> Event:
        """The next event of the handshake."""
        waiter = asyncio.ensure_future(self._early.get())
        await asyncio.wait((waiter, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if waiter.done():
            return waiter.result()
        waiter.cancel()
        raise ConnectionLost(self.lost.result())

    async def upgrade(self, context: ssl.SSLContext, server_name: str) -> None:
        if self._transport is None:
            raise ConnectionLost("not connected")
        loop = asyncio.get_running_loop()
        upgraded = await loop.start_tls(self._transport, self, context, server_hostname=server_name)
        if upgraded is None:
            raise ConnectionLost("TLS: the connection ended")
        self._transport = upgraded

    def _end(self, reason: str) -> None:
        self._room.set()
        if not self.lost.done():
            self.lost.set_result(reason)


async def open_aio_link(url: str, options: ClientOptions, tls: ssl.SSLContext | None, sink: EventSink) -> AioLink:
    """Connects and identifies itself. Raises `ConnectionLost`, or `AuthorizationFailed` where trying again is vain."""
    address = parse_address(url)
    link = AioLink(options)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            raw = await loop.run_in_executor(None, _connected_socket, address.host, address.port, options)
            await loop.create_connection(lambda: link, sock=raw)
            info = await link.receive()
            if not isinstance(info, Info):
                raise ConnectionLost("the peer is not a message engine")
            if info.tls_required or address.tls:
                if tls is None or options.tls is None:
                    raise ConnectionLost("the engine requires TLS, but no trusted CA is set")
                await link.upgrade(tls, options.tls.server_name or address.host)
            link.info = info
            link.send((connect_line(options, info),))
            while not isinstance(event := await link.receive(), ServerPong):
                refuse(event)
    except TimeoutError:
        link.close()
        raise ConnectionLost(f"{address.host}:{address.port} did not finish the handshake") from None
    except OSError as error:
        link.close()
        raise ConnectionLost(f"{address.host}:{address.port}: {error}") from error
    except NatsError:
        link.close()
        raise
    link.start(sink)
    return link


def _connected_socket(host: str, port: int, options: ClientOptions) -> socket.socket:
    """Made by hand for its options; the name is resolved in a thread."""
    made = socket.create_connection((host, port), options.connect_timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, options.socket_buffer_bytes)
    made.setblocking(False)
    return made


def refuse(event: Event) -> None:
    """Raises if the engine said no during the handshake."""
    if isinstance(event, ServerRefusal):
        raise AuthorizationFailed(event.text) if event.is_authorization else ConnectionLost(event.text)


# How does an event loop talk to the engine? The same protocol on asyncio, for the parts that wait for many things.
#
# Handlers are called on the loop with views that are valid during the call. `publish` never queues without bound: while
# there is no connection it raises `ConnectionLost`, and `drain` waits while the socket is full.


Handler = Callable[[Message], None]
REFUSALS_KEPT_MAX = 100
_DOMAIN = re.compile(r"^\$JS\.[^.]+\.API\.")


class AioClient:
    """One connection with its reconnect loop. `await connect()` first, `await close()` last."""

    def __init__(self, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.options = options
        self.session = ClientSession(options.inbox_prefix)
        self.reconnects = 0
        self.refusals: deque[NatsError] = deque(maxlen=REFUSALS_KEPT_MAX)  # subjects that the engine refused us
        self._clock = clock or SystemClock()
        self._tls: ssl.SSLContext | None = tls_context(options.tls) if options.tls is not None else None
        self._link: AioLink | None = None
        self._handlers: dict[int, Handler] = {}
        self._answers: dict[str, tuple[str, asyncio.Future[Message]]] = {}  # by reply, with what was asked
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._payload_bytes_max = options.payload_bytes_max
        self._connection_task: asyncio.Task[None] | None = None
        self._chance = random.Random()  # noqa: S311 (spreads reconnects, protects nothing)

    async def __aenter__(self) -> AioClient:
        await self.connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Tries every server once, then keeps the connection until `close`. Raises what the last server said."""
        await self._open()
        self._connection_task = asyncio.create_task(self._keep(), name=f"nats-{self.options.name}")

    async def close(self) -> None:
        if self._connection_task is not None:
            self._connection_task.cancel()
            await asyncio.gather(self._connection_task, return_exceptions=True)
        if self._link is not None:
            self._link.close()
        self._fail_waiting("the connection was closed")

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.lost.done()

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made; empty without one."""
        return self._link.info.fields if self._link is not None else {}

    def publish(
        self, subject: str, payload: Part, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Writes without waiting; call `drain` now and then. The payload must not change until it is sent."""
        size = len(payload)
        if size > self._payload_bytes_max:
            raise TooLarge(f"{size} bytes; the engine takes {self._payload_bytes_max}")
        head = protocol.head_of(subject, size, reply, headers)
        self._send(head, payload, protocol.CRLF)

    async def drain(self) -> None:
        """Waits while the socket holds as much as it should."""
        if self._link is not None:
            await self._link.writable()

    def subscribe(self, subject: str, handler: Handler, queue: str = "") -> int:
        """`handler` is called for each message, on the loop. It must be short, keep no view and raise nothing: an
        error in it is a fault of the program and ends the connection."""
        sid, command = self.session.subscribe(subject, queue)
        self._handlers[sid] = handler
        if self.is_connected:
            self._send(command)
        return sid

    def unsubscribe(self, sid: int) -> None:
        self._handlers.pop(sid, None)
        command = self.session.unsubscribe(sid)
        if self.is_connected:
            self._send(command)

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Returns when the engine has processed all that was sent; messages go to their handlers meanwhile."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(protocol.PING)
        self._pongs.append(pong)
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise RequestTimeout("no PONG from the engine") from None

    async def request(
        self, subject: str, payload: Part, *, timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> Message:
        """One answer, on a reply subject of its own. Raises `NoResponders`, `RequestTimeout` or `ConnectionLost`."""
        if len(self._answers) >= AWAITED_MAX:
            raise NatsError(f"{AWAITED_MAX} requests are awaiting a reply")
        if command := self.session.open_inbox():
            self._handlers[self.session.inbox_sid] = self._answered
            self._send(command)
        reply = self.session.new_reply()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[reply] = (subject, answer)
        try:
            self.publish(subject, payload, reply=reply, headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await answer
        except TimeoutError:
            raise RequestTimeout(f"no reply to `{subject}`") from None
        finally:
            self._answers.pop(reply, None)
        if message.status == NO_RESPONDERS:
            raise NoResponders(f"no responders on `{subject}`")
        return message

    async def publish_stored(
        self,
        subject: str,
        payload: Part,
        *,
        msg_id: str = "",
        expected_last_subject_seq: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> PublishAck:
        """Publishes to a stream and waits for its acknowledgement; call it many times at once to pipeline."""
        own = publish_headers(msg_id=msg_id, expected_last_subject_seq=expected_last_subject_seq)
        headers = {**(headers or {}), **own}
        return read_ack(await self.request(subject, payload, timeout_s=timeout_s, headers=headers))

    async def _open(self) -> None:
        last: NatsError = ConnectionLost("no server")
        for url in self.options.servers:
            try:
                link = await open_aio_link(url, self.options, self._tls, self._event)
            except ConnectionLost as error:
                last = error
                continue
            link.send((self.session.resubscribe(),))
            self._payload_bytes_max = min(link.info.payload_bytes_max, self.options.payload_bytes_max)
            self._link = link
            return
        raise last

    async def _keep(self) -> None:
        """Connects again after each loss, with growing pauses, until attempts in a row run out."""
        failures = 0
        while failures < self.options.reconnect_attempts_max or failures == 0:
            link = self._link
            if link is not None:
                reason = await link.lost
                self._link = None
                link.close()
                self._fail_waiting(reason)
                if self.options.reconnect_attempts_max == 0:
                    return
            await self._clock.sleep(backoff_s(failures + 1, self.options, self._chance.random()))
            try:
                await self._open()
                self.reconnects += 1
                failures = 0
            except AuthorizationFailed as error:
                self.refusals.append(error)
                return
            except NatsError:  # gone, or something else answers at its address for now
                failures += 1

    def _event(self, event: Event) -> None:
        if isinstance(event, Message):
            handler = self._handlers.get(event.sid)
            if handler is not None:  # else unsubscribed while it was under way
                handler(event)
        elif isinstance(event, ServerPing):
            if self._link is not None:
                self._link.send((protocol.PONG,))
        elif isinstance(event, ServerPong):
            if self._pongs and not (pong := self._pongs.popleft()).done():
                pong.set_result(None)
        elif isinstance(event, Info):
            self._payload_bytes_max = min(event.payload_bytes_max, self.options.payload_bytes_max)
        elif isinstance(event, ServerRefusal) and event.is_permission:
            self._refused(PermissionDenied(event.text))

    def _refused(self, error: PermissionDenied) -> None:
        """A request to a refused subject fails at once, instead of after its timeout."""
        self.refusals.append(error)
        for subject, answer in self._answers.values():
            # The engine maps its own domain away before it checks, and then names what it checked.
            checked = _DOMAIN.sub("$JS.API.", subject)
            if (f'"{subject}"' in str(error) or f'"{checked}"' in str(error)) and not answer.done():
                answer.set_exception(error)

    def _answered(self, message: Message) -> None:
        _, answer = self._answers.get(message.subject, ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message.kept())

    def _send(self, *parts: Part) -> None:
        if self._link is None or self._link.lost.done():
            raise ConnectionLost("not connected")
        self._link.send(parts)

    def _fail_waiting(self, reason: str) -> None:
        answers = [answer for _, answer in self._answers.values()]
        waiting: list[asyncio.Future[Message] | asyncio.Future[None]] = [*answers, *self._pongs]
        self._pongs.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost(reason))
                future.exception()  # seen: its waiter may be gone already
