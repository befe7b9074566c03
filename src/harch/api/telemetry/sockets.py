"""How does a WebSocket of SENTINEL run? Refused as HTTP before it is open, closed with a reason afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Send

from harch.api.telemetry.answer import failure
from harch.api.telemetry.request import TelemetryRequest
from harch.base.errors import HarchError

NORMAL, FAILED = 1000, 1011
_REASON_BYTES_MAX = 120  # a close frame has room for 123


class SocketGone(Exception):
    """The other side has left, takes nothing any more, or the server stops."""


class Socket:
    """One connection; nothing is sent before `accept`."""

    def __init__(self, receive: Receive, send: Send, stalled_s_max: float) -> None:
        self._receive = receive
        self._send = send
        self._stalled_s_max = stalled_s_max
        self.is_open = False

    async def accept(self) -> None:
        await self._send({"type": "websocket.accept"})
        self.is_open = True

    async def write(self, text: bytes) -> None:
        """Waits for a slow reader, but not for ever. Raises SocketGone."""
        try:
            async with asyncio.timeout(self._stalled_s_max):
                await self._send({"type": "websocket.send", "text": text.decode()})
        except (TimeoutError, OSError, RuntimeError) as gone:  # the server says either, depending on who closed first
            self.is_open = False
            raise SocketGone from gone

    async def left(self) -> None:
        """Returns once the other side has left; what it says meanwhile is not listened to."""
        while (await self._receive())["type"] != "websocket.disconnect":
            pass
        self.is_open = False

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self.is_open:
            self.is_open = False
            shown = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code, "reason": shown})

    async def refuse(self, error: HarchError) -> None:
        """The usual error: as an HTTP answer, or as the reason of the end of an open connection."""
        if self.is_open:
            await self.close(FAILED, f"{error.code}: {error.message}")
            return
        answer = failure(error)
        headers = [(b"content-type", answer.content_type.encode()), (b"content-length", b"%d" % len(answer.body))]
        headers += [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        with contextlib.suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "websocket.http.response.body", "body": answer.body})


@dataclass(frozen=True, slots=True)
class SocketRoute:
    """Which function serves a WebSocket at a path? It accepts the connection once all is well with the request."""

    path: str
    handler: Callable[[TelemetryRequest, Socket], Coroutine[Any, Any, None]]
