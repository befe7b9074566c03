"""How are connections taken? By a loop of our own, which asks the gate before anything is made for a connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from harch.base.listen.gate import ConnectionGate, Ticket

ACCEPTS_PER_TURN = 32  # then others of the loop have their turn
PAUSE_S = 0.5  # without descriptors, trying again at once would only burn the processor
_READ_AHEAD_BYTES = 64 * 1024
_OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

MakeProtocol = Callable[[Ticket], asyncio.BaseProtocol]
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


class Listener:
    """Takes connections of one listening socket until `close`, which ends no connection.

    `make` makes the protocol of a connection; it calls `release` of its ticket once the connection is lost. With TLS it
    is made once the handshake is done. `refusal` is what those hear for whom there is no room.
    """

    def __init__(
        self,
        sock: socket.socket,
        gate: ConnectionGate,
        make: MakeProtocol,
        *,
        tls: ssl.SSLContext | None = None,
        tls_shutdown_s: float | None = None,
        refusal: bytes = b"",
    ) -> None:
        self._sock, self._gate, self._make = sock, gate, make
        self._tls, self._tls_shutdown_s, self._refusal = tls, tls_shutdown_s, refusal
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self.port = int(sock.getsockname()[1])
        sock.setblocking(False)
        # What is accepted inherits it: an answer that nobody takes does not hold its connection forever.
        stalled_ms = int(gate.limits.stalled_s_max * 1000)
        if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stalled_ms)
        self._loop.add_reader(sock.fileno(), self._take)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        if self._resume is not None:
            self._resume.cancel()
        for task in list(self._opening):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _take(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause()
                    return
                continue  # that one client is gone before it was taken
            self._open(connection, str(address[0]))

    def _pause(self) -> None:
        """Out of descriptors: a pending connection gives its own back, and the backlog waits for a moment."""
        self._gate.refuse("descriptors")
        self._gate.make_room()
        self._loop.remove_reader(self._sock.fileno())
        self._resume = self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        self._loop.add_reader(self._sock.fileno(), self._take)

    def _open(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        ticket = self._gate.admit(address, lambda: _hang_up(connection))
        if ticket is None:
            with contextlib.suppress(OSError):
                connection.send(self._refusal)
                # What was sent already is taken, so that the answer is not lost in a reset.
                connection.recv(_READ_AHEAD_BYTES)
            connection.close()
            return
        task = self._loop.create_task(self._connect(connection, ticket))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket, ticket: Ticket) -> None:
        secure = self._tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, self._make(ticket)),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._gate.limits.handshake_s_max if secure else None,
                ssl_shutdown_timeout=self._tls_shutdown_s if secure else None,
            )
        except (OSError, asyncio.CancelledError) as error:  # TLS errors and timeouts are OSErrors
            if secure and not isinstance(error, asyncio.CancelledError):
                self._gate.refuse("handshake", ticket.address)
            _hang_up(connection)
            connection.close()
            ticket.release()


def listen_for_streams(
    sock: socket.socket,
    gate: ConnectionGate,
    handle: Handle,
    *,
    tls: ssl.SSLContext | None = None,
    read_ahead_bytes: int = _READ_AHEAD_BYTES,
) -> Listener:
    """Like `asyncio.start_server`, through the gate. A handler ends its connections itself."""

    def make(ticket: Ticket) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=read_ahead_bytes)
        return _Streams(reader, handle, ticket)

    return Listener(sock, gate, make, tls=tls)


class _Streams(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, handle: Handle, ticket: Ticket) -> None:
        super().__init__(reader, handle)
        self._ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._ticket.served()  # from here on its handler has limits of its own
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticket.release()
        super().connection_lost(exc)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
