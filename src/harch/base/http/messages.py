"""How much of a request is read, and what does every reply carry?

At most the limit, whatever its headers promise; request id and JSON back.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.integers import DIGITS_MAX, INT64_MAX


def too_large(limits: HttpLimits) -> HarchError:
    return HarchError(
        "E0204",
        f"the body is larger than {limits.body_bytes_max} bytes",
        hint="do not embed files in a specification; share a folder with the node instead",
        meta={"bytes_max": limits.body_bytes_max},
    )


def declared_bytes(scope: Scope) -> int:
    """What Content-Length says; 0 if it says nothing."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return bytes_of(value)
    return 0


def bytes_of(value: bytes) -> int:
    """A number that is too long to be read is too large as well."""
    if not value.isdigit():
        return 0
    return int(value) if len(value) <= DIGITS_MAX else INT64_MAX


async def read_body(receive: Receive, limits: HttpLimits) -> bytes:
    """The whole body; raises E0204 at the first byte beyond the limit and `ConnectionError` if the client leaves."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ConnectionError("the client left before its request was complete")
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limits.body_bytes_max:
            raise too_large(limits)
        return body
    parts, size = [body], len(body)
    while size <= limits.body_bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its request was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            break
    if size > limits.body_bytes_max:
        raise too_large(limits)
    return b"".join(parts)


async def answer_then_drain(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    limits: HttpLimits,
) -> None:
    """Sends a 413 at once, reads on within limits, then closes.

    Clients that watch for an early answer stop sending; the others would see a reset connection instead of the
    answer if the rest of their body were left unread.
    """
    headers = [*headers, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    waits_for_permission = any(name == b"expect" for name, _ in scope["headers"])
    if not waits_for_permission:
        await _drain(receive, limits)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive, limits: HttpLimits) -> None:
    bytes_left = limits.drain_bytes_max
    try:
        async with asyncio.timeout(limits.drain_s_max):
            while bytes_left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                bytes_left -= len(message.get("body", b""))
    except TimeoutError:
        return


# What does every answer carry? Request id, version, and JSON; written without a framework for the hot routes.


_CLIENT_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
JSON_TYPE = (b"content-type", b"application/json")


class RequestIds:
    """Ids that find a request in the hub's log again. Unique, not secret: a random start, then counting."""

    def __init__(self) -> None:
        self._prefix = f"req_{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)

    def next(self, requested: bytes = b"") -> str:
        """The client's own id if it sent a harmless one."""
        if requested and _CLIENT_REQUEST_ID.fullmatch(requested):
            return requested.decode()
        return f"{self._prefix}{next(self._numbers):x}"


async def send_json(
    send: Send, status: int, body: bytes, *, headers: list[tuple[bytes, bytes]], content_type: bool = True
) -> None:
    if content_type:
        headers.append(JSON_TYPE)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def token_from(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key of `X-API-Key`, else of `Authorization: Bearer`; empty if there is none."""
    bearer = b""
    for name, value in headers:
        if name == b"x-api-key":
            return value.decode("latin-1").strip()
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:]
    return bearer.decode("latin-1").strip()
