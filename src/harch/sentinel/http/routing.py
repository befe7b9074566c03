"""Which function answers which path, and for whom?

A table for requests and for WebSockets; names in braces take any one segment of the path.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

from starlette.types import Receive, Send

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, failure
from harch.sentinel.http.permissions import ACCESS, Access, Table, allowed

WRITE_BYTES_MAX = 32 * 1024 * 1024
FORM_BYTES_MAX = 2 * 1024 * 1024

Handler = Callable[[TelemetryRequest, Mapping[str, str]], HttpReply | Awaitable[HttpReply]]


class WorkClass(Enum):
    """Which threads do it? Writes never wait behind queries, and what is quick behind neither."""

    QUICK = "quick"
    LOOP = "loop"  # the handler is awaited: it waits for a disk or a network without holding a thread
    QUERY = "query"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    methods: Sequence[str]
    path: str
    handler: Handler
    work: WorkClass = WorkClass.QUERY
    body_bytes_max: int = FORM_BYTES_MAX
    is_form: bool = True  # whether a POST carries its parameters as a form
    over_hubs: Handler | None = None  # answers instead, as `LOOP`, when the request names other hubs
    is_small: Callable[[TelemetryRequest], bool] | None = None  # then it is answered without the way over a thread


class Routes:
    """Finds the route of a request. Exact paths are looked up, others compared segment by segment."""

    def __init__(self, routes: Sequence[HttpRoute], access: Table = ACCESS) -> None:
        """Raises InvariantBroken for a route of which the table does not say who may call it."""
        self._access = {
            (method, one.path): allowed(access, method, one.path) for one in routes for method in one.methods
        }
        self._exact: dict[str, list[HttpRoute]] = {}
        self._templates: list[tuple[tuple[str, ...], HttpRoute]] = []
        for route in routes:
            if "{" in route.path:
                self._templates.append((tuple(route.path.split("/")), route))
            else:
                self._exact.setdefault(route.path, []).append(route)

    def find(self, method: str, path: str) -> tuple[HttpRoute, dict[str, str], Access]:
        """Raises E0207 for a path that is not served, E0208 for a method that it does not take."""
        path = path.rstrip("/") or "/"
        candidates: list[tuple[HttpRoute, dict[str, str]]] = [(route, {}) for route in self._exact.get(path, ())]
        segments = path.split("/")
        for template, route in self._templates:
            names = _match(template, segments)
            if names is not None:
                candidates.append((route, names))
        for route, names in candidates:
            if method in route.methods:
                return route, names, self._access[method, route.path]
        if candidates:
            allowed = ", ".join(sorted({name for route, _ in candidates for name in route.methods}))
            raise HarchError("E0208", f"{path} does not accept {method}", hint=f"use {allowed}")
        raise HarchError("E0207", f"no such path in SENTINEL: {path}", hint="docs/sentinel/api.md lists the paths")


def _match(template: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(template) != len(segments):
        return None
    names = {}
    for expected, found in zip(template, segments, strict=True):
        if expected.startswith("{"):
            names[expected[1:-1]] = unquote(found)
        elif expected != found:
            return None
    return names


# How does a WebSocket of SENTINEL run? Refused as HTTP before it is open, closed with a reason afterwards.


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
        """Waits for a slow reader, but not forever. Raises SocketGone."""
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
            shortened = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code, "reason": shortened})

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
