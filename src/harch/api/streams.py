"""How many answers may stay open, and how do they end? Event and log streams share these slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Receive, Send

from harch.api.limits import Limits
from harch.base.errors import HarchError


class StreamEnded(Exception):
    """The client has left, or the server is stopping."""


class StreamStalled(StreamEnded):
    """The client stopped reading; even an orderly end would wait for it."""


class Streams:
    """The open streams of one server. `close` ends all of them, so that a stopping server need not wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.active = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        self._closing.set()

    @asynccontextmanager
    async def open(self, receive: Receive, send: Send) -> AsyncIterator[Stream]:
        """One slot for as long as the block lasts. Raises E0403 before anything is sent if all are taken."""
        if self.active >= self.limits.streams_max:
            raise HarchError(
                "E0403",
                f"{self.limits.streams_max} streams are open already",
                hint="close one, or poll with `Accept: application/json`",
                retry_after_s=5,
            )
        self.active += 1
        gone = asyncio.ensure_future(_gone(receive))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            yield Stream(send, (gone, closing), self.limits)
        finally:
            self.active -= 1
            for task in (gone, closing):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


class Stream:
    """One open answer."""

    def __init__(self, send: Send, enders: tuple[asyncio.Future[Any], ...], limits: Limits) -> None:
        self._send = send
        self._enders = enders
        self._limits = limits

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Waits for a slow reader, but not for ever."""
        if any(ender.done() for ender in self._enders):
            raise StreamEnded
        try:
            async with asyncio.timeout(self._limits.stalled_s_max):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError as error:
            raise StreamStalled from error
        except OSError as error:
            raise StreamEnded from error

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def wait(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for `work`; raises `StreamEnded` as soon as there is no point in waiting."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, *self._enders}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StreamEnded
            task.result()
        finally:
            task.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
