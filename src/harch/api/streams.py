"""How many answers may stay open, and how do they end? Each kind has slots of its own, shared fairly between keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from enum import Enum
from hashlib import sha256
from typing import Any

from starlette.types import Receive, Scope, Send

from harch.api.access import token_from
from harch.api.limits import Limits
from harch.api.slots import NoRoom, Slots
from harch.base.errors import HarchError

RETRY_AFTER_S = 5


class StreamKind(Enum):
    """Whoever follows events takes no place from those who read the output of their work."""

    EVENTS = "event streams"
    LOGS = "followed logs"
    EXPORTS = "exports"


class StreamEnded(Exception):
    """The client has left, or the server is stopping."""


class StreamStalled(StreamEnded):
    """The client stopped reading; even an orderly end would wait for it."""


class Streams:
    """The open streams of one server. `close` ends all of them, so that a stopping server need not wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._slots = {
            StreamKind.EVENTS: Slots(limits.event_streams_max),
            StreamKind.LOGS: Slots(limits.log_streams_max),
            StreamKind.EXPORTS: Slots(limits.exports_max),
        }
        self._closing = asyncio.Event()

    @property
    def active(self) -> int:
        return sum(slots.taken for slots in self._slots.values())

    def close(self) -> None:
        self._closing.set()

    @asynccontextmanager
    async def open(self, kind: StreamKind, scope: Scope, receive: Receive, send: Send) -> AsyncIterator[Stream]:
        """One slot for as long as the block lasts. Before anything is sent, raises E0403 if the caller's key has as
        many as it may have while others have none, and E0405 if all are taken."""
        slots, who = self._slots[kind], _key_of(scope)
        if refused := slots.take(who):
            raise _refusal(kind, slots, refused)
        gone = asyncio.ensure_future(_gone(receive))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            yield Stream(send, (gone, closing), self.limits)
        finally:
            slots.leave(who)
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


def _key_of(scope: Scope) -> str:
    """Tells keys apart without keeping them."""
    return sha256(token_from(scope["headers"]).encode()).hexdigest()


def _refusal(kind: StreamKind, slots: Slots, refused: NoRoom) -> HarchError:
    poll = "ask for pages instead: `Accept: application/json` for events, no `follow` for logs"
    if refused is NoRoom.OWN_SHARE:
        told = f"the {kind.value} of this key take all the room that is not kept for others"
        return HarchError("E0403", told, hint=f"close one, or {poll}", retry_after_s=RETRY_AFTER_S)
    told = f"{slots.most} {kind.value} are open already"
    return HarchError("E0405", told, hint=f"try again later, or {poll}", retry_after_s=RETRY_AFTER_S)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
