"""What does every answer carry? Request id, version, and JSON; written without a framework for the hot routes."""

from __future__ import annotations

import itertools
import re
import secrets

from starlette.types import Send

_CLIENT_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")
_JSON = (b"content-type", b"application/json")


class RequestIds:
    """Ids that find a request in the hub's log again. Unique, not secret: a random start, then counting."""

    def __init__(self) -> None:
        self._prefix = f"req_{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)

    def next(self, asked: bytes = b"") -> str:
        """The client's own id if it sent a harmless one."""
        if asked and _CLIENT_REQUEST_ID.match(asked):
            return asked.decode()
        return f"{self._prefix}{next(self._numbers):x}"


async def send_json(
    send: Send, status: int, body: bytes, *, headers: list[tuple[bytes, bytes]], content_type: bool = True
) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    if content_type:
        headers.append(_JSON)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
