"""How does an event loop talk to the engine? The same protocol on asyncio, for the parts that wait for many things.

Handlers are called on the loop with views that are valid during the call. `publish` never queues without bound: while
there is no connection it raises `ConnectionLost`, and `drain` waits while the socket is full.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from harch.base.clock import Clock, SystemClock
from harch.pipelines.client import commands
from harch.pipelines.client.aio_link import AioLink, open_aio_link
from harch.pipelines.client.errors import (
    AuthorizationFailed,
    ConnectionLost,
    NatsError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    TooLarge,
)
from harch.pipelines.client.jetstream import NO_RESPONDERS, Ack, publish_headers, read_ack
from harch.pipelines.client.options import ClientOptions, backoff_s
from harch.pipelines.client.protocol import Event, Info, Message, Ping, Pong, Refusal
from harch.pipelines.client.session import AWAITED_MAX, Session
from harch.pipelines.client.sockets import Part, tls_context

Handler = Callable[[Message], None]
REFUSALS_KEPT_MAX = 100
_DOMAIN = re.compile(r"^\$JS\.[^.]+\.API\.")


class AioClient:
    """One connection with its reconnect loop. `await connect()` first, `await close()` last."""

    def __init__(self, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.options = options
        self.session = Session(options.inbox_prefix)
        self.reconnects = 0
        self.refusals: deque[NatsError] = deque(maxlen=REFUSALS_KEPT_MAX)  # subjects that the engine refused us
        self._clock = clock or SystemClock()
        self._tls: ssl.SSLContext | None = tls_context(options.tls) if options.tls is not None else None
        self._link: AioLink | None = None
        self._handlers: dict[int, Handler] = {}
        self._answers: dict[str, tuple[str, asyncio.Future[Message]]] = {}  # by reply, with what was asked
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._payload_bytes_max = options.payload_bytes_max
        self._keeper: asyncio.Task[None] | None = None
        self._chance = random.Random()  # noqa: S311 (spreads reconnects, protects nothing)

    async def __aenter__(self) -> AioClient:
        await self.connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Tries every server once, then keeps the connection until `close`. Raises what the last server said."""
        await self._open()
        self._keeper = asyncio.create_task(self._keep(), name=f"nats-{self.options.name}")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._link is not None:
            self._link.close()
        self._fail_waiting("the connection was closed")

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.lost.done()

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made; empty without one."""
        return self._link.info.fields if self._link is not None else {}

    def publish(
        self, subject: str, payload: Part, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Writes without waiting; call `drain` now and then. The payload must not change until it is sent."""
        size = len(payload)
        if size > self._payload_bytes_max:
            raise TooLarge(f"{size} bytes; the engine takes {self._payload_bytes_max}")
        head = commands.head_of(subject, size, reply, headers)
        self._send(head, payload, commands.CRLF)

    async def drain(self) -> None:
        """Waits while the socket holds as much as it should."""
        if self._link is not None:
            await self._link.writable()

    def subscribe(self, subject: str, handler: Handler, queue: str = "") -> int:
        """`handler` is called for each message, on the loop. It must be short, keep no view and raise nothing: an
        error in it is a fault of the program and ends the connection."""
        sid, command = self.session.subscribe(subject, queue)
        self._handlers[sid] = handler
        if self.is_connected:
            self._send(command)
        return sid

    def unsubscribe(self, sid: int) -> None:
        self._handlers.pop(sid, None)
        command = self.session.unsubscribe(sid)
        if self.is_connected:
            self._send(command)

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Returns when the engine has processed all that was sent; messages go to their handlers meanwhile."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(commands.PING)
        self._pongs.append(pong)
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise RequestTimeout("the engine does not answer a PING") from None

    async def request(
        self, subject: str, payload: Part, *, timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> Message:
        """One answer, on a reply subject of its own. Raises `NoResponders`, `RequestTimeout` or `ConnectionLost`."""
        if len(self._answers) >= AWAITED_MAX:
            raise NatsError(f"{AWAITED_MAX} requests wait for their answer")
        if command := self.session.open_inbox():
            self._handlers[self.session.inbox_sid] = self._answered
            self._send(command)
        reply = self.session.new_reply()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[reply] = (subject, answer)
        try:
            self.publish(subject, payload, reply=reply, headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await answer
        except TimeoutError:
            raise RequestTimeout(f"no answer to `{subject}`") from None
        finally:
            self._answers.pop(reply, None)
        if message.status == NO_RESPONDERS:
            raise NoResponders(f"nobody answers `{subject}`")
        return message

    async def publish_stored(
        self,
        subject: str,
        payload: Part,
        *,
        msg_id: str = "",
        expected_last_subject_seq: int | None = None,
        timeout_s: float = 5.0,
    ) -> Ack:
        """Publishes to a stream and waits for its acknowledgement; call it many times at once to pipeline."""
        headers = publish_headers(msg_id=msg_id, expected_last_subject_seq=expected_last_subject_seq)
        return read_ack(await self.request(subject, payload, timeout_s=timeout_s, headers=headers))

    async def _open(self) -> None:
        last: NatsError = ConnectionLost("no server")
        for url in self.options.servers:
            try:
                link = await open_aio_link(url, self.options, self._tls, self._event)
            except ConnectionLost as error:
                last = error
                continue
            link.send((self.session.resubscribe(),))
            self._payload_bytes_max = min(link.info.payload_bytes_max, self.options.payload_bytes_max)
            self._link = link
            return
        raise last

    async def _keep(self) -> None:
        """Connects again after each loss, with growing pauses, until attempts in a row run out."""
        failures = 0
        while failures < self.options.reconnect_attempts_max or failures == 0:
            link = self._link
            if link is not None:
                reason = await link.lost
                self._link = None
                link.close()
                self._fail_waiting(reason)
                if self.options.reconnect_attempts_max == 0:
                    return
            await self._clock.sleep(backoff_s(failures + 1, self.options, self._chance.random()))
            try:
                await self._open()
                self.reconnects += 1
                failures = 0
            except AuthorizationFailed as error:
                self.refusals.append(error)
                return
            except NatsError:  # gone, or something else answers at its address for now
                failures += 1

    def _event(self, event: Event) -> None:
        if isinstance(event, Message):
            handler = self._handlers.get(event.sid)
            if handler is not None:  # else unsubscribed while it was under way
                handler(event)
        elif isinstance(event, Ping):
            if self._link is not None:
                self._link.send((commands.PONG,))
        elif isinstance(event, Pong):
            if self._pongs and not (pong := self._pongs.popleft()).done():
                pong.set_result(None)
        elif isinstance(event, Info):
            self._payload_bytes_max = min(event.payload_bytes_max, self.options.payload_bytes_max)
        elif isinstance(event, Refusal) and event.is_permission:
            self._refused(PermissionDenied(event.text))

    def _refused(self, error: PermissionDenied) -> None:
        """A request to a refused subject fails at once, instead of after its timeout."""
        self.refusals.append(error)
        for subject, answer in self._answers.values():
            # The engine maps its own domain away before it checks, and then names what it checked.
            checked = _DOMAIN.sub("$JS.API.", subject)
            if (f'"{subject}"' in str(error) or f'"{checked}"' in str(error)) and not answer.done():
                answer.set_exception(error)

    def _answered(self, message: Message) -> None:
        _, answer = self._answers.get(message.subject, ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message.kept())

    def _send(self, *parts: Part) -> None:
        if self._link is None or self._link.lost.done():
            raise ConnectionLost("not connected")
        self._link.send(parts)

    def _fail_waiting(self, reason: str) -> None:
        answers = [answer for _, answer in self._answers.values()]
        waiting: list[asyncio.Future[Message] | asyncio.Future[None]] = [*answers, *self._pongs]
        self._pongs.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost(reason))
                future.exception()  # seen: its waiter may be gone already
