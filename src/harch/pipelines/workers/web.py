"""How does a worker serve HTTP? One application on loopback, until its caller is done."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.base.listen.http_server import BACKLOG, http_server
from harch.pipelines.listener_keys import LOOPBACK, check_headers

_STOP_S = 1.0


@contextlib.asynccontextmanager
async def serve(app: Any, port: int) -> AsyncIterator[str]:
    """Yields the address, with the port that it got, while the application is served. The application asks for a key
    itself, or is `keyed`."""
    listener = socket.create_server((LOOPBACK, port), backlog=BACKLOG, reuse_port=False)
    try:
        gate = ConnectionGate(f"worker on port {port}")
        async with http_server(app, listener, gate, graceful_stop_s=_STOP_S):
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    finally:
        listener.close()


def keyed(app: Any, key_sha256: str) -> Any:
    """The same application, for those who show the key of this digest; of others nothing is read."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        try:
            check_headers(headers, key_sha256)
        except HarchError as error:
            told = {"code": error.code, "message": error.message, "hint": error.hint}
            named = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": error.kind.status, "headers": named})
            await send({"type": "http.response.body", "body": msgspec.json.encode(told)})
            return
        await app(scope, receive, send)

    return guarded
