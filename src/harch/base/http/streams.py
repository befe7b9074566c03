"""How many answers may stay open, and how do they end? Each kind has slots of its own, shared fairly between keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from enum import Enum
from hashlib import sha256
from typing import Any

from starlette.types import Receive, Scope, Send

from harch.base.clock import Clock, sleep_unless
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import token_from

RESERVED_SHARE = 4  # one place in so many is kept for those who hold few
FEW = 4


class NoRoom(Enum):
    ALL_TAKEN = "all"
    OWN_SHARE = "own"  # there is room, but not for somebody who has so many already


class Slots:
    """`most` places. The last quarter is only for holders of fewer than `FEW`: one of many wishes locks nobody out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._held.total()

    def take(self, who: str) -> NoRoom | None:
        """None if the place is taken now; give it back with `leave`."""
        if self.taken >= self.most:
            return NoRoom.ALL_TAKEN
        if self._held[who] >= FEW and self.taken >= self.most - self.most // RESERVED_SHARE:
            return NoRoom.OWN_SHARE
        self._held[who] += 1
        return None

    def leave(self, who: str) -> None:
        self._held[who] -= 1
        if self._held[who] <= 0:
            del self._held[who]


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

    def __init__(self, limits: HttpLimits) -> None:
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

    async def sleep(self, clock: Clock, seconds: float) -> bool:
        """For an answer that waits before it begins. False, at once, when the server is stopping."""
        return not await sleep_unless(self._closing, clock, seconds)

    @asynccontextmanager
    async def open(self, kind: StreamKind, scope: Scope, receive: Receive, send: Send) -> AsyncIterator[ResponseStream]:
        """One slot for as long as the block lasts. Before anything is sent, raises E0403 if the caller's key has as
        many as it may have while others have none, and E0405 if all are taken."""
        slots, who = self._slots[kind], _key_of(scope)
        if refused := slots.take(who):
            raise _refusal(kind, slots, refused)
        gone = asyncio.ensure_future(_gone(receive))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            yield ResponseStream(send, (gone, closing), self.limits)
        finally:
            slots.leave(who)
            for task in (gone, closing):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


class ResponseStream:
    """One open answer."""

    def __init__(self, send: Send, enders: tuple[asyncio.Future[Any], ...], limits: HttpLimits) -> None:
        self._send = send
        self._enders = enders
        self._limits = limits

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Waits for a slow reader, but not forever."""
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
    poll = "request pages instead: `Accept: application/json` for events, no `follow` for logs"
    if refused is NoRoom.OWN_SHARE:
        message = f"the {kind.value} of this key use every slot that is not reserved for others"
        return HarchError("E0403", message, hint=f"close one, or {poll}", retry_after_s=RETRY_AFTER_S)
    message = f"{slots.most} {kind.value} are open already"
    return HarchError("E0405", message, hint=f"try again later, or {poll}", retry_after_s=RETRY_AFTER_S)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
