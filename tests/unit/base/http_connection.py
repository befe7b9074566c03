"""A connection of a listener of HTTP without a socket: bytes in, bytes out, no time passes."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from harch.base.listen.http_server import GuardedHttpProtocol, HttpGuard

TURNS = 20  # of the loop: more than any answer needs


class FakeTransport(asyncio.Transport):
    """Keeps what is written; like uvloop's it raises if somebody writes once it is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.writes = 0
        self.is_closed = self.is_lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in {"sockname", "peername"} else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_lost:
            raise RuntimeError("the handler is closed")
        if not self.is_closed:
            self.written += bytes(data)
            self.writes += 1

    def is_closing(self) -> bool:
        return self.is_closed or self.is_lost

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class HttpConnection:
    """A client of an ASGI application behind a guard."""

    def __init__(self, app: Any, guard: HttpGuard, state: ServerState) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,
        )
        ticket = guard.gate.admit("127.0.0.1", lambda: None)
        assert ticket is not None
        self.transport = FakeTransport()
        self.protocol = GuardedHttpProtocol(config, state, {}, guard=guard, ticket=ticket)
        self.protocol.connection_made(self.transport)

    async def send(self, *pieces: bytes) -> bytes:
        """What is answered to them; each comes in a turn of its own."""
        before = len(self.transport.written)
        for piece in pieces:
            self.protocol.data_received(piece)
            await settle()
        return self.transport.written[before:]

    async def lose(self) -> None:
        self.transport.is_lost = True
        self.protocol.connection_lost(None)
        await settle()


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
