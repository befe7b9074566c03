"""What does a test of links need? Hubs with real identities, real TLS on loopback, and events instead of waiting."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from harch.base.clock import Clock, SystemClock
from harch.base.config import Home
from harch.base.listen.gate import ConnectionGate
from harch.federation.identity import hub_identity
from harch.federation.identity.authority import make_federation
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.frames import (
    PROTOCOL_VERSION,
    Control,
    FrameKind,
    FrameReader,
    LinkHello,
    decode_control,
    encode_control,
    frame,
)
from harch.federation.links.mesh import Mesh
from harch.testing.ports import free_ports

HOST = "127.0.0.1"
WITHIN_S = 20.0


class Note(msgspec.Struct, frozen=True, tag="note"):
    number: int
    text: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


def federation(folder: Path, *names: str) -> dict[str, HubIdentity]:
    """Identities with addresses on free ports."""
    addresses = {name: (HOST, port) for name, port in zip(names, free_ports(len(names)), strict=True)}
    return make_federation(Home(folder), addresses, now=SystemClock().now())


class Hub:
    """A mesh, with everything that it has reported."""

    def __init__(
        self,
        identity: HubIdentity,
        *peers: HubIdentity,
        clock: Clock | None = None,
        on_uncertified: Callable[[bytes], bytes] | None = None,
        gate: ConnectionGate | None = None,
    ) -> None:
        self.identity = identity
        self.received: list[tuple[str, Note]] = []
        self.news: list[tuple[str, ...]] = []
        self._changed = asyncio.Event()
        self.mesh: Mesh[Note] = Mesh(
            identity=identity,
            listen=identity.member.address,
            peers={peer.hub_id: peer.member.address for peer in peers},
            encode=_encode,
            decode=_decode,
            on_message=self._on_message,
            on_up=lambda hub_id: self._note("up", hub_id),
            on_down=lambda hub_id, why: self._note("down", hub_id, why),
            clock=clock or SystemClock(),
            on_uncertified=on_uncertified,
            gate=gate,
        )

    def _on_message(self, hub_id: str, message: Note) -> None:
        if message.number < 0:
            raise RuntimeError("the hub stumbles over this one")
        self.received.append((hub_id, message))
        self._changed.set()

    def _note(self, *news: str) -> None:
        self.news.append(news)
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Looks again whenever something was reported."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_up(self, hub_id: str) -> None:
        await self.until(lambda: self.mesh.is_up(hub_id))

    def trouble(self, hub_id: str) -> str:
        return next(status.trouble for status in self.mesh.status() if status.hub_id == hub_id)

    async def until_trouble(self, hub_id: str, words: str) -> None:
        """A failed attempt reports nothing, so this one has to look again and again."""
        async with asyncio.timeout(WITHIN_S):
            while words not in self.trouble(hub_id):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*hubs: Hub) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for hub in hubs:
            await stack.enter_async_context(_running(hub))
        yield


@asynccontextmanager
async def _running(hub: Hub) -> AsyncIterator[None]:
    listening = asyncio.Event()
    task = asyncio.create_task(hub.mesh.run(listening=lambda _: listening.set()))
    waiting = asyncio.create_task(listening.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class RawPeer:
    """A connection of which the test says every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()
        self._read: list[tuple[int, bytes]] = []

    @classmethod
    async def dial(cls, hub: Hub, context: ssl.SSLContext) -> RawPeer:
        address = hub.identity.member.address
        reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="")
        return cls(reader, writer)

    @classmethod
    async def of(cls, identity: HubIdentity, hub: Hub) -> RawPeer:
        """Greeted, as a good peer."""
        peer = await cls.dial(hub, identity.client_context())
        peer.say(hello_of(identity))
        assert isinstance(await peer.answer(), LinkHello)
        return peer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def say(self, message: Control) -> None:
        self.write(frame(FrameKind.CONTROL, encode_control(message)))

    def send(self, note: Note) -> None:
        self.write(frame(FrameKind.MESSAGE, _encode(note)))

    async def frame(self) -> tuple[int, bytes] | None:
        """None at the end of the connection."""
        async with asyncio.timeout(WITHIN_S):
            while not self._read:
                try:
                    data = await self._reader.read(65536)
                except (ConnectionError, ssl.SSLError):
                    return None
                if not data:
                    return None
                self._read = self._frames.feed(data)
        return self._read.pop(0)

    async def answer(self) -> Control | None:
        read = await self.frame()
        return None if read is None else decode_control(read[1])

    async def end(self) -> None:
        """Returns when the other side has closed."""
        while await self.frame() is not None:
            pass
        self.close()

    def close(self) -> None:
        self._writer.close()


def hello_of(identity: HubIdentity, **other: object) -> LinkHello:
    said = LinkHello(
        protocol_version=PROTOCOL_VERSION,
        hub_id=identity.hub_id,
        trust_domain=identity.trust_domain,
        introduction=identity.introduction(),
    )
    return msgspec.structs.replace(said, **other)


def context_without_certificate(identity: HubIdentity) -> ssl.SSLContext:
    return hub_identity.client_context(identity.authority, None)
