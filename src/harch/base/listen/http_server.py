"""How is an ASGI application served? By uvicorn, through the gate, on a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import msgspec
import uvicorn

from harch.base.errors import HarchError
from harch.base.listen.accept import Listener
from harch.base.listen.gate import ConnectionGate, Ticket
from harch.base.listen.http_protocol import ErrorBody, GuardedHttpProtocol, HttpGuard

BACKLOG = 2048
SWEEPS_PER_LIMIT = 4  # so soon after its limit a slow request is ended
SWEEP_S_MAX = 1.0


def plain_error(error: HarchError) -> bytes:
    """An error for clients that know no other shape."""
    return msgspec.json.encode({"code": error.code, "message": error.message, "hint": error.hint, **error.meta})


@contextlib.asynccontextmanager
async def http_server(
    app: Any,
    listener: socket.socket,
    gate: ConnectionGate,
    *,
    error_body: ErrorBody = plain_error,
    frame_bytes_max: int | None = None,
    graceful_stop_s: float,
    on_stop: Callable[[], None] = lambda: None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Takes connections while the block lasts, as the task that it yields. Then running requests finish.

    `frame_bytes_max`: of a WebSocket; None: there are none. `on_stop` is called before requests are waited for.
    """
    config = uvicorn.Config(
        app,
        loop="none",  # the caller runs the loop
        http=GuardedHttpProtocol,
        ws="none" if frame_bytes_max is None else "websockets-sansio",
        ws_max_size=frame_bytes_max or 0,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=gate.limits.idle_s_max,  # type: ignore[arg-type] # it is only given to a timer
        timeout_graceful_shutdown=max(1, round(graceful_stop_s)),
    )
    started = asyncio.Event()
    server = _Server(config, listener, HttpGuard(gate, error_body), started)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name=f"serves {gate.name}")
    try:
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        yield serving
    finally:
        on_stop()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """uvicorn behind our own listener, and without its signal handlers: signals belong to the process."""

    def __init__(self, config: uvicorn.Config, sock: socket.socket, guard: HttpGuard, started: asyncio.Event) -> None:
        super().__init__(config)
        self._sock, self._guard, self._started = sock, guard, started
        limits = guard.gate.limits
        self._sweep_s = min(SWEEP_S_MAX, min(limits.head_s_max, limits.body_s_grace) / SWEEPS_PER_LIMIT)
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listener = Listener(self._sock, self._guard.gate, self._connection, refusal=self._guard.full())
        self.servers = [listener]  # type: ignore[list-item] # `close` and `wait_closed` are all that is asked of it
        self._sweeping = asyncio.create_task(self._sweep(), name="sweeps slow requests")
        self.started = True
        self._started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._sweeping is not None:
            self._sweeping.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def _connection(self, ticket: Ticket) -> asyncio.BaseProtocol:
        return GuardedHttpProtocol(
            self.config, self.server_state, self.lifespan.state, guard=self._guard, ticket=ticket
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_s)
            self._guard.sweep(loop.time())
