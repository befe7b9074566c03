"""Chunks, and two sessions that talk to each other without a network."""

from __future__ import annotations

import random

from harch.content.frames import ChunkFrame, Codec, chunk_id, pack_chunk
from harch.content.model import ChunkRef
from harch.federation.bulk.protocol import BULK_VERSION, BulkHello, ReceiverSession, SenderSession, encode_hello
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello

TICKET = b"t" * 32


def raw_chunk(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def raw_frame(raw: bytes) -> ChunkFrame:
    return ChunkFrame(chunk_id(raw), len(raw), Codec.RAW, raw)


def frames_of(sizes: list[int], *, compressible: bool = False) -> dict[bytes, ChunkFrame]:
    """By name; every second one can be compressed if wanted."""
    found = {}
    for number, size in enumerate(sizes):
        raw = raw_chunk(number, size)
        if compressible and number % 2:
            raw = (raw[:7] + bytes([number])) * (size // 8 + 1)
        frame = pack_chunk(raw)
        found[frame.id] = frame
    return found


def refs_of(frames: dict[bytes, ChunkFrame]) -> list[ChunkRef]:
    return [ChunkRef(frame.id, frame.size) for frame in frames.values()]


def hello(hub_id: str = "dakar", *, ticket: bytes = b"", version: int = BULK_VERSION) -> BulkHello:
    hub = LinkHello(protocol_version=PROTOCOL_VERSION, hub_id=hub_id, trust_domain="harch.internal")
    return BulkHello(version=version, hub=hub, ticket=ticket)


def greeted_sender() -> SenderSession:
    session = SenderSession()
    session.feed(encode_hello(hello("abidjan", ticket=TICKET)))
    return session


def fill(session: ReceiverSession, data: bytes) -> list[ChunkFrame]:
    """As a socket would: as much as there is space for, again and again."""
    complete = []
    while data:
        space = session.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        complete += session.received(count)
    return complete


def answers(session: SenderSession, frames: dict[bytes, ChunkFrame]) -> bytes:
    """Everything that is requested, as it is sent."""
    sent = []
    while batch := session.next_batch():
        for request in batch:
            head, rest = session.encode(request, frames[request.id])
            sent += [head, bytes(rest)]
    return b"".join(sent)
