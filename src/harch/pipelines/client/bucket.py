"""Where do workers agree? In a key-value bucket of JetStream: of two writes to the same revision, one is refused."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import JetStreamRefused, NatsError

_WRONG_LAST_SEQUENCE = (10071, 10164)
_NOT_FOUND = 404
TIMEOUT_S = 3.0


class Conflict(Exception):
    """Somebody else wrote first. Nothing was written."""


class Unreachable(Exception):
    """No answer: a write may or may not be there."""


class KeyValue(Struct, frozen=True):
    value: bytes
    revision: int


class Bucket(Protocol):
    """Compare-and-set. Reads may be a moment old; a write on an old revision is refused, so that is harmless."""

    async def get(self, key: str) -> KeyValue | None:
        """Raises Unreachable."""
        ...

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """The new revision. `revision` is the current one, 0 for a key that must not exist, None for any.

        Raises Conflict or Unreachable."""
        ...


class NatsBucket:
    """A Bucket in JetStream. The stream behind it was made by HarchOS; a worker cannot make one."""

    def __init__(self, client: AioClient, name: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s

    async def get(self, key: str) -> KeyValue | None:
        subject = f"$JS.API.DIRECT.GET.KV_{self._name}.$KV.{self._name}.{key}"
        try:
            found = await self._client.request(subject, b"", timeout_s=self._timeout_s)
        except NatsError as error:
            raise Unreachable(str(error)) from error
        if found.status == _NOT_FOUND:
            return None
        sequence = found.headers().get("Nats-Sequence", "")
        if found.status or not sequence.isdigit():
            raise Unreachable(f"`{key}` of `{self._name}`: status {found.status}")
        return KeyValue(bytes(found.payload), int(sequence))

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        try:
            ack = await self._client.publish_stored(
                f"$KV.{self._name}.{key}", value, expected_last_subject_seq=revision, timeout_s=self._timeout_s
            )
        except JetStreamRefused as error:
            if error.code in _WRONG_LAST_SEQUENCE:
                raise Conflict(key) from error
            raise Unreachable(str(error)) from error
        except NatsError as error:
            raise Unreachable(str(error)) from error
        return ack.seq
