"""What is next in a durable lane? Pulls messages from a consumer of JetStream, and tells it what became of them.

Pulled messages carry the subject that they were stored under, not the one that was asked to reply to, so every pull
listens on a subscription of its own.
"""

from __future__ import annotations

import asyncio

import msgspec

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError, NoResponders, PermissionDenied
from harch.pipelines.client.jetstream import NO_RESPONDERS
from harch.pipelines.client.protocol import Message

BATCH_MAX = 10_000
GRACE_S = 1.0  # beyond `wait_s`, for an engine that is busy
_IDLE, _NO_MESSAGES, _EXPIRED, _ENDED = 100, 404, 408, 409


async def fetch(client: AioClient, stream: str, consumer: str, *, batch: int, wait_s: float) -> list[Message]:
    """Up to `batch` messages, copied; fewer, or none, if no more come within `wait_s`. Raises if there is no consumer,
    or if it ended while we waited and had given us nothing."""
    if not 1 <= batch <= BATCH_MAX:
        raise NatsError(f"a batch of {batch}; allowed: 1 to {BATCH_MAX}")
    messages: list[Message] = []
    over = asyncio.get_running_loop().create_future()
    refused_before = len(client.refusals)

    def arrived(message: Message) -> None:
        if message.status == 0:
            messages.append(message.kept())
        elif message.status == _IDLE:
            return
        if (message.status or len(messages) >= batch) and not over.done():
            over.set_result(message.kept() if message.status else None)

    reply = client.session.new_reply("pull")
    sid = client.subscribe(reply, arrived)
    try:
        body = msgspec.json.encode({"batch": batch, "expires": max(1, int(wait_s * 1e9))})
        client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, reply=reply)
        async with asyncio.timeout(wait_s + GRACE_S):
            ending: Message | None = await over
    except TimeoutError:
        ending = None
        if not messages and len(client.refusals) > refused_before:
            raise PermissionDenied(f"reading `{consumer}` of `{stream}`") from None
    finally:
        client.unsubscribe(sid)
    if ending is not None and not messages:
        if ending.status == NO_RESPONDERS:
            raise NoResponders(f"no consumer `{consumer}` of `{stream}`")
        if ending.status not in (_NO_MESSAGES, _EXPIRED):
            raise NatsError(f"`{consumer}` of `{stream}`: {bytes(ending.header)[:120]!r}")
    return messages


def stored_seq(message: Message) -> int:
    """The number of a pulled message in its stream, from the subject that acknowledges it; 0 if it is none."""
    words = message.reply.split(".")
    numbers = words[-5:] if len(words) in (9, 11, 12) else []
    index = -4 if len(words) == 9 else -5
    return int(words[index]) if numbers and words[index].isdigit() else 0


async def acknowledge(client: AioClient, message: Message, *, timeout_s: float = 5.0) -> None:
    """Returns when JetStream has noted it, so that it is not delivered again."""
    await client.request(message.reply, b"+ACK", timeout_s=timeout_s)


def refuse(client: AioClient, message: Message, *, delay_s: float = 0.0) -> None:
    """Gives a message back, to be delivered again after a while, as often as the consumer allows."""
    body = b"-NAK" if delay_s <= 0 else b'-NAK {"delay": %d}' % int(delay_s * 1e9)
    client.publish(message.reply, body)


def give_up(client: AioClient, message: Message) -> None:
    """Never deliver this one again."""
    client.publish(message.reply, b"+TERM")


def still_working(client: AioClient, message: Message) -> None:
    """Asks for another full `ack_wait`."""
    client.publish(message.reply, b"+WPI")
