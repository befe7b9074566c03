"""How do bytes get from asyncio into the parser without copies? A buffered protocol, and the handshake on it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from harch.pipelines.client.errors import ConnectionLost, NatsError, ProtocolError
from harch.pipelines.client.link import refuse
from harch.pipelines.client.options import ClientOptions, connect_line, parse_address
from harch.pipelines.client.protocol import Event, Info, Parser, Pong
from harch.pipelines.client.sockets import Part

EventSink = Callable[[Event], None]


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
                raise ConnectionLost("the other side does not begin as a message engine does")
            if info.tls_required or address.tls:
                if tls is None or options.tls is None:
                    raise ConnectionLost("the engine wants TLS, and no authority to trust is named")
                await link.upgrade(tls, options.tls.server_name or address.host)
            link.info = info
            link.send((connect_line(options, info),))
            while not isinstance(event := await link.receive(), Pong):
                refuse(event)
    except TimeoutError:
        link.close()
        raise ConnectionLost(f"{address.host}:{address.port} does not finish the handshake") from None
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
