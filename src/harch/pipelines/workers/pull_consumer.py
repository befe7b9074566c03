"""What is next in a durable lane, and was it answered before?

A standing request to a consumer of JetStream, and the newest identities that are done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine

import msgspec

from harch.base.clock import Clock
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.protocol import Message

# What is next in a durable lane, without asking for it each time? A standing request to a consumer of JetStream.
#
# Messages come as soon as they are stored; at most `outstanding_max` of them are here and not given to the stage yet.
# The
# request is made again before it runs out, after each lost connection, and when nothing was heard for a while.


EXPIRES_S = 20.0
REQUEST_BYTES_MAX = 64 << 20  # of one request; several of the largest messages
UNDER_WAY_MAX = 64  # messages that a stage works on at one time
PULL_WAIT_S = 0.5
_IDLE = 100
ACK, TERM, WORKING = b"+ACK", b"+TERM", b"+WPI"


class Puller:
    """One consumer, one reader. Acknowledge every message that `next` gave, or it comes again."""

    def __init__(
        self, client: AioClient, stream: str, consumer: str, clock: Clock, *, outstanding_max: int = 128
    ) -> None:
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._info_subject = f"$JS.API.CONSUMER.INFO.{stream}.{consumer}"
        self._clock = clock
        self._outstanding_max = outstanding_max
        self._waiting: deque[Message] = deque()
        self._outstanding = 0  # messages that the standing request may still bring
        self._requested_s = 0.0
        self._reconnects = -1
        self._news = asyncio.Event()
        # One subscription for all requests, so that what an old one still brings is not lost; each has its own reply.
        self._inbox = client.session.new_reply("pull")
        self._requests = 0
        self._sid = client.subscribe(f"{self._inbox}.*", self._arrived)
        self.is_paused = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def next(self, count_max: int, wait_s: float) -> list[Message]:
        """What is here, at most `count_max`; waits for the first of them up to `wait_s`."""
        if not self._waiting:
            self._request()
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        found = [self._waiting.popleft() for _ in range(min(count_max, len(self._waiting)))]
        if not self._waiting:
            self._news.clear()
        self._request()
        return found

    async def pending(self) -> int:
        """How many messages wait in the stream for this consumer, ours included. Raises NatsError."""
        answer = await self._client.request(self._info_subject, b"", timeout_s=2.0)
        info = msgspec.json.decode(answer.payload, type=dict[str, object])
        numbers = [info.get("num_pending"), info.get("num_ack_pending")]
        return sum(number for number in numbers if isinstance(number, int))

    def stop(self) -> None:
        """No more are asked for; what is here already is given back by being left alone."""
        self.is_paused = True
        with contextlib.suppress(NatsError):
            self._client.unsubscribe(self._sid)

    def _request(self) -> None:
        now_s = self._clock.monotonic_s()
        is_over = now_s - self._requested_s > EXPIRES_S + 2 or self._client.reconnects != self._reconnects
        if self.is_paused or not (is_over or self._outstanding <= 0):
            return
        room = self._outstanding_max - len(self._waiting)
        if room < self._outstanding_max // 2 and not is_over:
            return
        self._requests += 1
        body = msgspec.json.encode(
            {"batch": max(1, room), "max_bytes": REQUEST_BYTES_MAX, "expires": int(EXPIRES_S * 1e9)}
        )
        try:
            self._client.publish(self._subject, body, reply=f"{self._inbox}.{self._requests}")
        except NatsError:
            self._requested_s = now_s - EXPIRES_S  # soon again
            return
        self._outstanding, self._requested_s, self._reconnects = max(1, room), now_s, self._client.reconnects

    def _arrived(self, message: Message) -> None:
        if message.status == 0:
            self._outstanding -= 1
            self._waiting.append(message.kept())
            self._news.set()
        elif message.status != _IDLE and message.subject == f"{self._inbox}.{self._requests}":
            self._outstanding = 0  # it ran out, or the consumer has moved: ask again
            self._news.set()


def acknowledge(client: AioClient, message: Message) -> None:
    """Without waiting for an answer: if it is lost, the message comes again and is recognised."""
    client.publish(message.reply, ACK)


def still_working(client: AioClient, message: Message) -> None:
    client.publish(message.reply, WORKING)


def give_up(client: AioClient, message: Message) -> None:
    client.publish(message.reply, TERM)


def deliveries(message: Message) -> int:
    """How often this message has been delivered, from the subject that acknowledges it."""
    words = message.reply.split(".")
    place = 4 if len(words) == 9 else 6 if len(words) in (11, 12) else -1
    return int(words[place]) if place > 0 and words[place].isdigit() else 1


async def handle_all(
    puller: Puller, handle: Callable[[Message], Coroutine[object, None, None]], stopping: asyncio.Event
) -> None:
    """Several messages at a time, each acknowledged alone. Once `stopping` is set, what is under way is finished."""
    under_way: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as group:
            while not stopping.is_set():
                room = UNDER_WAY_MAX - len(under_way)
                if room <= 0:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for message in await puller.next(room, PULL_WAIT_S):
                    task = group.create_task(handle(message))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
    finally:
        puller.stop()


# Was this message answered before? The newest identities of which the next stage, or the ledger, has what they became.
#
# JetStream leaves out an id that it remembers, and forgets it with a kill of its server if the message was read and
# removed by then. What is stored again so comes to a worker that still runs, and is recognised here: no window is
# decided
# by two versions of a model because of it.


KEPT_MAX = 65_536
_ID = "Nats-Msg-Id"


class Answered:
    """At most `kept_max` identities; the oldest goes first."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._seen: dict[str, None] = {}

    def has(self, message: Message) -> bool:
        return message.headers().get(_ID, "") in self._seen

    def add(self, message: Message) -> None:
        """Features of the hot lane have no identity, and are never known."""
        if identity := message.headers().get(_ID):
            self._seen[identity] = None
            while len(self._seen) > self._kept_max:
                del self._seen[next(iter(self._seen))]
