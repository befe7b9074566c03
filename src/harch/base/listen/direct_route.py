"""How does a hot route skip ASGI? A whole request goes in, a whole response comes out: one task and one write.

Only the plainest requests go this way: HTTP/1.1, kept alive, nothing before them on their connection, each header
once, and a body that is there as soon as its headers are. Everything else takes the ordinary way, so an application
serves its direct routes through ASGI, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers = Mapping[bytes, bytes]  # by name in lower case

_INTRICATE = frozenset((b"expect", b"transfer-encoding", b"upgrade"))


class DirectResponse(NamedTuple):
    """A whole response. `lines` are its own headers; its date, length and end of connection come to them."""

    status: int
    lines: bytes
    body: bytes

    def encode(self, common: bytes, *, keep_alive: bool) -> bytes:
        """`common`: the lines that every response of the server has."""
        status, lines, body = self
        close = b"" if keep_alive else b"connection: close\r\n"
        framing = (STATUS_LINE[status], common, lines, len(body), close, body)
        return b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % framing


# What a client gets of a fault or an end that its handler did not answer for: as uvicorn says it, the connection ends.
FAILED = DirectResponse(500, b"content-type: text/plain; charset=utf-8\r\n", b"Internal Server Error")

DirectHandler = Callable[[Headers, bytes], Awaitable[DirectResponse]]


class DirectRoute(NamedTuple):
    """One method of one target. `handle` gets headers and body, and answers for its errors itself."""

    method: bytes
    body_bytes_max: int  # a larger one takes the ordinary way, which knows how to refuse it
    handle: DirectHandler


DirectRoutes = Mapping[bytes, DirectRoute]  # by target, exactly as it stands in the request line


class DirectCycle:
    """One request on a direct route; to uvicorn's protocol, which owns the connection, a cycle like its own."""

    __slots__ = ("body", "disconnected", "headers", "keep_alive", "response_complete", "route", "task")

    message_event = asyncio.Event()  # nobody waits for it: the body is there
    task: asyncio.Task[None]  # set as soon as it is served

    def __init__(self, route: DirectRoute, headers: Headers) -> None:
        self.route, self.headers = route, headers
        self.body = b""
        self.keep_alive = True
        self.disconnected = self.response_complete = False


def plain_headers(headers: list[tuple[bytes, bytes]]) -> Headers | None:
    """The headers by name; None if a name stands there twice, or if one changes how the request is read."""
    found = dict(headers)
    return found if len(found) == len(headers) and _INTRICATE.isdisjoint(found) else None


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
