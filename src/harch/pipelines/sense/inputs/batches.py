"""How do ready-made batches come in?

Over a socket (four bytes of length, then one message), or from a subscription of the message engine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from harch.base.listen.accept import listen_for_streams
from harch.base.listen.gate import ConnectionGate
from harch.pipelines.listener_keys import HINT, KEY_CHARS_MAX, LOOPBACK, is_key
from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantined
from harch.pipelines.wire.header import HEADER_BYTES, MESSAGE_BYTES_MAX

# How do ready-made batches come in without a broker? Over a socket: four bytes of length, then one message, and so on.
#
# The first message of a connection is the source's key; without it nothing more is read, and the connection ends.
# A message that cannot be used costs itself only, because its length was right. A length that cannot be one means that
# the stream is lost: the connection is closed, and the source starts anew. When the stage is behind, nothing is read,
# so
# that the sender's own socket fills up.


LENGTH_BYTES = 4
IDLE_S_MAX = 300.0
KEY_S_MAX = 10.0  # from the connection to its key
KEY_MARK = b"HKEY"
_READ_AHEAD_BYTES = 1 << 20


def frame(message: bytes) -> bytes:
    """A message as it travels."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def key_frame(key: str) -> bytes:
    """What a sender sends first."""
    return frame(KEY_MARK + key.encode())


class TcpInput:
    """Listens on loopback; takes batches from whoever shows the key of this digest."""

    def __init__(self, intake: Intake, *, key_sha256: str, port: int = 0, connections_max: int = 64) -> None:
        self._intake = intake
        self._key_sha256 = key_sha256
        self._port = port
        self._connections_max = connections_max
        self.connections = 0
        self.address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        sock = socket.create_server((LOOPBACK, self._port))
        gate = ConnectionGate(f"source on port {self._port}")
        listener = listen_for_streams(sock, gate, self._serve, read_ahead_bytes=_READ_AHEAD_BYTES)
        try:
            self.address.set_result((LOOPBACK, listener.port))
            await asyncio.get_running_loop().create_future()
        finally:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self.connections > self._connections_max:
                self._set_aside("too_many_connections", f"{self._connections_max} connections are already open")
            elif not await self._shows_key(reader):
                self._set_aside("unauthorised", "the connection does not begin with the source's key")
                refusal = {"code": "E0102", "message": "the first message is not the key of this source", "hint": HINT}
                writer.write(frame(msgspec.json.encode(refusal)))
            else:
                await self._read(reader)
        except TimeoutError:
            self._set_aside("bad_frame", f"nothing received for {IDLE_S_MAX:g} s")
        except asyncio.IncompleteReadError as cut:
            if cut.partial:
                self._set_aside("bad_frame", f"the connection ended after {len(cut.partial)} of {cut.expected} bytes")
        except ConnectionError as lost:
            self._set_aside("bad_frame", f"the connection was lost: {lost}")
        finally:
            self.connections -= 1
            writer.close()

    async def _shows_key(self, reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(KEY_S_MAX):
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                if not len(KEY_MARK) <= size <= len(KEY_MARK) + KEY_CHARS_MAX:
                    return False
                presented = await reader.readexactly(size)
        except (TimeoutError, asyncio.IncompleteReadError):
            return False
        key = presented.removeprefix(KEY_MARK).decode("utf-8", "replace")
        return presented.startswith(KEY_MARK) and is_key(key, self._key_sha256)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            async with asyncio.timeout(IDLE_S_MAX):
                head = await reader.readexactly(LENGTH_BYTES)
                size = int.from_bytes(head, "little")
                if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
                    self._set_aside("bad_frame", f"a length of {size} bytes; {HEADER_BYTES} to {MESSAGE_BYTES_MAX}")
                    return
                message = await reader.readexactly(size)
            await self._intake.put(message)

    def _set_aside(self, reason: str, detail: str) -> None:
        self._intake.quarantine.add(Quarantined(reason, detail))


# How do batches come in from the message engine? A subscription whose messages are put into the intake.
#
# The engine cannot be made to wait: sources have credit instead, so that no more is on its way than there is room for.
# What finds no room all the same is not taken, and its source sends it again when the hole is seen.


class Delivered(Protocol):
    """A message of the engine. Its payload is valid during the call only."""

    @property
    def payload(self) -> memoryview | bytes: ...


class Subscriber(Protocol):
    """What this input needs of a client of the engine."""

    def subscribe(self, subject: str, handler: Callable[[Any], None]) -> int: ...

    def unsubscribe(self, sid: int) -> None: ...


class NatsInput:
    """One subject, usually `juris.<country>.<pipeline>.sense.<partition>`."""

    def __init__(self, client: Subscriber, subject: str, intake: Intake) -> None:
        self._client = client
        self._subject = subject
        self._intake = intake

    async def run(self) -> None:
        sid = self._client.subscribe(self._subject, self.take)
        try:
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        finally:
            self._client.unsubscribe(sid)

    def take(self, message: Delivered) -> None:
        if not self._intake.try_put((bytes(message.payload),)):
            self._intake.quarantine.add(Quarantined("intake_full", f"no room for {len(message.payload)} bytes"))
