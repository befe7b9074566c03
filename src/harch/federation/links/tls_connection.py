"""What is one TLS connection between two hubs?

Sockets on which a cut is noticed in seconds, frames in both directions, the certificate at the other end; and one
question of a hub that has none yet.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, cast

from harch.base.errors import HarchError
from harch.base.listen.gate import Ticket
from harch.federation.identity.members import Address, HubName, parse_uri
from harch.federation.links.frames import BODY_BYTES_MAX, Control, FrameKind, FrameReader, encode_control, frame

BUFFERED_BYTES_MAX = 256 * 1024  # handed to the transport; what waits beyond that stays in the outbox
SHUTDOWN_WITHIN_S = 2.0


class LinkIdentity(Protocol):
    """What links need to know of a hub's identity. `identity.HubIdentity` is one."""

    @property
    def name(self) -> HubName: ...

    @property
    def generation(self) -> int:
        """Grows with each new certificate."""
        ...

    @property
    def features(self) -> tuple[str, ...]: ...

    def server_context(self) -> ssl.SSLContext: ...

    def client_context(self) -> ssl.SSLContext: ...

    def introduction(self) -> bytes: ...

    def refusal(self, hub_id: str, introduction: bytes) -> str: ...


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What the other end has proved to be. TLS has checked signature and dates; the dates run on while it is open."""

    name: HubName
    not_after: datetime


class ConnectionOwner(Protocol):
    """Who handles what a connection brings."""

    def opened(self, connection: Connection) -> None: ...

    def received(self, connection: Connection, kind: int, body: bytes) -> None: ...

    def writable(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, why: str) -> None: ...


class Connection(asyncio.Protocol):
    """After `close` or `abort` nothing more is received, and `closed` follows once."""

    def __init__(self, owner: ConnectionOwner, ticket: Ticket | None = None) -> None:
        self._owner = owner
        self._ticket = ticket  # of one that others have dialled
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self.is_closed = False
        self.can_write = False
        self.certificate: PeerCertificate | None = None
        self.shows_certificate = False
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def is_ending(self) -> bool:
        return bool(self._why)

    def accept_large_frames(self) -> None:
        """The peer is known from here on."""
        self._reader.body_bytes_max = BODY_BYTES_MAX
        if self._ticket is not None:
            self._ticket.served()

    def write(self, frames: bytes) -> None:
        if self._transport is not None and not self._why:
            self.bytes_sent += len(frames)
            self._transport.write(frames)

    def say(self, message: Control) -> None:
        self.write(frame(FrameKind.CONTROL, encode_control(message)))

    def close(self, why: str) -> None:
        """What was written still goes out."""
        self._end(why, at_once=False)

    def abort(self, why: str) -> None:
        """For a peer that misbehaves, or no longer reads."""
        self._end(why, at_once=True)

    def _end(self, why: str, *, at_once: bool) -> None:
        self._why = self._why or why
        self.can_write = False
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES_MAX)
        self.can_write = True
        if self._ticket is not None:
            self._ticket.evict = lambda: self.abort("evicted to make room")
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            presented = secured.getpeercert()
            self.shows_certificate = bool(presented)
            self.certificate = peer_certificate(presented) if presented else None
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        for kind, body in self._reader.feed(data):
            if self._why:
                return
            self._owner.received(self, kind, body)
        if self._reader.fault:
            self.abort(f"sent {self._reader.fault}")

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        if not self._why:
            self.can_write = True
            self._owner.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.can_write = False
        self._why = self._why or _words(exc)
        if self._ticket is not None:
            self._ticket.release()
        self._owner.closed(self, self._why)


def peer_certificate(presented: dict[str, object]) -> PeerCertificate | None:
    """None unless the certificate names exactly one hub and nothing else."""
    names = cast(tuple[tuple[str, str], ...], presented.get("subjectAltName", ()))
    name = parse_uri(names[0][1]) if len(names) == 1 and names[0][0] == "URI" else None
    if name is None:
        return None
    ends_s = ssl.cert_time_to_seconds(str(presented["notAfter"]))
    return PeerCertificate(name, datetime.fromtimestamp(ends_s, UTC))


def _words(error: Exception | None) -> str:
    if error is None:
        return "the peer closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".lower().replace("_", " ").replace("tls:", "TLS:")
    return str(error) or type(error).__name__


# How do the sockets of links behave? A cut is noticed in seconds, and small messages leave at once.


USER_TIMEOUT_MS = 3_000  # data that nobody acknowledges for so long ends the connection
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_PROBES = 5, 1, 3
BACKLOG = 128


async def connect(address: Address) -> socket.socket:
    """Raises OSError if nobody listens there."""
    family, target = await _resolve(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _set_options(sock)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(address: Address) -> socket.socket:
    """A listening socket; what it accepts inherits its options. Port 0 takes any free one. Raises E1004."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_options(sock)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise HarchError(
            "E1004", f"cannot listen for peers on {address}: {error.strerror}", hint="HARCH_PORT_BASE moves all ports"
        ) from error
    return sock


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


async def _resolve(address: Address) -> tuple[int, tuple[object, ...]]:
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return found[0][0], found[0][4]
    return (socket.AF_INET6 if version == 6 else socket.AF_INET), (address.host, address.port)


# How does a hub without a certificate ask one question? A TLS connection, one frame each way, with a deadline.


ANSWERED_WITHIN_S = 15.0
ANSWER_BYTES_MAX = 1024 * 1024
_READ_BYTES = 64 * 1024


async def send_uncertified(
    address: Address, context: ssl.SSLContext, expected: HubName | None, question: bytes
) -> bytes:
    """The answer. Raises E0802 if nobody answers, E0110 before asking if it is another hub than `expected`."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname="", ssl_shutdown_timeout=1.0
            )
            try:
                _check(address, expected, writer.get_extra_info("peercert"))
                writer.write(frame(FrameKind.UNCERTIFIED, question))
                return await _answer(reader)
            finally:
                writer.close()
    except ssl.SSLError as error:
        raise HarchError(
            "E0110", f"{address} is not a hub of that federation: {error.reason or error}", hint="check the invitation"
        ) from error
    except (OSError, TimeoutError, EOFError) as error:
        raise HarchError(
            "E0802", f"no answer from {address}: {error}", hint="is the hub that holds the authority running?"
        ) from error


def _check(address: Address, expected: HubName | None, presented: dict[str, object] | None) -> None:
    certificate = peer_certificate(presented) if presented else None
    if expected is not None and (certificate is None or certificate.name != expected):
        raise HarchError("E0110", f"the hub at {address} is not {expected.hub_id}", hint="request a new invitation")


async def _answer(reader: asyncio.StreamReader) -> bytes:
    frames = FrameReader()
    frames.body_bytes_max = ANSWER_BYTES_MAX
    while not frames.fault and (data := await reader.read(_READ_BYTES)):
        for kind, body in frames.feed(data):
            if kind == FrameKind.UNCERTIFIED:
                return body
    raise EOFError(frames.fault or "it closed the connection")
