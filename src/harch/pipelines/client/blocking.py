"""How does a stage worker talk to the engine? A blocking client for the hot lane: no task, no queue, no copy.

One thread receives (`next`, `flush`, `request`); any thread may publish. Delivery is at most once: `publish` raises
`ConnectionLost` for a message that may be lost, and the caller replays it if that matters. `next` connects again.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

from harch.base.clock import Clock, SystemClock
from harch.pipelines.client import commands
from harch.pipelines.client.errors import (
    AuthorizationFailed,
    ConnectionLost,
    NatsError,
    NoResponders,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    SlowConsumer,
    TooLarge,
)
from harch.pipelines.client.jetstream import NO_RESPONDERS, Ack, publish_headers, read_ack
from harch.pipelines.client.link import Link, open_link
from harch.pipelines.client.options import ClientOptions, backoff_s
from harch.pipelines.client.protocol import Info, Message, Ping, Pong, Refusal
from harch.pipelines.client.session import Session
from harch.pipelines.client.sockets import Part, tls_context

GATHERED_PARTS_MAX, GATHERED_BYTES_MAX = 900, 1 << 20  # the kernel gathers 1,024 parts at a time


class BlockingClient:
    """One connection. Use it as a context manager, or call `connect` and `close`."""

    def __init__(self, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.options = options
        self.session = Session(options.inbox_prefix)
        self.reconnects = 0
        self._clock = clock or SystemClock()
        self._tls = tls_context(options.tls) if options.tls is not None else None
        self._link: Link | None = None
        self._payload_bytes_max = options.payload_bytes_max
        self._kept: deque[Message] = deque()
        self._kept_bytes = 0
        self._pings = self._pongs = 0
        self._failures = 0  # attempts to connect that failed, in a row
        self._attempt_at_s = 0.0  # the next one, also if the caller goes away and comes back meanwhile
        self._connecting = threading.RLock()
        self._closed = threading.Event()
        self._chance = random.Random()  # noqa: S311 (spreads reconnects, protects nothing)

    def __enter__(self) -> BlockingClient:
        self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def connect(self) -> None:
        """Tries every server once, in order. Raises what the last of them said."""
        last: NatsError = ConnectionLost("no server")
        with self._connecting:
            for url in self.options.servers:
                try:
                    link = open_link(url, self.options, self._tls, self._clock)
                    link.send((self.session.resubscribe(),))
                except ConnectionLost as error:
                    last = error
                    continue
                self._payload_bytes_max = min(link.info.payload_bytes_max, self.options.payload_bytes_max)
                self._pings = self._pongs = self._failures = 0
                self._attempt_at_s = 0.0
                self._link = link
                return
        raise last

    def close(self) -> None:
        self._closed.set()
        self._lose(self._link)

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def publish(
        self, subject: str, payload: Part, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Hands the payload to the kernel as it is. After a loss, the next publish connects again first."""
        size = len(payload)
        if size > self._payload_bytes_max:
            raise TooLarge(f"{size} bytes; the engine takes {self._payload_bytes_max}")
        head = commands.head_of(subject, size, reply, headers)
        self._send((head, payload, commands.CRLF))

    def publish_many(self, messages: Iterable[tuple[str, Part]]) -> None:
        """Small messages together: one system call for many of them, where each alone would cost one."""
        parts: list[Part] = []
        size = 0
        for subject, payload in messages:
            if len(payload) > self._payload_bytes_max:
                raise TooLarge(f"{len(payload)} bytes; the engine takes {self._payload_bytes_max}")
            parts += (commands.publish_head(subject, len(payload)), payload, commands.CRLF)
            size += len(payload)
            if len(parts) >= GATHERED_PARTS_MAX or size >= GATHERED_BYTES_MAX:
                self._send(tuple(parts))
                parts, size = [], 0
        if parts:
            self._send(tuple(parts))

    def subscribe(self, subject: str, queue: str = "") -> int:
        """The number that messages of this subscription carry as `sid`."""
        sid, command = self.session.subscribe(subject, queue)
        self._send((command,))
        return sid

    def unsubscribe(self, sid: int) -> None:
        self._send((self.session.unsubscribe(sid),))

    def next(self, timeout_s: float) -> Message | None:
        """The next message, or None if none came in time. Its views are valid until the next receiving call."""
        if not self._kept and (found := self._next_frame()) is not None:
            return found  # the usual case, without a look at the clock
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            for message in self.complete():
                return message
            left_s = deadline_s - self._clock.monotonic_s()
            link = self._link
            if link is None:
                if not self._reconnect(left_s):
                    return None
                continue
            try:
                if not link.fill(max(0.0, left_s)) and left_s <= 0:
                    return None
            except ConnectionLost:
                self._lose(link)

    def complete(self) -> Iterator[Message]:
        """Messages that are here already; their views stay valid together, until the next receiving call."""
        while self._kept:
            message = self._kept.popleft()
            self._kept_bytes -= len(message.payload)
            yield message
        while (found := self._next_frame()) is not None:
            yield found

    def flush(self, timeout_s: float = 5.0) -> None:
        """Returns when the engine has processed all that was sent. Messages that come meanwhile are kept for `next`."""
        link = self._connected()
        self._pings += 1
        mine = self._pings
        self._send((commands.PING,), link)
        deadline_s = self._clock.monotonic_s() + timeout_s
        while self._pongs < mine:
            message = self._next_frame()
            if message is not None:
                self._keep(message)
            elif self._pongs < mine:
                self._fill_before(deadline_s, "the engine does not answer a PING")

    def request(
        self, subject: str, payload: Part, *, timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> Message:
        """One answer, on a reply subject of its own. Raises `NoResponders` or `RequestTimeout`."""
        if command := self.session.open_inbox():
            self._send((command,))
        reply = self.session.new_reply()
        self.publish(subject, payload, reply=reply, headers=headers)
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            message = self._next_frame()
            if message is None:
                self._fill_before(deadline_s, f"no answer to `{subject}`")
            elif message.sid != self.session.inbox_sid:
                self._keep(message)
            elif message.subject == reply:
                if message.status == NO_RESPONDERS:
                    raise NoResponders(f"nobody answers `{subject}`")
                return message.kept()
            # else: the answer to an earlier request, which nobody waits for any more

    def publish_stored(
        self,
        subject: str,
        payload: Part,
        *,
        msg_id: str = "",
        expected_last_subject_seq: int | None = None,
        timeout_s: float = 5.0,
    ) -> Ack:
        """Publishes to a stream and waits for its acknowledgement. Pipelined publishes: `jetstream.AckBook`."""
        headers = publish_headers(msg_id=msg_id, expected_last_subject_seq=expected_last_subject_seq)
        return read_ack(self.request(subject, payload, timeout_s=timeout_s, headers=headers))

    def _next_frame(self) -> Message | None:
        """The next message among the bytes that are here; everything else is answered on the way."""
        link = self._link
        if link is None:
            return None
        try:
            while (event := link.parser.next()) is not None:
                if isinstance(event, Message):
                    return event
                if isinstance(event, Ping):
                    link.send((commands.PONG,))
                elif isinstance(event, Pong):
                    self._pongs += 1
                elif isinstance(event, Refusal):
                    self._raise(event, link)
                elif isinstance(event, Info):
                    self._payload_bytes_max = min(event.payload_bytes_max, self.options.payload_bytes_max)
        except ConnectionLost:
            self._lose(link)
        except ProtocolError:
            self._lose(link)
            raise
        return None

    def _raise(self, refusal: Refusal, link: Link) -> None:
        """A refused subject goes to the caller; after anything else the engine hangs up, and we connect again."""
        if refusal.is_permission:
            raise PermissionDenied(refusal.text)
        if refusal.is_authorization:
            self._lose(link)
            raise AuthorizationFailed(refusal.text)
        if refusal.is_fatal:
            raise ConnectionLost(refusal.text)

    def _fill_before(self, deadline_s: float, otherwise: str) -> None:
        link = self._link
        if link is None:
            raise ConnectionLost("the connection was lost before the answer came")
        left_s = deadline_s - self._clock.monotonic_s()
        try:
            count = link.fill(left_s) if left_s > 0 else 0
        except ConnectionLost:
            self._lose(link)
            raise
        if count == 0:
            raise RequestTimeout(otherwise)

    def _connected(self) -> Link:
        if self._link is None:
            self._reconnect(None)
        link = self._link
        if link is None:
            raise ConnectionLost("not connected")
        return link

    def _send(self, parts: tuple[Part, ...], over: Link | None = None) -> None:
        link = over or self._connected()
        try:
            link.send(parts)
        except ConnectionLost:
            self._lose(link)
            raise

    def _keep(self, message: Message) -> None:
        if self._kept_bytes + len(message.payload) > self.options.pending_bytes_max:
            raise SlowConsumer(f"more than {self.options.pending_bytes_max} bytes came while waiting for an answer")
        self._kept_bytes += len(message.payload)
        self._kept.append(message.kept())

    def _lose(self, link: Link | None) -> None:
        if link is not None:
            link.close()
            if self._link is link:  # another thread may have a new one already
                self._link = None

    def _reconnect(self, within_s: float | None) -> bool:
        """With growing pauses. False if time ran out; raises what was last said after as many attempts as allowed."""
        with self._connecting:
            until_s = None if within_s is None else self._clock.monotonic_s() + within_s
            while self._link is None:
                if self._closed.is_set() or self._failures >= self.options.reconnect_attempts_max:
                    raise ConnectionLost("the connection is closed, or could not be made again")
                now_s = self._clock.monotonic_s()
                if not self._attempt_at_s:
                    self._attempt_at_s = now_s + backoff_s(self._failures + 1, self.options, self._chance.random())
                if until_s is not None and self._attempt_at_s > until_s:
                    self._closed.wait(max(0.0, until_s - now_s))
                    return False
                self._closed.wait(max(0.0, self._attempt_at_s - now_s))
                try:
                    self.connect()
                    self.reconnects += 1
                except (ConnectionLost, ProtocolError):
                    self._failures += 1
                    self._attempt_at_s = 0.0
            return True
