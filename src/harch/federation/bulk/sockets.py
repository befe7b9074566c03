"""What are bulk connections made of? TLS 1.3 with certificates on both sides, large buffers, and the lowest priority.

Everything that the kernel offers to let others go first is used, and none of it is needed for a transfer to work.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from harch.base.errors import HarchError
from harch.federation.identity import hub_identity
from harch.federation.identity.folder import IdentityFolder
from harch.federation.identity.members import Address, HubName
from harch.federation.links.frames import LinkHello, refusal
from harch.federation.links.tls_connection import (
    KEEPALIVE_EVERY_S,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PROBES,
    PeerCertificate,
    peer_certificate,
)

CONNECT_WITHIN_S = 5.0
BACKLOG = 32
USER_TIMEOUT_MS = 5_000  # data that nobody acknowledges for so long ends the connection
SEND_BUFFER_BYTES = 8 * 1024 * 1024  # in flight, acknowledged by nobody yet: 1.4 Gbit/s over 45 ms
# Beyond what is in flight: enough to never run dry, little enough that a cut loses little.
UNSENT_BYTES_MAX = 1024 * 1024
# It keeps queues short and does not take loss for congestion: at 1 % loss over 45 ms it carries fifty times as much.
CONGESTION_CONTROL = b"bbr"
TRAFFIC_CLASS = 0x20  # CS1: routers that know it let everything else go first
PRIORITY_BULK = 2  # TC_PRIO_BULK: the last band of this machine's own queues
NICE = 5

LAST_WITHIN_S = 1.0
LAST_READ_BYTES, LAST_READS_MAX = 64 * 1024, 16

_SO_MAX_PACING_RATE = 47
_TCP_INFO_BYTES = 192
_RTT, _BYTES_ACKED = struct.Struct("I"), struct.Struct("Q")
_RTT_AT, _BYTES_ACKED_AT = 68, 120


class BulkIdentity(Protocol):
    """What bulk connections need to know of a hub's identity. `identity.HubIdentity` is one. Read by many threads."""

    authority: bytes
    folder: IdentityFolder

    @property
    def name(self) -> HubName: ...

    @property
    def generation(self) -> int:
        """Grows with each new certificate."""
        ...

    def refusal(self, hub_id: str, introduction: bytes) -> str: ...


class TlsContexts:
    """Contexts of the newest certificate. Those of the links are changed in place, which no thread may see."""

    def __init__(self, identity: BulkIdentity) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._server: tuple[int, ssl.SSLContext] | None = None
        self._client: tuple[int, ssl.SSLContext] | None = None

    def server(self) -> ssl.SSLContext:
        """Hubs that want to join have nothing to look for here: everybody shows a certificate."""
        with self._lock:
            generation = self._identity.generation
            if self._server is None or self._server[0] != generation:
                self._server = generation, self._made(is_server=True)
            return self._server[1]

    def client(self) -> ssl.SSLContext:
        with self._lock:
            generation = self._identity.generation
            if self._client is None or self._client[0] != generation:
                self._client = generation, self._made(is_server=False)
            return self._client[1]

    def _made(self, *, is_server: bool) -> ssl.SSLContext:
        authority, file = self._identity.authority, self._identity.folder.hub_file

        def make() -> ssl.SSLContext:
            if is_server:
                return hub_identity.server_context(authority, file, admits_unknown_peers=False)
            return hub_identity.client_context(authority, file)

        try:
            return make()
        except HarchError:  # the file was replaced between its certificate and its key
            return make()


def certificate_of(connection: ssl.SSLSocket) -> PeerCertificate | None:
    presented = connection.getpeercert()
    return peer_certificate(cast("dict[str, object]", presented)) if presented else None


def peer_refusal(
    hello: LinkHello, identity: BulkIdentity, certificate: PeerCertificate | None, expected: str | None
) -> tuple[str, str] | None:
    """(rule, reason), by the same checks as those of the links; None if the peer is who it says, and welcome."""
    certified = certificate.name if certificate else None
    refused = refusal(hello, own=identity.name, certified=certified, expected=expected)
    if refused is not None:
        return refused.rule, refused.reason
    # Introductions are not looked at: whom the links do not know yet has nothing to fetch.
    why = identity.refusal(hello.hub_id, b"")
    return ("member", why) if why else None


def listen(address: Address) -> socket.socket:
    """Port 0 takes any free one. Raises E1004."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise HarchError(
            "E1004",
            f"cannot listen for bulk transfers on {address}: {error.strerror}",
            hint="HARCH_PORT_BASE moves all ports",
        ) from error
    return sock


def new_socket(address: Address) -> socket.socket:
    """To connect to that address. Raises OSError for a name that is not known."""
    family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    return socket.socket(family, socket.SOCK_STREAM)


def set_options(sock: socket.socket) -> None:
    """For both ends: a cut is noticed in seconds. Many of the options are wishes."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    with contextlib.suppress(OSError):
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, TRAFFIC_CLASS)
        else:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TRAFFIC_CLASS)
    with contextlib.suppress(OSError):  # after the traffic class, which sets it too
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, PRIORITY_BULK)


def set_sending_options(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
    size = _send_buffer_bytes()
    if size:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


@cache
def _send_buffer_bytes() -> int:
    """What to set, if that is more than the kernel would give by itself: its limits for either differ. 0: nothing."""
    try:
        limit = int(Path("/proc/sys/net/core/wmem_max").read_text("ascii"))
        by_itself = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text("ascii").split()[2])
    except (OSError, ValueError, IndexError):
        return 0
    size = min(SEND_BUFFER_BYTES // 2, limit)  # the kernel doubles it
    return size if 2 * size > by_itself else 0


def set_pacing(sock: socket.socket, bytes_per_s: float) -> None:
    """The kernel sends no faster, and evenly. Infinity is no limit."""
    value = 0xFFFFFFFF_FFFFFFFF if bytes_per_s == float("inf") else max(1, int(bytes_per_s))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", value))


class TcpReading(NamedTuple):
    """What the kernel knows of a connection that sends."""

    rtt_ms: float
    bytes_acknowledged: int


def read_tcp(sock: socket.socket) -> TcpReading | None:
    """None if the kernel does not say."""
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(found) < _TCP_INFO_BYTES:
        return None
    (rtt_us,) = _RTT.unpack_from(found, _RTT_AT)
    (acknowledged,) = _BYTES_ACKED.unpack_from(found, _BYTES_ACKED_AT)
    return TcpReading(rtt_us / 1000, acknowledged)


def end(sock: socket.socket) -> None:
    """Wakes whatever thread waits for it; that thread closes it."""
    with contextlib.suppress(OSError):
        # Not the method of TLS sockets, which goes on without TLS: its thread would read what it cannot decrypt.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def send_last(sock: ssl.SSLSocket, record: bytes) -> None:
    """Says one more word and hangs up. What the other end has sent is taken, or a reset would swallow the word."""
    with contextlib.suppress(OSError):
        sock.settimeout(LAST_WITHIN_S)
        sock.sendall(record)
        socket.socket.shutdown(sock, socket.SHUT_WR)
        for _ in range(LAST_READS_MAX):
            if not socket.socket.recv(sock, LAST_READ_BYTES):  # still encrypted: nobody looks at it
                break


def lower_priority() -> None:
    """Of the calling thread: the event loop and the work of others come first."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
