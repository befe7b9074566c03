"""How do the sockets of links behave? A cut is noticed in seconds, and small messages leave at once."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from harch.base.errors import HarchError
from harch.federation.identity.members import Address

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
