"""How does a worker serve HTTP? One application on one address, until its caller is done."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from typing import Any

import uvicorn

_STOP_S = 2.0


class _Quiet(uvicorn.Server):
    """The worker handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def serve(app: Any, host: str, port: int) -> AsyncIterator[str]:
    """Yields the address, with the port that it got, while the application is served."""
    listener = socket.create_server((host, port), reuse_port=False)
    try:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = _Quiet(config)
        task = asyncio.create_task(server.serve(sockets=[listener]), name="web")
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait((task,), timeout=_STOP_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        listener.close()
