"""How does the API listen? uvicorn around the application, bound before it starts, stopped without losing answers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Generator
from typing import Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from harch.api.streams import Streams
from harch.base.errors import HarchError
from harch.execution.protocol import FRAME_BYTES_MAX

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than the pools of the usual clients, so that they close first and never meet a closed socket
GRACEFUL_STOP_S = 5


class Served(Protocol):
    """An ASGI application whose open streams can be ended."""

    streams: Streams

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


async def serve_api(app: Served, host: str, port: int, *, listening: Callable[[int], None] | None = None) -> None:
    """Serves until cancelled; then open streams end, running requests finish, and the port is free again.

    `listening` is called with the port once connections are taken.
    """
    listener = bind(host, port)
    config = uvicorn.Config(
        app,
        loop="none",  # the caller runs the loop; `harch hub serve` runs uvloop
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES_MAX,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_STOP_S,
    )
    server = _Server(config, lambda: listening(listener.getsockname()[1]) if listening else None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        app.streams.close()
        server.should_exit = True
        await serving
        raise
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the process, which cancels `serve_api`."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
