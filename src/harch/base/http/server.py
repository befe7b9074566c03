"""How does the API listen? Bound before it starts, stopped without losing answers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Protocol

from starlette.types import Receive, Scope, Send

from harch.base.errors import HarchError
from harch.base.http.limits import FRAME_BYTES_MAX
from harch.base.http.streams import Streams
from harch.base.listen.direct_route import DirectRoutes
from harch.base.listen.gate import ConnectionGate
from harch.base.listen.http_server import BACKLOG, http_server

GRACEFUL_STOP_S = 5


class Served(Protocol):
    """An ASGI application whose open streams can be ended. `error_body` writes what is refused before it is called.

    `direct_routes` are those that it also serves without ASGI.
    """

    streams: Streams
    direct_routes: DirectRoutes

    def error_body(self, error: HarchError) -> bytes: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises E1004 if the port is taken, E0201 if the address is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise HarchError("E0201", f"cannot listen on {host}: {error.strerror}", hint="use e.g. 127.0.0.1") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening claims the port: two binds with SO_REUSEADDR both succeed, two listens do not.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HarchError(
                "E1004",
                f"port {port} on {host} is in use by another process",
                hint="stop that process (`ss -ltnp` names it), or move all ports with HARCH_PORT_BASE",
                meta={"port": port},
            ) from error
        raise HarchError(
            "E0201",
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="use e.g. 127.0.0.1 and a port from 1024 up",
        ) from error
    return listener


async def serve_api(
    app: Served,
    host: str,
    port: int,
    *,
    gate: ConnectionGate | None = None,
    listening: Callable[[int], None] | None = None,
) -> None:
    """Serves until cancelled; then open streams end, running requests finish, and the port is free again.

    `listening` is called with the port once connections are taken.
    """
    listener = bind(host, port)
    try:
        async with http_server(
            app,
            listener,
            gate or ConnectionGate("api"),
            error_body=app.error_body,
            direct=app.direct_routes,
            frame_bytes_max=FRAME_BYTES_MAX,
            graceful_stop_s=GRACEFUL_STOP_S,
            on_stop=app.streams.close,
        ) as serving:
            if listening is not None:
                listening(listener.getsockname()[1])
            await asyncio.shield(serving)
    finally:
        listener.close()
