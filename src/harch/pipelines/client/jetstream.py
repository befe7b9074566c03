"""Was it stored? Acknowledgements of JetStream, each matched to the one publish that it answers. No I/O."""

# harch: pure

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from harch.pipelines.client.errors import JetStreamRefused, NatsError, NoResponders
from harch.pipelines.client.protocol import Message

OUTSTANDING_MAX = 4096
NO_RESPONDERS = 503
Key = TypeVar("Key", bound=Hashable)


class PublishAck(Struct, frozen=True):
    """Where a message was stored. `duplicate`: its id was there before, so nothing was stored again."""

    stream: str
    seq: int
    duplicate: bool = False


class Acked(Struct, Generic[Key], frozen=True):
    key: Key
    ack: PublishAck


class PublishRefused(Struct, Generic[Key], frozen=True):
    key: Key
    error: NatsError


def publish_headers(*, msg_id: str = "", expected_last_subject_seq: int | None = None) -> dict[str, str]:
    """`msg_id` deduplicates in the stream's window; the expected sequence makes a compare-and-set (0: must be new)."""
    headers = {}
    if msg_id:
        headers["Nats-Msg-Id"] = msg_id
    if expected_last_subject_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last_subject_seq)
    return headers


def read_ack(message: Message) -> PublishAck:
    """The acknowledgement in an answer. Raises `JetStreamRefused`, or `NoResponders` if no stream takes the subject."""
    if message.status == NO_RESPONDERS:
        raise NoResponders("no stream accepts this subject")
    answer = read_answer(message)
    stream, seq = answer.get("stream"), answer.get("seq")
    if not isinstance(stream, str) or not isinstance(seq, int):
        raise NatsError("the publish acknowledgement lacks stream and sequence")
    return PublishAck(stream, seq, answer.get("duplicate") is True)


class Delivery(Struct, frozen=True):
    """Which message this is: its number in the stream, and in what the consumer has delivered."""

    stream_seq: int
    consumer_seq: int


def delivery_of(message: Message) -> Delivery | None:
    """From the subject that acknowledges it; None for a message that no consumer delivered."""
    words = message.reply.split(".")
    first = 5 if len(words) == 9 else 7 if len(words) in (11, 12) else 0
    numbers = words[first : first + 2]
    if not first or not all(word.isdigit() for word in numbers):
        return None
    return Delivery(int(numbers[0]), int(numbers[1]))


def read_answer(message: Message) -> dict[str, Any]:
    """The answer of JetStream's API. Raises `JetStreamRefused` with its code, or `NatsError`."""
    try:
        answer = msgspec.json.decode(message.payload, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NatsError("the answer of JetStream is not JSON") from error
    failure = answer.get("error")
    if isinstance(failure, dict):
        raise JetStreamRefused(int(failure.get("err_code", 0)), str(failure.get("description", ""))[:200])
    return answer


class AckBook(Generic[Key]):
    """Publishes that are not acknowledged yet, by their reply subject. Bounded: a full book is back-pressure."""

    def __init__(self, outstanding_max: int = OUTSTANDING_MAX) -> None:
        self._outstanding_max = outstanding_max
        self._waiting: dict[str, tuple[Key, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._outstanding_max

    def sent(self, reply: str, key: Key, *, deadline_s: float) -> None:
        if self.is_full:
            raise NatsError(f"{self._outstanding_max} publishes are awaiting acknowledgement")
        self._waiting[reply] = (key, deadline_s)

    def received(self, message: Message) -> Acked[Key] | PublishRefused[Key] | None:
        """What became of a publish; None for an answer that nobody waits for, such as one that came too late."""
        entry = self._waiting.pop(message.subject, None)
        if entry is None:
            return None
        try:
            return Acked(entry[0], read_ack(message))
        except NatsError as error:
            return PublishRefused(entry[0], error)

    def overdue(self, now_s: float) -> list[Key]:
        """Takes out, and returns, all whose answer did not come in time: whether they were stored is not known."""
        late = [(reply, key) for reply, (key, deadline_s) in self._waiting.items() if deadline_s <= now_s]
        for reply, _ in late:
            del self._waiting[reply]
        return [key for _, key in late]

    def abandoned(self) -> list[Key]:
        """Takes out, and returns, all of them: their connection is gone."""
        keys = [key for key, _ in self._waiting.values()]
        self._waiting.clear()
        return keys
