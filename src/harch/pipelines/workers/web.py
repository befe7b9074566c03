"""How does a worker serve HTTP? One application on one address, until its caller is done."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from harch.base.listen.gate import ConnectionGate
from harch.base.listen.http_server import BACKLOG, http_server

_STOP_S = 1.0


@contextlib.asynccontextmanager
async def serve(app: Any, host: str, port: int) -> AsyncIterator[str]:
    """Yields the address, with the port that it got, while the application is served."""
    listener = socket.create_server((host, port), backlog=BACKLOG, reuse_port=False)
    try:
        gate = ConnectionGate(f"worker on port {port}")
        async with http_server(app, listener, gate, graceful_stop_s=_STOP_S):
            yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        listener.close()
